"""Networks of queues: model, single and vector environments agree; masks hold; bad descriptions get a sentence."""

import functools

import gymnasium
import numpy as np
import pytest

import kemeny
from kemeny import tasks
from kemeny.errors import UserError
from kemeny.tabular import solve, zoo
from kemeny.tasks.network import Network

BOUNDED = 4
NETWORKS = {
    "criss-cross": tasks.criss_cross("BM"),
    "N-model": tasks.n_model(),
    "six classes": tasks.six_class(6),
    "line": tasks.reentrant_line(),
    "allocation": tasks.server_allocation(),
    "random routes": Network(
        arrivals=(0.3, 0.2, 0.0),
        activities=[(0, 0, 1.5), (0, 1, 1.2), (1, 2, 1.0), (1, 1, 0.4, 2)],
        routing=((0, 0, 0.5), (0.25, 0, 0.25), (0.1, 0, 0)),
        holding=(1.0, 2.0, 0.5),
    ),
}
each = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS.keys())


def slow_events(network, state, options):
    """(probability, next state) of everything that may happen, written down one by one."""
    servers = sorted({one.server for one in network.activities})
    mine = {s: [one for one in network.activities if one.server == s] for s in servers}
    deciding = [s for s in servers if len(mine[s]) > 1]
    clock = sum(network.arrivals) + sum(max(one.rate for one in mine[s]) for s in servers)
    found = []
    for j, rate in enumerate(network.arrivals):
        found.append((rate / clock, tuple(x + (i == j) for i, x in enumerate(state))))
    for s in servers:
        one = mine[s][options[deciding.index(s)]] if s in deciding else mine[s][0]
        if state[one.job_class] >= one.at_least:
            without = [x - (i == one.job_class) for i, x in enumerate(state)]
            row = network.routing[one.job_class]
            for to, share in enumerate(row):
                found.append((one.rate * share / clock, tuple(x + (i == to) for i, x in enumerate(without))))
            found.append((one.rate * (1 - sum(row)) / clock, tuple(without)))
    return [*found, (1 - sum(p for p, _ in found), tuple(state))]


@each
def test_what_may_happen_against_a_list(network):
    rng = np.random.default_rng(0)
    for _ in range(40):
        state = rng.integers(0, BOUNDED, network.classes)
        options = [rng.integers(n) for n in network.choices]
        expected = {}
        for probability, after in slow_events(network, state, options):
            expected[after] = expected.get(after, 0) + probability
        states, actions = state[None], np.array([options])
        likely, found = network.probabilities(states, actions)[0], {}
        for event in range(network.events):
            after = tuple(network.outcome(states, actions, np.array([event])).states[0].tolist())
            found[after] = found.get(after, 0) + likely[event]
        found = {after: p for after, p in found.items() if p > 1e-12}
        assert found == pytest.approx({after: p for after, p in expected.items() if p > 1e-12})
        reward = network.outcome(states, actions, np.array([0])).reward[0]
        assert reward == pytest.approx(-sum(x * cost for x, cost in zip(state, network.holding, strict=True)))


@each
def test_outcomes_are_what_is_possible_and_no_more(network):
    """Against the same list; where every class has jobs, a row has hardly more outcomes than are possible."""
    rng = np.random.default_rng(0)
    states = rng.integers(0, BOUNDED, (60, network.classes))
    actions = rng.integers(0, network.choices, (60, len(network.choices)))
    outcomes = tasks.ProcessVectorEnv(network, 1).outcomes(states.astype(np.float32), actions)
    for state, options, after, likely in zip(
        states, actions, outcomes["observation"], outcomes["probability"], strict=True
    ):
        expected, found = {}, {}
        for probability, place in slow_events(network, state, options):
            expected[place] = expected.get(place, 0) + probability
        for probability, place in zip(likely, map(tuple, after.astype(int).tolist()), strict=True):
            found[place] = found.get(place, 0) + probability
        assert {k: p for k, p in found.items() if abs(p) > 1e-12} == pytest.approx(
            {k: p for k, p in expected.items() if p > 1e-12}
        )
    assert outcomes["probability"].shape[1] == network.at_once
    assert (outcomes["probability"] != 0).sum(axis=1).max() >= network.at_once - 1  # perhaps something always happens


