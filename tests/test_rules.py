"""Rules: for one observation or for many at once, from Python and by their names on the command line."""

import json

import numpy as np
import pytest

import kemeny
from kemeny.errors import UserError
from kemeny.tasks import LBFS, six_class
from tests.test_cli import command as command
from tests.test_evaluate_long import Crane, Nested, Switches


class ByRows:
    """A rule that can do both; the calls for many are counted."""

    def __init__(self, rule):
        self.rule, self.calls = rule, 0

    def __call__(self, observation):
        raise AssertionError("rows was to be called instead")

    def rows(self, observations):
        self.calls += 1
        count = len(observations["pair"][0]) if isinstance(observations, dict) else len(observations)
        return [self.rule(row_of(observations, i)) for i in range(count)]


class ByRowsWithMasks(ByRows):
    def rows(self, observations, masks=None):
        self.calls += 1
        return np.array([self.rule(row, mask) for row, mask in zip(observations, masks, strict=True)])


def row_of(observations, i):
    if isinstance(observations, dict):
        return {name: row_of(part, i) for name, part in observations.items()}
    if isinstance(observations, tuple):
        return tuple(row_of(part, i) for part in observations)
    return observations[i]


def nested(observation):
    """Depends on every part of the observation."""
    pair = observation["pair"]
    return [
        10 + (int(pair[0]) + int(observation["arm"]["on"].sum())) % 3,
        20 + int(pair[1].sum() + (observation["arm"]["angle"] > 0).sum()) % 4,
    ]


def crane(observation):
    return [0.1 * observation, 150.0 + 10 * observation]


def switches(observation, mask):
    return [4 + int(mask[1]), 2 * int(observation)]


def balance(observation):
    """Falls after some forty steps."""
    return int(observation[2] > 0)


@pytest.mark.parametrize(
    ("rule", "env", "many"),
    [
        (nested, Nested, ByRows),
        (crane, Crane, ByRows),
        (balance, "CartPole-v1", ByRows),
        (switches, Switches, ByRowsWithMasks),
    ],
    ids=["parts", "continuous", "falls", "masks"],
)
def test_a_rule_for_many_at_once_gives_the_same_evaluation(rule, env, many):
    many = many(rule)
    one, all_at_once = (
        kemeny.evaluate(policy, env=env, trajectories=5, max_steps=200, keep_trajectory=True) for policy in (rule, many)
    )
    assert one.full_record() == all_at_once.full_record()
    for name, column in one.trajectory.columns.items():
        np.testing.assert_array_equal(column, all_at_once.trajectory.columns[name])
    falls = one.long_run.falls
    assert (falls > 0) == (env == "CartPole-v1")
    assert 2 * 200 <= many.calls <= 2 * 2 * 200  # two pools, each in at most two groups: before and after a fall


class Returns:
    """Returns this for every row but the second, for which it returns something else."""

    def __init__(self, usual, second):
        self.usual, self.second = usual, second

    def __call__(self, observation):
        return self.usual

    def rows(self, observations):
        return np.array([self.second if i == 1 else self.usual for i in range(len(observations))])


class Returned:
    def __init__(self, given):
        self.given = given

    def __call__(self, observation):
        return 0

    def rows(self, observations):
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


