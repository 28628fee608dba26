"""Vector environments: whichever autoreset mode they have, they mean what the same environments mean one by one."""

import functools
import itertools

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from kemeny.envs.pool import choose_backend, inspect, make_in_turn, make_pool
from kemeny.envs.settings import Simulation
from kemeny.envs.vector import VectorPool
from kemeny.errors import UserError
from tests.envs import vectors
from tests.envs.vectors import Broken, Cart, Carts, SavedCarts

MODES = list(AutoresetMode)
COSTS = ("effort", "cost", lambda observation, action, reward, info: float(observation[0] + action[0]) + info["cost"])


def pushes(rng, n):
    return rng.uniform(-1.5, 1.5, (n, 1)).astype(np.float32)


def twins(start):
    """The same carts, one by one."""
    carts = [Cart() for _ in start]
    for cart, (position, speed) in zip(carts, start.astype(np.float64), strict=True):
        cart.put(position, speed)
    return carts


def same_start(vector, ids, rows):
    """Start observations are float32: give the vector environment's state the same numbers as its twins have."""
    vector.state[ids] = rows.astype(np.float64)


@pytest.mark.parametrize("cuts_at", [None, 7])
@pytest.mark.parametrize("mode", MODES)
def test_rows_are_those_of_the_environment_unvectorised(mode, cuts_at):
    """Same start states, same actions: same observations, the last ones too, and same rewards, ends and costs."""
    n, made = 9, []
    make = lambda num_envs: made.append(Carts(num_envs, mode, cuts_at)) or made[-1]  # noqa: E731
    pool, rng = make_pool(make, n, seed=3, costs=COSTS), np.random.default_rng(0)
    rows = pool.reset(np.arange(n))
    same_start(made[-1], slice(None), rows)
    carts = twins(rows)
    for cart in carts:
        cart.cuts_at = cuts_at
    ends = np.zeros(2, int)
    for t in range(150):
        action = pushes(rng, n)
        pool.send(action)
        step = pool.recv()
        for i, cart in enumerate(carts):
            observation, reward, terminated, truncated, info = cart.step(np.clip(action[i], -1, 1))
            np.testing.assert_array_equal(step.observation[i], observation.astype(np.float32))
            assert (step.reward[i], step.terminated[i], step.truncated[i]) == (reward, terminated, truncated)
            by_hand = step.observation[i, 0] + np.clip(action[i, 0], -1, 1) + info["cost"]
            assert step.costs[i].tolist() == pytest.approx([info["effort"], info["cost"], by_hand])
        over = step.terminated | step.truncated
        ends += step.terminated.sum(), step.truncated.sum()
        over[t % n] |= t % 3 == 0  # a cut that the environment knows nothing of
        if over.any():
            ids = np.flatnonzero(over)[::-1]
            rows = pool.reset(ids)
            assert (np.abs(rows) <= 0.1).all()
            same_start(made[-1], ids, rows)
            for i, (position, speed) in zip(ids, rows.astype(np.float64), strict=True):
                carts[i].put(position, speed)
    assert ends[0] > 10
    assert (ends[1] > 10) == (cuts_at is not None)


@pytest.mark.parametrize("mode", MODES)
def test_copies_of_their_own_give_the_numbers_of_the_gymnasium_pool(mode):
    """In Gymnasium's own vector environments each restart of each copy has its seed, as it has one by one."""
    make = lambda num_envs: SyncVectorEnv([lambda: Cart(9)] * num_envs, autoreset_mode=mode)  # noqa: E731
    options = {"seed": 5, "first_env": 3, "costs": COSTS, "time_limit": 8}
    pools = [make_pool(env, 4, **options) for env in (make, lambda: Cart(9))]
    everyone, rng = np.arange(4), np.random.default_rng(0)
    np.testing.assert_array_equal(*(pool.reset(everyone) for pool in pools))
    for t in range(60):
        action, steps = pushes(rng, 4), []
        for pool in pools:
            pool.send(action)
            steps.append(pool.recv())
        for columns in zip(*steps, strict=True):
            np.testing.assert_array_equal(*columns)
        over = steps[0].terminated | steps[0].truncated
        over[t % 4] |= t % 5 == 0
        if over.any():
            np.testing.assert_array_equal(*(pool.reset(everyone[over]) for pool in pools))