def test_too_few_outcomes_are_noticed():
    network = tasks.criss_cross("IL")
    network.at_once -= 1
    states = np.full((3, 3), 2, np.float32)
    with pytest.raises(UserError, match="at most 4 events are possible at once, but there are 5"):
        tasks.ProcessVectorEnv(network, 1).outcomes(states, np.zeros(3, int))


@each
def test_draws_come_as_often_as_the_probabilities_say(network):
    rng, copies = np.random.default_rng(1), 40_000
    state = rng.integers(1, BOUNDED, network.classes)
    states = np.tile(state, (copies, 1))
    actions = np.tile([0] * len(network.choices), (copies, 1))
    counts = np.bincount(network.draw(states, actions, rng), minlength=network.events)
    likely = network.probabilities(states[:1], actions[:1])[0]
    assert (counts[likely == 0] == 0).all()
    np.testing.assert_allclose(counts / copies, likely, atol=5 * 0.5 / np.sqrt(copies))


@pytest.mark.parametrize("regime", ["BM", "IH"])
def test_the_model_is_that_of_the_zoo(regime):
    """Written down another way there; the cut has the same effect in both."""
    mine = tasks.criss_cross(regime).model(truncation=6)
    other = zoo.criss_cross(regime, truncation=6, work_conserving=True)
    for a in range(2):
        allowed = mine.allowed[:, a]
        np.testing.assert_allclose(*(model.by_action[a].toarray()[allowed] for model in (mine, other)), atol=1e-12)
        np.testing.assert_allclose(mine.rewards[allowed, a], other.rewards[allowed, a])
    assert mine.edge.any()
    assert not (mine.edge & ~other.edge).any()  # the zoo's are all states with a full queue


def test_the_n_model_is_worth_what_that_of_the_zoo_is():
    mine, other = tasks.n_model(load=0.8).model(truncation=5), zoo.n_model(truncation=5, load=0.8)
    assert solve.solve(mine).gain == pytest.approx(solve.solve(other).gain, abs=1e-6)


@pytest.mark.parametrize(("regime", "truncation", "cost"), [("IL", 12, 0.6706), ("BL", 14, 0.8432), ("IM", 24, 2.0836)])
def test_published_optima(regime, truncation, cost):
    """Large enough that the cut changes no digit that is shown."""
    found = solve.solve(tasks.criss_cross(regime).model(truncation), precision=1e-5)
    assert -found.gain == pytest.approx(cost, abs=1.5e-4)


@each
def test_one_copy_and_many_are_the_same_task(network):
    """The same seed, the same actions, the same numbers."""
    one, many = tasks.ProcessEnv(network), tasks.ProcessVectorEnv(network, 1)
    first, info = one.reset(seed=5)
    rows, infos = many.reset(seed=5)
    rng = np.random.default_rng(0)
    for _ in range(200):
        np.testing.assert_array_equal(first, rows[0])
        np.testing.assert_array_equal(info["action_mask"], infos["action_mask"][0])
        action = allowed_action(info["action_mask"], network.choices, rng)
        first, reward, ended, cut, info = one.step(action[0] if len(action) == 1 else action)
        rows, rewards, _, _, infos = many.step(action[None])
        assert (reward, ended, cut) == (rewards[0], False, False)


def allowed_action(mask, choices, rng):
    parts = np.split(mask, np.cumsum(choices)[:-1])
    return np.array([rng.choice(np.flatnonzero(part)) for part in parts])


@each
def test_masks_leave_work_and_something_to_do(network):
    """An option is allowed if its activity has its jobs; a server without work has its first option alone."""
    states = np.random.default_rng(0).integers(0, 3, (300, network.classes))
    masks = network.allowed(states)
    deciding = np.split(np.array(network.option_activities), np.cumsum(network.choices)[:-1])
    for state, mask in zip(states, masks, strict=True):
        for part, options in zip(np.split(mask, np.cumsum(network.choices)[:-1]), deciding, strict=True):
            work = [state[network.activities[k].job_class] >= network.activities[k].at_least for k in options]
            assert part.tolist() == (work if any(work) else [True] + [False] * (len(work) - 1))