@pytest.mark.parametrize(
    ("rule", "env", "why"),
    [
        (Returns([0.0, 200.0], [np.nan, 1.0]), Crane, r"returned \[nan, 1.0\], but the actions are finite numbers of"),
        (Returns(0, 7), "CartPole-v1", r"returned 7, but the actions are whole numbers from 0 to 1\."),
        (Returns(0.0, 1.0), "CartPole-v1", r"returned 0.0, but the actions are whole numbers"),
        (Returns([5, 0], [4, 0]), Switches, r"returned \[4, 0\], which the action mask forbids in choice 0 .*masks"),
        (
            Returned(np.zeros((2, 3), int)),
            "CartPole-v1",
            r"returned shape \(2, 3\) for 2 observations, but the actions",
        ),
        (Returned(np.zeros(3, int)), "CartPole-v1", r"returned shape \(3,\) for 2 observations"),
        (Returned(None), "CartPole-v1", r"returned shape \(\) for 2 observations"),
        (Returned([[0], [0, 0]]), "CartPole-v1", "returned no array of numbers"),
        (Returned(KeyError("level")), "CartPole-v1", "raised KeyError: 'level'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_row_gets_the_sentence_of_a_bad_action(rule, env, why):
    with pytest.raises(UserError, match=f"^The rule tests.test_rules:Return(s|ed) {why}") as refused:
        kemeny.evaluate(rule, env=env, trajectories=4, max_steps=3)
    assert str(refused.value).count("\n") == 0


def test_one_action_per_row_may_be_a_column():
    """Of a space of single numbers, as from one observation."""
    flat, column = (
        kemeny.evaluate(Returned(np.zeros(shape, int)), env="CartPole-v1", trajectories=2, max_steps=5)
        for shape in ((1,), (1, 1))
    )
    assert flat.full_record() == column.full_record()


FLAGS = ("--trajectories", "4", "--max-steps", "300")
SIX = ("--env", "kemeny/SixClass-v0", "--env-kwargs", '{"classes": 9}')


def test_a_rule_by_its_name_is_the_rule_from_python(command, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "from kemeny.tasks import LBFS\n"
        "def lean(observation): return int(observation[2] > 0)\n"
        "def for_process(process): return LBFS(process)\n"
        "class Lean:\n"
        "    def __call__(self, observation): return lean(observation)\n"
    )
    expected = kemeny.evaluate(
        LBFS(six_class(9)), env="kemeny/SixClass-v0", env_kwargs={"classes": 9}, trajectories=4, max_steps=300
    )
    for name in ("kemeny.tasks:LBFS", "mine:for_process", "mine.py:for_process"):
        code, out, err = command("evaluate", *SIX, "--rule", name, *FLAGS, "--json")
        assert code == 0, err
        assert json.loads(out) == expected.full_record()
    code, out, err = command("evaluate", *SIX, "--rule", "kemeny.tasks:LBFS", *FLAGS)
    assert (code, [line.rstrip() for line in out.splitlines()]) == (0, str(expected).splitlines()), err
    expected = kemeny.evaluate(lambda x: int(x[2] > 0), env="CartPole-v1", trajectories=4, max_steps=300)
    for name in ("mine.py:lean", "mine:Lean"):
        code, out, err = command("evaluate", "--env", "CartPole-v1", "--rule", name, *FLAGS, "--json")
        assert code == 0, err
        assert json.loads(out) == expected.full_record()


def test_a_file_of_the_first_trajectory_of_a_rule(command, tmp_path):
    flags = ("--trajectories", "2", "--max-steps", "50", "--trajectory", "first.csv")
    code, _, err = command("evaluate", *SIX, "--rule", "kemeny.tasks:MaxWeight", *flags)
    assert code == 0, err
    assert len((tmp_path / "first.csv").read_text().splitlines()) == 51


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "There is nothing to evaluate: name a run directory alone, or --env ENV with --rule"),
        (["--env", "CartPole-v1"], "--env says where, but not what is evaluated"),
        (["--rule", "kemeny.tasks:LBFS"], "on which environment the rule kemeny.tasks:LBFS is evaluated: add --env"),
        (["runs/a", "--rule", "kemeny.tasks:LBFS"], "Evaluate a run or a rule: runs/a is a run"),
        (["runs/a", "--env", "CartPole-v1"], "leave out --env; or leave out runs/a"),
        (["runs/a", "--env-kwargs", "{}"], "leave out --env-kwargs"),
        ([*SIX, "--rule", "LBFS"], "'LBFS' cannot be the name of a rule: write module:rule"),
        ([*SIX, "--rule", "rules.py"], "'rules.py' cannot be the name of a rule"),
        ([*SIX, "--rule", "kemeny.tasks:LBFG"], "kemeny.tasks has no rule 'LBFG'; did you mean LBFS?"),
        ([*SIX, "--rule", "nowhere_at_all:LBFS"], "needs the module nowhere_at_all, which is neither installed"),
        ([*SIX, "--rule", "rules.py:LBFS"], "needs the file rules.py, which does not exist"),
        ([*SIX, "--rule", "kemeny:__version__"], "kemeny has no rule '__version__'"),
        ([*SIX, "--rule", "math:pi"], "math:pi is of type float: name a function"),
        ([*SIX, "--rule", "kemeny.tasks:Activity"], "could not be made: it raised TypeError"),
        ([*SIX, "--rule", "tests.probes:Walk"], "made an object of type Walk, which cannot be called"),
        ([*SIX, "--rule", "kemeny.tasks:LBFS", "--best"], "--best is for runs, not for a rule"),
        ([*SIX, "--rule", "kemeny.tasks:LBFS", "--video", "a.mp4"], "--video is for runs"),
        (["--env", "kemeny/SixClass-v0", "--env-kwargs", "9", "--rule", "kemeny.tasks:LBFS"], "it must be an object"),
        (["--env", "kemeny/SixClas-v0", "--rule", "kemeny.tasks:LBFS"], "did you mean kemeny/SixClass-v0"),
        (
            ["--env", "CartPole-v1", "--rule", "kemeny.tasks:LBFS"],
            "makes a rule for a process, but CartPole-v1 has none",
        ),
        (["--env", "Ant-v4", "--rule", "kemeny.tasks:LBFS"], "but Ant-v4 has none"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_combinations_get_a_sentence(arguments, why, command):
    code, out, err = command("evaluate", *arguments)
    assert (code, out) == (2, "")
    assert why in err
    assert err.count("\n") == 1