@pytest.mark.parametrize("mode", MODES)
def test_a_shrinking_number_of_trajectories(mode):
    """As in an evaluation: those that are over take no part, do no harm, and must be restarted before they go on."""
    pool, rng = make_pool(functools.partial(Carts, mode=mode, cuts_at=40), 6, seed=0), np.random.default_rng(1)
    rows = pool.reset(np.arange(6))
    carts, alive = twins(rows), np.arange(6)
    pool._copies.env.state[:] = rows.astype(np.float64)
    for cart in carts:
        cart.cuts_at = 40
    lengths = np.zeros(6, int)
    while alive.size:
        action = pushes(rng, alive.size)
        pool.send(action, alive)
        step = pool.recv()
        lengths[alive] += 1
        for row, i in enumerate(alive):
            observation, reward, terminated, truncated, _ = carts[i].step(np.clip(action[row], -1, 1))
            np.testing.assert_array_equal(step.observation[row], observation.astype(np.float32))
            assert (step.reward[row], step.terminated[row], step.truncated[row]) == (reward, terminated, truncated)
        alive = alive[~(step.terminated | step.truncated)]
    assert len(set(lengths)) > 3
    with pytest.raises(RuntimeError, match="call reset"):
        pool.send(pushes(rng, 1), np.array([0]))
    assert (np.abs(pool.reset(np.array([4, 2]))) <= 0.1).all()
    pool.send(pushes(rng, 2), np.array([4, 2]))
    assert pool.recv().observation.shape == (2, 2)


def test_copies_that_were_not_sent_to_must_be_restarted():
    """For they have moved: a vector environment can only step all."""
    pool = make_pool(Carts, 3, seed=0)
    pool.reset(np.arange(3))
    pool.send(np.zeros((1, 1), np.float32), np.array([1]))
    pool.recv()
    with pytest.raises(RuntimeError, match=r"\[0, 2\]"):
        pool.send(np.zeros((3, 1), np.float32))


def test_only_one_call_per_step():
    """No Python per copy: a thousand of them are one call."""
    made = []
    pool = make_pool(lambda num_envs: made.append(Carts(num_envs)) or made[-1], 1000, seed=0)
    before = made[-1].calls
    pool.reset(np.arange(1000))
    steps = []
    for t in range(5):
        pool.send(np.full((1000, 1), -0.1 * t, np.float32))
        steps.append(pool.recv())
    assert made[-1].calls - before == 5
    for one, other in itertools.pairwise(steps):  # though the environment writes into its own arrays
        assert not np.array_equal(one.reward, other.reward)
        assert not np.array_equal(one.observation, other.observation)


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_gives_the_same_numbers(mode):
    def numbers(seed, first_env=0, before=0):
        pool, rng = make_pool(functools.partial(Carts, mode=mode, noise=0.1), 3, seed=seed, first_env=first_env), []
        pool.fast_forward(np.full(3, before))
        seen = [pool.reset(np.arange(3))]
        rng = np.random.default_rng(0)
        for _ in range(30):
            pool.send(pushes(rng, 3))
            step = pool.recv()
            seen.append(step.observation)
            if step.terminated.any():
                seen.append(pool.reset(np.flatnonzero(step.terminated)))
        return np.concatenate(seen)

    np.testing.assert_array_equal(numbers(1), numbers(1))
    for other in (numbers(2), numbers(1, first_env=3), numbers(1, before=4)):
        assert not np.array_equal(numbers(1)[:3], other[:3])


@pytest.mark.parametrize("mode", MODES)
def test_a_saved_state_leads_back(mode):
    """A pool that was never used goes on, from the state of another, as that one does."""
    make = functools.partial(SavedCarts, mode=mode, noise=0.1, cuts_at=9)
    pools = [make_pool(make, 5, seed=seed, time_limit=8) for seed in (0, 1)]
    rng = np.random.default_rng(0)

    def go_on(pool, actions):
        seen = []
        for action in actions:
            pool.send(action)
            step = pool.recv()
            over = step.terminated | step.truncated
            seen += [*step, pool.reset(np.flatnonzero(over)) if over.any() else np.empty(0)]
        return seen

    pools[0].reset(np.arange(5))
    go_on(pools[0], [pushes(rng, 5) for _ in range(13)])
    state = pools[0].get_state()
    assert pools[1].set_state(state)
    actions = [pushes(rng, 5) for _ in range(30)]
    for one, other in zip(go_on(pools[0], actions), go_on(pools[1], actions), strict=True):
        np.testing.assert_array_equal(one, other)
    assert {array.dtype.name for array in state.values()} <= {"float64", "int64", "bool", "uint32"}
    assert [pool.comeback for pool in pools] == ["state"] * 2