def test_a_trained_policy_never_takes_what_is_masked(tmp_path):
    settings = {"steps": 4_000, "num_envs": 20, "batch_size": 1_000, "hidden": (8,), "eval_max_steps": 50, "seed": 1}
    run = kemeny.train("kemeny/SixClass-v0", out=tmp_path / "run", preset="queues", **settings)
    policy, network, rng = kemeny.load_policy(run.path), tasks.six_class(6), np.random.default_rng(0)
    for state in rng.integers(0, 2, (100, 6)):
        mask = network.allowed(state[None])[0]
        for action in (policy(state, mask=mask), policy.sample(state, rng, mask=mask)):
            assert all(part[option] for part, option in zip(np.split(mask, [3]), action, strict=True))


def test_gymnasium_knows_the_ids():
    env = gymnasium.make("kemeny/CrissCross-v0", regime="BH")
    assert env.reset(seed=0)[0].tolist() == [0, 0, 0]
    many = gymnasium.make_vec("kemeny/SixClass-v0", 3, vectorization_mode="vector_entry_point", classes=9)
    assert many.reset(seed=0)[0].shape == (3, 9)


# Unstable policies, and where copies restart


def test_overflows_are_counted_in_training(tmp_path):
    settings = {"steps": 2_000, "num_envs": 20, "batch_size": 1_000, "hidden": (8,), "eval_max_steps": 50}
    few, none = (
        kemeny.train("kemeny/CrissCross-v0", out=tmp_path / name, preset="queues", env_kwargs=kwargs, **settings)
        for name, kwargs in (("few", {"regime": "BH", "largest": 8}), ("none", {"regime": "BH", "largest": 10**6}))
    )
    assert sum(record["cuts"] for record in few.metrics) > 0
    assert sum(record["cuts"] for record in none.metrics) == 0


def test_copies_that_overflow_are_cut_and_said():
    env = tasks.ProcessVectorEnv(tasks.criss_cross("BH"), 50, largest=3)
    env.reset(seed=0)
    cut = 0
    for _ in range(200):
        observation, _, _, truncated, info = env.step(np.zeros((50, 1), int))
        np.testing.assert_array_equal(truncated, observation.sum(1) > 3)
        np.testing.assert_array_equal(truncated, info["overflow"])
        env.reset(options={"reset_mask": truncated})
        assert (env.states[truncated] == 0).all()
        cut += truncated.sum()
    assert cut > 20


def test_a_restart_elsewhere_leads_to_a_state_that_was_visited():
    env = tasks.ProcessVectorEnv(tasks.criss_cross("BH"), 100, start="elsewhere")
    env.reset(seed=0)
    seen = {(0, 0, 0)}
    for _ in range(300):
        env.step(np.zeros((100, 1), int))
        seen |= set(map(tuple, env.states.tolist()))
    env.reset(options={"reset_mask": np.ones(100, bool)})
    assert set(map(tuple, env.states.tolist())) <= seen
    assert env.states.sum() > 0
    env.reset(seed=0)
    assert env.states.sum() == 0


def test_a_shuffled_restart_has_the_jobs_of_a_visited_state_in_other_queues():
    """Class 2 has priority and is nearly always empty; a restart shows it with many jobs."""
    env = tasks.ProcessVectorEnv(tasks.server_allocation((0.4, 0.02), (1.0, 1.0), (1.0, 1.0)), 500, start="shuffled")
    env.reset(seed=0)
    totals = {0}
    for _ in range(300):
        env.step(np.where(env.states[:, 1:] > 0, 1, 0))
        totals |= set(env.states.sum(axis=1).tolist())
    visited = env.visited.copy()
    longest = env.states[:, 1].max()
    env.reset(options={"reset_mask": np.ones(500, bool)})
    assert set(env.states.sum(axis=1).tolist()) <= totals
    assert {tuple(sorted(row)) for row in env.states.tolist()} <= {tuple(sorted(row)) for row in visited.tolist()}
    assert env.states[:, 1].max() > longest
    assert abs(env.states[:, 0].mean() - env.states[:, 1].mean()) < 0.2 * env.states.mean()
    env.reset(seed=0)
    assert env.states.sum() == 0


def test_states_come_back():
    env = tasks.ProcessVectorEnv(tasks.n_model(), 10, start="elsewhere")
    env.reset(seed=3)
    step = functools.partial(env.step, np.zeros((10, 1), int))
    for _ in range(20):
        step()
    saved = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in env.get_state().items()}
    randomness = saved["random"].bit_generator.state
    first = [step()[0] for _ in range(20)]
    saved["random"].bit_generator.state = randomness
    env.set_state(saved)
    np.testing.assert_array_equal(first, [step()[0] for _ in range(20)])


