"""The long run from environments: trajectories that go on, rules, files and pictures, from Python and the shell."""

import csv
import dataclasses
import functools
import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import kemeny
from kemeny.envs.settings import Simulation
from kemeny.errors import UserError
from kemeny.experience.evaluate import evaluate as run_protocol
from kemeny.experience.settings import EvaluationProtocol, LongRunProtocol
from kemeny.tabular import zoo
from kemeny.tabular.environment import MDPEnv
from tests.conftest import TINY
from tests.probes import Walk, policy_for
from tests.test_cli import command as command
from tests.test_layers import loaded_after


def long(env, max_steps, trajectories=3, policy=None, **more):
    policy = policy_for(2, 1) if policy is None else policy
    return run_protocol(
        policy, env, EvaluationProtocol(trajectories, max_steps), seed=0, long_run=LongRunProtocol(warm_up=0), **more
    )


def test_a_trajectory_goes_on_after_a_fall_but_its_return_does_not():
    result = long(functools.partial(Walk, falls_at=7), 70, costs=("cost",))
    np.testing.assert_array_equal(result.lengths, [7, 7, 7])
    np.testing.assert_array_equal(result.returns[70], [7, 7, 7])
    assert result.reached_end == 0
    found = result.long_run
    assert (found.falls, found.steps, found.cuts) == (30, 210, 0)
    assert found.falls_per_million.average == pytest.approx(1e6 / 7)
    assert found.reward.average == 1
    assert found.charged.average == pytest.approx(1 - 100 / 7)
    assert found.costs[0].average == 4  # 1, …, 7 again and again


def test_a_cut_by_the_environment_itself_is_no_fall():
    result = long(functools.partial(Walk, times_out_at=5), 20)
    assert (result.long_run.falls, result.long_run.cuts) == (0, 12)
    assert result.long_run.charged.average == 1


@pytest.mark.parametrize("explore", [False, True])
def test_what_comes_after_a_fall_changes_no_digit_of_the_returns(explore):
    """On a pendulum of EnvPool's, whose trajectories fall at times of their own."""
    policy, protocol = policy_for(4, 1, seed=3), EvaluationProtocol(6, 150)
    short = run_protocol(policy, "InvertedPendulum-v5", protocol, seed=5, explore=explore)
    result = run_protocol(
        policy,
        "InvertedPendulum-v5",
        protocol,
        seed=5,
        explore=explore,
        long_run=LongRunProtocol(),
        keep_trajectory=True,
    )
    assert len(set(short.lengths.tolist())) > 1
    assert short.record() == result.record()
    assert result.long_run.falls > 0
    # the first leg of the file is the first trajectory
    assert int(np.argmax(result.trajectory.terminated)) + 1 == short.lengths[0]
    assert result.trajectory.reward[: short.lengths[0]].sum() == short.returns[150][0]
    assert len(result.trajectory) == 150


def test_a_trajectory_is_the_same_whoever_else_is_evaluated():
    policy = policy_for(4, 1, seed=3)
    one, many = (
        long("InvertedPendulum-v5", 60, count, policy, keep_trajectory=True).trajectory.columns for count in (1, 5)
    )
    for name in one:
        np.testing.assert_allclose(one[name], many[name], rtol=1e-4, atol=1e-5, err_msg=name)


class Breaks(Walk):
    """Gives a NaN at the third step of its first trajectory."""

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, np.nan if self.starts == 1 and self.t == 3 else reward, *rest


def test_a_fault_cuts_the_record_and_the_return_begins_anew():
    result = long(Breaks, 10, simulation=Simulation(restart_faulty=True), keep_trajectory=True)
    np.testing.assert_array_equal(result.returns[10], [10, 10, 10])
    assert result.faults == 3
    assert (result.long_run.cuts, result.long_run.falls, result.long_run.steps) == (3, 0, 30)
    assert np.isfinite(result.trajectory.reward).all()
    assert result.trajectory.truncated.tolist() == [False, True] + 8 * [False]
    np.testing.assert_array_equal(result.trajectory.observations[:, 0], [1, 1] + 8 * [2])