def test_what_comes_back_how():
    sync = lambda num_envs: SyncVectorEnv([Cart] * num_envs)  # noqa: E731
    assert [make_pool(env, 2, seed=0).comeback for env in (Carts, SavedCarts, sync, Cart)] == [
        "never", "state", "replay", "replay",
    ]  # fmt: skip


def test_time_limits_inside_are_removed():
    """As from an environment that is made alone; the spec says what it was."""
    make = functools.partial(gymnasium.make_vec, "Pendulum-v1", vectorization_mode="sync")
    assert inspect(make).time_limit == 200
    pool = make_pool(make, 2, seed=0)
    pool.reset(np.arange(2))
    for _ in range(201):
        pool.send(np.zeros((2, 1), np.float32))
        assert not pool.recv().truncated.any()


@pytest.fixture
def registered():
    """Registers ids for the time of a test."""
    ids = []

    def register(name, **entry_points):
        gymnasium.register(name, **entry_points)
        ids.append(name)
        return name

    yield register
    for name in ids:
        del gymnasium.registry[name]


class LimitedCarts(Carts):
    def __init__(self, num_envs, max_episode_steps):
        super().__init__(num_envs, cuts_at=max_episode_steps)


def test_an_id_with_a_vector_entry_point(registered):
    name = registered("CartsOnly-v0", vector_entry_point=LimitedCarts, max_episode_steps=30)
    assert choose_backend(name, "auto", 0) == "vector"
    pool = make_pool(name, 2, seed=0)
    assert isinstance(pool, VectorPool)
    assert pool.spec.time_limit == 30
    assert pool._copies.env.cuts_at > 10**9
    both = registered("CartsToo-v0", entry_point=Cart, vector_entry_point=Carts)
    assert choose_backend(both, "auto", 0) == "vector"
    assert choose_backend(both, "auto", 2) == "gymnasium"
    unfit = registered("CartsNot-v0", entry_point=Cart, vector_entry_point=vectors.AllAtOnce)
    assert choose_backend(unfit, "auto", 0) == "gymnasium"


def allowed(rows, rng):
    """An action for each row that its mask, the last three columns, allows."""
    return (rows[:, -3:] * rng.random((len(rows), 3))).argmax(1)


@pytest.mark.parametrize("last", ["missing", "known", "nothing"])
@pytest.mark.parametrize("by_method", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_masks_are_those_of_the_environment_unvectorised(mode, by_method, last):
    """The last ones too: where the environment cuts a trajectory, what would have come is estimated from its row."""
    one = functools.partial(vectors.Doors, by_method=by_method, last=last)
    make = lambda num_envs: SyncVectorEnv([one] * num_envs, autoreset_mode=mode)  # noqa: E731
    pools, everyone, rng = [make_pool(env, 4, seed=5) for env in (make, one)], np.arange(4), np.random.default_rng(0)
    assert [pool.spec.mask for pool in pools] == [3, 3]
    rows = pools[0].reset(everyone)
    np.testing.assert_array_equal(rows, pools[1].reset(everyone))
    for t in range(40):
        action, steps = allowed(rows, rng), []
        for pool in pools:
            pool.send(action)
            steps.append(pool.recv())
        for columns in zip(*steps, strict=True):
            np.testing.assert_array_equal(*columns)
        over = steps[0].terminated | steps[0].truncated
        if last == "known" and over.any():
            assert (steps[0].observation[over, 1:].sum(1) == 2).all()
        rows = steps[0].observation.copy()
        over[t % 4] |= t % 7 == 0
        if over.any():
            rows[over] = pools[0].reset(everyone[over])
            np.testing.assert_array_equal(rows[over], pools[1].reset(everyone[over]))


@pytest.mark.parametrize("mode", MODES)
def test_masks_of_copies_in_one_call(mode):
    """Row by row the mask of the state that is shown; copies that take no part open no locked door either."""
    pool, rng = make_pool(functools.partial(vectors.ManyDoors, mode=mode), 5, seed=0), np.random.default_rng(0)

    def check(rows):
        number, steps = np.divmod(rows[:, 0], 10)
        np.testing.assert_array_equal(rows[:, 1:], np.arange(3) != ((number + steps) % 3)[:, None])
        return rows

    rows = check(pool.reset(np.arange(5)))
    for t in range(40):
        ids = np.arange(5) if t % 9 else np.array([3, 1])  # now and then some only
        pool.send(allowed(rows[ids], rng), ids)
        step = pool.recv()
        rows[ids] = step.observation
        check(step.observation[~step.terminated])
        assert (step.observation[step.terminated, 0] % 10 == 5).all()
        again = np.setdiff1d(np.arange(5), ids[~step.terminated])
        if again.size:
            rows[again] = check(pool.reset(again))
    assert pool.comeback == "state"


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("shape", r"has shape \(2, 2\), but there must be one row of 3 for each copy"),
        ("nothing", "forbids every action"),
        ("late", "did not come with its first observation"),
    ],
)
def test_wrong_masks(wrong, sentence):
    with pytest.raises(UserError, match=f"has a wrong action mask: it .*{sentence}"):
        inspect(functools.partial(vectors.ManyDoors, wrong=wrong))