# Bad input

SOUND = {
    "arrivals": [0.3, 0.3],
    "activities": [[0, 0, 1.0], [0, 1, 1.0]],
    "routing": [[0, 0], [0, 0]],
    "holding": [1, 1],
}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"arrivals": [0.6, 0.6]}, r"no policy can keep the queues finite, for the load of server 1 is 1\.2"),
        ({"arrivals": [-0.1, 0.3]}, "the arrival rate of class 1 is -0.1; it must be at least 0"),
        ({"arrivals": [0.0, 0.0]}, "no job ever arrives"),
        ({"activities": [[0, 0, 1.0], [0, 0, 2.0]]}, "the service rate of class 2 is missing"),
        ({"activities": [[0, 0, 1.0], [0, 1, -1.0]]}, "serves class 2 at rate -1.0; it must be a positive number"),
        ({"activities": [[0, 0, 1.0], [0, 7, 1.0]]}, "serves class 8 of 2"),
        ({"activities": [[0, 0], [0, 1, 1.0]]}, r"an activity is \[server, class, rate\]"),
        ({"activities": [[0, 0, 1.0], [1, 1, 1.0]]}, "no server has a choice"),
        ({"routing": [[0, 1.0], [1.0, 0]]}, "jobs of class 1 never leave"),
        ({"routing": [[0, 0.8], [0.8, 0.8]]}, "the routing probabilities of class 2"),
        ({"routing": [[0, 0]]}, "1 rows of routing"),
        ({"holding": [1.0]}, "1 holding costs"),
        ({"holding": [1.0, -2.0]}, "the holding cost of class 2 is -2.0"),
    ],
)
def test_a_network_that_is_none_gets_a_sentence(wrong, sentence):
    Network(**SOUND)
    with pytest.raises(UserError, match=sentence):
        Network(**{**SOUND, **wrong})


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: tasks.criss_cross("XX"), "no regime 'XX'; its regimes are IL"),
        (lambda: tasks.criss_cross("BH", arrival=1.1), r"load of server 1 is 1\.1"),
        (lambda: tasks.six_class(7), "has 6, 9, 12, … classes, not 7"),
        (lambda: tasks.reentrant_line((1, 2), (0.5,)), "one mean service time per visit"),
        (lambda: tasks.reentrant_line((0, 2), (0.5, 0.5)), "stations are counted from 1"),
        (lambda: tasks.server_allocation((0.1, 0.1), (1.0,)), "2 arrival rates, one per class, but 1 service rates"),
        (lambda: tasks.six_class(21).model(truncation=10), "more than 400,000,000: cut it off earlier"),
        (lambda: tasks.n_model().model(), "has no largest jobs of class 1, jobs of class 2: its model"),
        (lambda: tasks.n_model().model(1), "must be at least 2, not 1"),
        (lambda: tasks.n_model().model(3, cost="wait"), "no cost named 'wait'"),
        (lambda: tasks.ProcessVectorEnv(tasks.n_model(), 2, largest=0), "it must be more than 0"),
        (lambda: tasks.ProcessVectorEnv(tasks.n_model(), 2, start="there"), "'elsewhere' or 'shuffled'"),  # type: ignore[arg-type]
        (lambda: tasks.ProcessVectorEnv(tasks.dual_sourcing(), 2, start="shuffled"), "no parts that can change places"),
        (lambda: tasks.ProcessVectorEnv(tasks.lost_sales(lead_time=1), 2, start="shuffled"), "there is only one"),
        (lambda: tasks.process_of("CrissCross-v0", regmie="BH"), "has no argument 'regmie'; its arguments are regime"),
    ],
)  # fmt: skip
def test_bad_arguments_get_a_sentence(call, sentence):
    with pytest.raises(UserError, match=sentence):
        call()


def test_the_command_line_says_it(tmp_path):
    with pytest.raises(UserError, match="has no regime 'XX'"):
        kemeny.train("kemeny/CrissCross-v0", env_kwargs={"regime": "XX"}, out=tmp_path / "run")
    with pytest.raises(UserError, match="kemeny/CrissCross-v0"):
        kemeny.train("kemeny/CrisCross-v0", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