def test_the_long_run_of_a_rule_on_a_queue_is_the_exact_gain():
    mdp = zoo.queue_admission()
    admit = np.where(np.arange(mdp.n_states) // 2 < 4, 1, 0)
    gain, cost = (mdp.evaluate(admit, signal=signal).rho for signal in ("reward", "cost"))
    result = kemeny.evaluate(
        lambda state: admit[state], env=functools.partial(MDPEnv, mdp), trajectories=4, max_steps=3_000, costs=("cost",)
    )
    found = result.long_run
    assert found.reward.low < gain < found.reward.high
    assert found.costs[0].low < cost < found.costs[0].high
    assert found.reward.precision < 0.05
    assert result.reached_end == 1
    assert "rule" in str(result)


def test_a_precision_stops_as_soon_as_it_is_reached():
    env = functools.partial(MDPEnv, zoo.queue_admission())
    evaluate = functools.partial(kemeny.evaluate, lambda state: 1, env=env, trajectories=2, max_steps=16_000)
    rough, exact = evaluate(precision=0.2), evaluate(precision=0.03)
    assert max(rough.returns) == 1_000
    assert 1_000 < max(exact.returns) < 16_000
    assert exact.long_run.reward.precision <= 0.03
    assert exact.returns[1_000].tolist() == rough.returns[1_000].tolist()
    assert exact.lengths.tolist() == [max(exact.returns)] * 2
    never = evaluate(precision=1e-9, max_steps=1_500)
    assert max(never.returns) == 1_500


class Crane(gymnasium.Env):
    """Pays its action, in bounds that are not of order one; observation of shape (); a Discrete in `kind`."""

    def __init__(self):
        self.observation_space = spaces.Discrete(3, start=5)
        self.action_space = spaces.Box(np.array([0.0, 100.0]), np.array([1.0, 300.0]), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return 5, {}

    def step(self, action):
        self.t += 1
        return 5 + self.t % 3, float(action.sum()), False, False, {"cost": float(action[0])}


def test_a_rule_sees_what_the_environment_gives_and_does_what_the_environment_takes():
    seen = []

    def rule(observation):
        seen.append(int(observation))
        return [0.25, 1_000.0]  # the second beyond its bound

    result = kemeny.evaluate(rule, env=Crane, trajectories=1, max_steps=6, costs=("cost",), keep_trajectory=True)
    assert seen == [5, 6, 7, 5, 6, 7]
    columns = result.trajectory.columns
    assert list(columns) == [
        "step", "observation", "action_0", "action_1", "reward", "cost_cost", "terminated", "truncated",
    ]  # fmt: skip
    assert columns["observation"].tolist() == seen
    np.testing.assert_allclose(columns["action_0"], 0.25)
    np.testing.assert_allclose(columns["action_1"], 300)
    np.testing.assert_allclose(columns["reward"], 300.25)
    assert next(iter(result.trajectory.records()))["observation"] == 5


class Nested(gymnasium.Env):
    """Observations and actions of every kind; the reward is the sum of the action."""

    def __init__(self):
        self.observation_space = spaces.Dict(
            {
                "arm": spaces.Dict({"angle": spaces.Box(-1.0, 1.0, (2, 2)), "on": spaces.MultiBinary(2)}),
                "pair": spaces.Tuple((spaces.Discrete(3, start=4), spaces.MultiDiscrete([2, 5], start=[1, -2]))),
            }
        )
        self.action_space = spaces.MultiDiscrete([3, 4], start=[10, 20])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), float(action.sum()), False, False, {}


def test_a_rule_and_a_file_have_every_kind_of_space():
    seen = []
    inside = Nested().observation_space

    def rule(observation):
        assert inside.contains(observation), observation
        seen.append(observation)
        return np.array([12, 20])

    result = kemeny.evaluate(rule, env=Nested, trajectories=1, max_steps=20, keep_trajectory=True)
    columns = result.trajectory.columns
    assert list(columns)[1:-3] == [
        *(f"observation_arm.angle_{i}_{j}" for i in range(2) for j in range(2)),
        "observation_arm.on_0", "observation_arm.on_1",
        "observation_pair.0", "observation_pair.1_0", "observation_pair.1_1",
        "action_0", "action_1",
    ]  # fmt: skip
    np.testing.assert_array_equal(columns["observation_arm.angle_1_0"], [one["arm"]["angle"][1, 0] for one in seen])
    np.testing.assert_array_equal(columns["observation_pair.1_1"], [one["pair"][1][1] for one in seen])
    np.testing.assert_array_equal(columns["reward"], 32)
    np.testing.assert_array_equal(columns["action_0"], 12)


class Switches(gymnasium.Env):
    """Two choices, of which the first may not be made twice in a row; whoever does is paid nothing."""

    def __init__(self):
        self.observation_space, self.action_space = spaces.Discrete(2), spaces.MultiDiscrete([2, 3], start=[4, 0])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.previous = 0
        return self.previous, {"action_mask": self.mask()}

    def mask(self):
        return np.array([self.previous != 0, self.previous != 1, 1, 1, 1], np.int8)

    def step(self, action):
        reward, self.previous = float(action[0] - 4 != self.previous), int(action[0] - 4)
        return self.previous, reward, False, False, {"action_mask": self.mask()}


def test_a_rule_sees_the_mask_and_must_keep_it():
    def good(observation, mask):
        assert mask.tolist() == [observation != 0, observation != 1, 1, 1, 1]
        return [4 + int(mask[1]), 2]

    result = kemeny.evaluate(good, env=Switches, trajectories=1, max_steps=6)
    assert result.returns[6].tolist() == [6]
    blind = lambda observation: [5 - observation, 2]  # noqa: E731
    assert kemeny.evaluate(blind, env=Switches, trajectories=1, max_steps=6).returns[6].tolist() == [6]
    with pytest.raises(UserError, match=r"returned \[5, 2\], which the action mask forbids in choice 0"):
        kemeny.evaluate(lambda _: [5, 2], env=Switches, trajectories=1, max_steps=6)


def bad_rule(observation):
    raise KeyError("level")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"policy": 3, "env": Crane}, "3 is none"),
        ({"policy": lambda _: 0}, "on which environment"),
        ({"policy": lambda _: 0, "env": Crane}, "finite numbers of shape"),
        ({"policy": lambda _: [np.nan, 1.0], "env": Crane}, "finite numbers"),
        ({"policy": bad_rule, "env": Crane}, "raised KeyError: 'level'"),
        ({"policy": lambda _: 7, "env": functools.partial(MDPEnv, zoo.queue_admission())}, "whole numbers from 0 to 1"),
        ({"policy": lambda _: 0, "env": Crane, "explore": True}, "does not explore"),
        ({"policy": lambda _: 0, "env": Crane, "best": True}, "Only a run has a best"),
        ({"policy": "nowhere"}, "nowhere is not a run directory"),
        ({"policy": lambda _: 0, "env": Crane, "trajectories": 0}, "trajectories is 0; it must be at least 1"),
        ({"policy": lambda _: 0, "env": Crane, "max_steps": 0}, "max_steps is 0"),
        ({"policy": lambda _: 0, "env": Crane, "precision": 0.0}, "precision is 0.0; it must be above 0"),
        *(
            (
                {"policy": lambda _: 0, "env": Crane, "returns_only": True, name: 1},
                f"with returns_only.*leave out {name}",
            )
            for name in ("precision", "warm_up", "reset_cost")
        ),
        ({"policy": lambda _: [0.0, 200.0], "env": Crane, "warm_up": 10, "max_steps": 10}, "warm-up is 10 steps"),
        (
            {"policy": lambda _: [0.0, 200.0], "env": Crane, "max_steps": 2_000_000_000, "keep_trajectory": True},
            "GB: ask for fewer",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_evaluated_gets_a_sentence(arguments, why):
    with pytest.raises(UserError, match=why):
        kemeny.evaluate(**{"max_steps": 10, "trajectories": 1, **arguments})


def test_a_run_from_python_is_what_the_command_prints(constrained_run, command):
    code, out, err = command("evaluate", constrained_run.path, "--trajectories", "2", "--max-steps", "8")
    assert code == 0, err
    result = kemeny.evaluate(constrained_run.path, trajectories=2, max_steps=8)
    assert [line.rstrip() for line in out.splitlines()] == str(result).splitlines()
    assert "2 of 2 trajectories reached 8 steps" in out
    (verdict,) = result.limits
    assert f"the limit 2 is {'kept' if verdict.kept else 'broken'}" in out
    assert verdict.average == result.long_run.costs[0].average
    again = kemeny.evaluate(constrained_run, trajectories=2, max_steps=8)
    assert again.full_record() == result.full_record()
    code, out, _ = command("evaluate", constrained_run.path, "--trajectories", "2", "--max-steps", "8", "--json")
    assert json.loads(out) == result.full_record()


def test_today_s_call_still_works(tiny_run):
    protocol = EvaluationProtocol(3, 40)
    new = kemeny.evaluate(tiny_run.policy, "InvertedPendulum-v5", protocol, seed=7)
    assert new.record() == run_protocol(tiny_run.policy, "InvertedPendulum-v5", protocol, seed=7).record()


def test_returns_only_estimates_no_long_run(tiny_run):
    result = kemeny.evaluate(tiny_run, trajectories=2, max_steps=20, returns_only=True, keep_trajectory=True)
    assert result.long_run is None
    assert "Long run" not in str(result)
    assert len(result.trajectory) == result.lengths[0]
    assert result.full_record()["long_run"] is None


def test_evaluating_a_run_loads_no_jax(tiny_run, tmp_path):
    code = f"""
import sys; sys.modules["envpool"] = None  # which loads JAX itself
import kemeny
print(kemeny.evaluate({str(tiny_run.path)!r}, trajectories=1, max_steps=5))
from kemeny.cli import main
sys.argv = ["kemeny", "evaluate", {str(tiny_run.path)!r}, "--trajectories", "1", "--max-steps", "5",
    "--trajectory", {str(tmp_path / "t.csv")!r}, "--plot", {str(tmp_path / "t.png")!r}]
main()
"""
    assert not {"jax", "jaxlib", "equinox"} & loaded_after(code)


def test_a_trajectory_file_and_its_picture(constrained_run, command, tmp_path):
    flags = ["--trajectories", "2", "--max-steps", "400", "--trajectory", "out/t.csv", "--plot", "out/t.png"]
    code, _, err = command("evaluate", constrained_run.path, *flags)
    assert code == 0, err
    assert "Wrote 400 steps: out/t.csv" in err
    assert (tmp_path / "out/t.png").read_bytes().startswith(b"\x89PNG")
    with open(tmp_path / "out/t.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    result = kemeny.evaluate(constrained_run, trajectories=2, max_steps=400, keep_trajectory=True)
    columns = result.trajectory.columns
    assert list(rows[0]) == list(columns)
    for name, column in columns.items():  # every digit
        np.testing.assert_array_equal(np.array([row[name] for row in rows]).astype(column.dtype), column)
    assert sum(float(row["reward"]) for row in rows) == pytest.approx(result.returns[400][0])
    # the policy, given the observation in the file, does what the file says
    observation = [float(rows[7][f"observation_{i}"]) for i in range(17)]
    action = [float(rows[7][f"action_{i}"]) for i in range(6)]
    np.testing.assert_allclose(kemeny.load_policy(constrained_run.path)(observation), action, atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--trajectory", "3"], "must end in .csv"),
        (["--plot", "picture.xyz"], "names no format of pictures"),
        (["--plot", "picture"], "names no format of pictures"),
        (["--trajectory", "a-file/t.csv"], "cannot be written"),
        (["--plot", "a-folder.png"], "cannot be written"),
        (["--max-steps", "0"], "at least 1"),
        (["--precision", "-1"], "precision is -1.0; it must be above 0"),
        (["--warm-up", "-1"], "warm_up is -1; it must be at least 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_flags_get_a_sentence_before_any_work(flags, why, command, tiny_run, tmp_path, monkeypatch):
    (tmp_path / "a-file").touch()
    (tmp_path / "a-folder.png").mkdir()
    monkeypatch.setattr("kemeny.runs.evaluation.run_protocol", lambda *_, **__: pytest.fail("it began"))
    code, out, err = command("evaluate", tiny_run.path, *flags)
    assert (code, out) == (2, "")
    assert why in err
    assert err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-file", "a-folder.png"]


class Pays(Walk):
    """Pays its capacity at each step."""

    def __init__(self, capacity=5):
        super().__init__()
        self.capacity = capacity

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float(self.capacity), *rest


def load(observation, action, reward, info):
    """A cost: as much as the reward, and a half."""
    return reward + 0.5


@pytest.fixture(scope="module")
def own_run(tmp_path_factory):
    """A run that no module has: its environment is a function with arguments, and its cost is a function."""
    return kemeny.train(
        lambda capacity=5: Pays(capacity),
        env_kwargs={"capacity": 100},
        out=tmp_path_factory.mktemp("runs") / "own",
        algorithm="acpo",
        cost=(load,),
        limit=(1_000.0,),
        steps=40,
        num_envs=2,
        batch_size=40,
        hidden=(4,),
        eval_max_steps=5,
        eval_trajectories=1,
        critic_epochs=1,
    )


def test_an_environment_given_again_is_made_with_the_arguments_of_the_run(own_run):
    evaluate = functools.partial(kemeny.evaluate, own_run, env=Pays, trajectories=1, max_steps=4, costs=(load,))
    assert evaluate().returns[4] == [400]
    assert evaluate(env_kwargs={}).returns[4] == [20]
    assert evaluate(env_kwargs={"capacity": 7}).returns[4] == [28]


def test_a_cost_function_given_again_takes_its_place(own_run):
    evaluate = functools.partial(kemeny.evaluate, own_run, env=Pays, trajectories=1, max_steps=4)
    result = evaluate(costs=("cost", load))
    np.testing.assert_array_equal(result.average_costs, [[100.5, 2.5]])
    (verdict,) = result.limits
    assert (verdict.average, verdict.limit, verdict.kept) == (100.5, 1_000, True)
    for costs in ((), ("cost", lambda *_: 0.0)):
        with pytest.raises(UserError, match=r"trained with the cost .*:load\(\): pass it as .*costs="):
            evaluate(costs=costs)


@pytest.fixture(scope="module")
def episodic_run(tmp_path_factory):
    """A run without a long run."""
    path = tmp_path_factory.mktemp("runs") / "episodic"
    return kemeny.train("InvertedPendulum-v5", out=path, algorithm="trpo", episodic=True, **{**TINY, "steps": 200})


@pytest.mark.parametrize("name", ["precision", "warm_up", "reset_cost"])
def test_an_episodic_run_takes_no_setting_of_the_long_run(name, episodic_run):
    with pytest.raises(UserError, match=f"no long run of an episodic run, .*: leave out {name}."):
        kemeny.evaluate(episodic_run, trajectories=1, max_steps=4, **{name: 1})


def test_a_checkpoint_is_found_from_inside_its_run(tiny_run, tmp_path, monkeypatch):
    path = tiny_run.path / "checkpoints" / "step-000000000400"
    outside = kemeny.evaluate(path, trajectories=1, max_steps=8)
    for here, name in ((path.parent, path.name), (path, "."), (tiny_run.path, f"checkpoints/{path.name}")):
        monkeypatch.chdir(here)
        assert kemeny.evaluate(name, trajectories=1, max_steps=8).record() == outside.record()
    monkeypatch.chdir(path.parent)
    run = kemeny.train("InvertedPendulum-v5", out=tmp_path / "next", init_from=path.name, **{**TINY, "steps": 200})
    assert run.config["init_from"]["steps"] == 400
    exported = np.load(kemeny.export(path.name, tmp_path / "policy.npz"))
    assert json.loads(str(exported["description"]))["environment"] == "InvertedPendulum-v5"


class Waits(Walk):
    """Costs whose names look like markup and like an emoji."""

    def step(self, action):
        return *super().step(action)[:4], {"wait[s]": 1.0, "wait[/s]": 2.0, ":car:": 3.0}


def test_names_are_shown_as_they_are():
    costs = ("wait[s]", "wait[/s]", ":car:")
    result = kemeny.evaluate(lambda _: [0.0], env=Waits, trajectories=1, max_steps=4, costs=costs)
    shown = str(dataclasses.replace(result, about="[bold]task[/x]"))
    assert shown.startswith("[bold]task[/x]\n")
    for name in costs:
        assert shown.count(f" {name} per step ") == 2  # in the returns and in the long run


def test_costs_of_the_same_name_have_a_row_and_a_column_each():
    costs = (load, functools.partial(load))
    result = kemeny.evaluate(lambda _: [0.0], env=Walk, trajectories=1, max_steps=4, costs=costs, keep_trajectory=True)
    assert str(result).count(":load per step ") == 4
    assert list(result.trajectory.cost_columns) == [f"cost_{__name__}:load", f"cost_{__name__}:load (2)"]


class Alike(Walk):
    """Two parts of the observation whose columns would have one name."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Dict({"a": spaces.Box(-1.0, 1.0, (2,)), "a_0": spaces.Discrete(3)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action):
        return self._seen(), *super().step(action)[1:]

    def _seen(self):
        return {"a": np.array([0.25, 0.5], np.float32), "a_0": 2}


def test_no_column_of_a_trajectory_is_lost(tmp_path):
    result = kemeny.evaluate(lambda _: [0.0], env=Alike, trajectories=1, max_steps=2, keep_trajectory=True)
    result.trajectory.write(tmp_path / "t.csv")
    with open(tmp_path / "t.csv", newline="") as file:
        header, first, _ = csv.reader(file)
    assert header[1:4] == ["observation_a_0", "observation_a_1", "observation_a_0 (2)"]
    assert first[1:4] == ["0.25", "0.5", "2"]


def test_one_of_a_thing_is_told_as_one():
    shown = str(kemeny.evaluate(lambda _: [0.0], env=Walk, trajectories=1, max_steps=1))
    assert "return, ≤ 1 step " in shown
    assert "1 trajectory of 1 step, going on" in shown
    assert "1 of 1 trajectory reached 1 step without a fall." in shown
    longer = str(kemeny.evaluate(lambda _: [0.0], env=Walk, trajectories=2, max_steps=1_200, warm_up=1))
    assert "2 trajectories of 1,200 steps, going on after a fall; the first 1 step is left out" in longer