def returns_the_same(num_envs, made=[]):  # noqa: B006
    made += [] if made else [Carts(num_envs)]
    return made[0]


BAD = {
    "reset_mask": (vectors.AllAtOnce, "restarts all of its copies if only some should"),
    "undeclared": (vectors.Undeclared, "does not say how its copies restart: set metadata"),
    "final_obs": (vectors.WithoutLast, "under \"final_obs\", the last observation"),
    "state": (functools.partial(vectors.Forgetful, noise=0.1), "does not come back to where it was by set_state"),
    "raises": (Broken, "KeyError: 'the wheels came off' in step"),
    "rows": (functools.partial(Broken, how="rows"), "returned 1 observations instead of 2"),
    "rewards": (functools.partial(Broken, how="rewards"), r"rewards of shape \(2, 1\)"),
    "values": (functools.partial(Broken, how="four"), "something else from step"),
    "no vector": (lambda num_envs: Cart(), "must return a new gymnasium.vector.VectorEnv"),
    "size": (lambda num_envs: Carts(7), "asked for num_envs=2 copies and made 7"),
    "own size": (lambda: Carts(2), "give it a parameter num_envs"),
    "made": (Carts(2), "pass a function with the parameter num_envs"),
    "not made": (lambda num_envs: 1 / 0, "could not be made: it raised ZeroDivisionError"),
}  # fmt: skip


@pytest.mark.parametrize(("env", "sentence"), BAD.values(), ids=BAD)
def test_bad_input(env, sentence):
    with pytest.raises(UserError, match=sentence):
        inspect(env)
    with pytest.raises(UserError, match=sentence):
        make_pool(env, 2, seed=0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"simulation": Simulation(workers=1)}, "leave workers at 0"),
        ({"simulation": Simulation(restart_faulty=True)}, "leave out --restart-faulty"),
        ({"costs": ["distance"]}, "has no cost 'distance'; its info has: cost, effort"),
        ({"costs": ["final_obs"]}, "has no cost 'final_obs'"),
    ],
)
def test_settings_that_do_not_fit(options, sentence):
    with pytest.raises(UserError, match=sentence):
        inspect(Carts, **options)


def test_one_environment_for_two_pools_is_refused():
    first = make_pool(returns_the_same, 2, seed=0)
    with pytest.raises(UserError, match="the same environment twice"):
        make_pool(returns_the_same, 2, seed=0)
    first.close()


def test_a_state_of_other_types_is_refused():
    class Odd(SavedCarts):
        def get_state(self):
            return {**super().get_state(), "odd": np.zeros(3, np.uint64)}

    class OtherGenerator(SavedCarts):
        def get_state(self):
            return {**super().get_state(), "random": np.random.Generator(np.random.MT19937(0))}

    for env, sentence in ((Odd, "'odd' of type uint64"), (OtherGenerator, "only PCG64 can be saved")):
        with pytest.raises(UserError, match=sentence):
            make_pool(env, 2, seed=0)


def test_all_copies_are_one_pool():
    [(first_env, pool)] = make_in_turn(Carts, 5, seed=0, first_env=2)
    assert (first_env, pool.num_envs) == (2, 5)
    pool.close()
