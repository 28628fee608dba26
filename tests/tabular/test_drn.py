"""Storm's explicit files: small models, written as Storm writes them, with answers computed by hand."""

import numpy as np
import pytest

from kemeny.cli.exact import exact
from kemeny.errors import Renormalised, UserError
from kemeny.tabular import MDP, solve, zoo

HEADER = """// Exported by storm
// Original model type: {kind}
@type: {kind}
@value_type: double
@parameters

@reward_models
{rewards}
@nr_states
{states}
@nr_choices
{choices}
@model
"""

MACHINE = """state 0 [3, 0] init works
//[age=0]
	action keep [0, 0]
		0 : 0.9
		1 : 0.1
state 1 [0, 1] "is broken" init
	action wait [0, 0]
		1 : 1
	action repair [-2, 0]
		0 : 0.5
		1 : 0.5
"""
"""Repaired, it is broken a sixth of the time, and pays 3·5/6 − 2/6 = 13/6 per step."""

QUEUE = """state 0 !1 [0] init empty
	action 0 [0]
		1 : 1
state 1 !3 [1]
	action 0 [5]
		0 : 2
		2 : 1
state 2 !4 [2]
	action 0 [5]
		1 : 2
		2 : 2
"""
"""M/M/1/2, arrival rate 1, service rate 2: the shares of time are 4/7, 2/7 and 1/7. The self-loop changes none of them,
but it is a way to leave, and that pays."""


def write(tmp_path, body, kind="MDP", rewards="profit downtime ", states=2, choices=3, header=HEADER):
    path = tmp_path / "model.drn"
    path.write_text(header.format(kind=kind, rewards=rewards, states=states, choices=choices) + body)
    return path


def test_an_mdp(tmp_path):
    mdp = MDP.load(write(tmp_path, MACHINE))
    assert (mdp.n_states, mdp.n_actions, mdp.name) == (2, 2, "model")
    assert mdp.allowed.tolist() == [[True, False], [True, True]]
    assert mdp.rewards.tolist() == [[3, 0], [0, -2]]
    assert mdp.start.tolist() == [0.5, 0.5]
    assert mdp.costs is None
    assert solve.linear_programme(mdp).gain == pytest.approx(13 / 6)
    limited = MDP.load(write(tmp_path, MACHINE), costs="downtime")
    assert solve.linear_programme(limited, 0.2).cost == pytest.approx(1 / 6)
    broken = MDP.load(write(tmp_path, MACHINE), reward="is broken", costs="works")
    assert solve.multichain_policy_iteration(broken).gain.tolist() == [1, 1]
    assert broken.costs.tolist() == [[1, 0], [0, 0]]


def test_a_ctmc_per_unit_of_time(tmp_path):
    """Customers: 2/7 + 2·1/7. Each leaving of state 1 or 2 pays 5: 5·(3·2/7 + 4·1/7)."""
    path = write(tmp_path, QUEUE, "CTMC", "customers", 3, 3)
    mdp = MDP.load(path)
    value = mdp.evaluate(np.zeros(3, dtype=int))
    np.testing.assert_allclose(value.stationary, [4 / 7, 2 / 7, 1 / 7])
    assert value.rho == pytest.approx(4 / 7 + 50 / 7)
    assert MDP.load(path, reward="empty").evaluate(np.zeros(3, dtype=int)).rho == pytest.approx(4 / 7)


def test_fractions_unnamed_rewards_and_old_headers(tmp_path):
    """Older files have no @value_type and no @nr_choices; a PRISM model may leave its rewards without a name."""
    old = "@type: DTMC\n@parameters\n\n@reward_models\n \n@nr_states\n2\n@model\n"
    body = "state 0 [6]\n\taction 0 [0]\n\t\t0 : 1/3\n\t\t1 : 2/3\nstate 1 [0]\n\taction 0 [0]\n\t\t0 : 1\n"
    mdp = MDP.load(write(tmp_path, body, header=old))
    assert mdp.evaluate([0, 0]).rho == pytest.approx(6 * 0.6)
    assert MDP.load(tmp_path / "model.drn", reward="").rewards.tolist() == [[6], [0]]
    assert mdp.start.tolist() == [0.5, 0.5]


def test_printed_probabilities_are_renormalised_and_it_is_said_once(tmp_path):
    path = write(tmp_path, MACHINE.replace("0 : 0.5", "0 : 0.499999").replace("0.1", "0.10000000001"))
    with pytest.warns(Renormalised) as said:
        mdp = MDP.load(path)
    (sentence,) = (str(warning.message) for warning in said)
    assert "the probabilities of 2 actions did not sum to 1" in sentence
    assert "the largest difference, 1.0e-06, is in line 22" in sentence
    assert said[0].filename == __file__
    np.testing.assert_allclose(mdp.transitions.sum(axis=2), mdp.allowed, atol=1e-15)


@pytest.mark.parametrize(
    "mdp",
    [
        zoo.queue_admission(),
        zoo.garnet(20, 3, sparse=True),
        MDP.from_pairs([0, 0, 1], [0, 2, 1], np.eye(2)[[0, 1, 0]], [0.1, 1 / 3, 2]),
        MDP(np.full((3, 1, 3), 1 / 3), [1, 2, 3]),
    ],
    ids=["costs", "sparse", "forbidden actions", "chain"],
)
def test_what_is_written_is_read(mdp, tmp_path):
    mdp.save(tmp_path / "model.drn")
    read = MDP.load(tmp_path / "model.drn", costs=None if mdp.costs is None else "cost")
    np.testing.assert_array_equal(read.transitions, mdp.transitions)
    for mine, theirs in ((read.rewards, mdp.rewards), (read.costs, mdp.costs), (read.allowed, mdp.allowed)):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_allclose(read.start, mdp.start)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("@type: MDP", "hello", r"line 3: this is no \.drn file: .* not 'hello'"),
        ("@type: MDP", "@type: POMDP", r"line 3: a model of type 'POMDP' is not supported \(its states are not"),
        ("@type: MDP", "@type: Markov Automaton", "line 3: .* immediate states"),
        ("@type: MDP", "", "line 13: the header needs @type and @nr_states"),
        ("@type: MDP", "@type: DTMC", "line 22: state 1 of a DTMC has a second action"),
        ("@value_type: double", "@value_type: parametric", "line 4: values of the type 'parametric'"),
        ("@value_type: double", "@colour: red", "line 4: '@colour: red' is not known"),
        ("@parameters\n", "@parameters\np q", r"line 6: the model has parameters \(p q\)"),
        ("@nr_states\n2", "@nr_states\nmany", "line 10: after @nr_states a number was expected, not 'many'"),
        ("@nr_states\n2", "@nr_states\n900000000000", "announces 900,000,000,000 states in its header, but it has 2"),
        ("@nr_states\n2", "@nr_states\n1", "line 19: the header announces 1 state, but here is one more"),
        ("@nr_choices\n3", "@nr_choices\n4", "announces 4 actions"),
        ("@model\n", "", "line 13: this is no .drn file"),
        ("state 1 [0, 1]", "state 2 [0, 1]", "line 19: state 1 was expected, not '2'"),
        ("state 1 [0, 1]", "state 0 [0, 1]", "line 19: state 1 was expected, not '0'"),
        ("state 1 [0, 1]", "state 1 [0, 1", "line 19: the bracket of the rewards is not closed"),
        ("state 1 [0, 1]", "state 1 [0, x]", "line 19: a number was expected, not 'x'; models with parameters"),
        ("state 1", "stat 1", "line 19: a state, an action or a transition was expected, not 'stat 1"),
        ("1 : 1\n", "", "line 20: this action has no transitions"),
        ("0 : 0.9", "0 : 0.8", r"line 16: the probabilities of this action sum to 0\.9, not to 1"),
        ("0 : 0.9", "0 : [0.8, 0.9]", "line 17: a number was expected, not .* intervals are not supported"),
        ("0 : 0.9", "0 : $1", "line 17: .* parameters are not supported"),
        ("0 : 0.9", "0 0.9", "line 17: a transition such as '4 : 0.25' was expected"),
        ("0 : 0.9", "0 : 1/0", "line 17: a number was expected, not '1/0'"),
        ("0 : 0.9", "99999999999999999999 : 0.9", "line 17: a transition such as"),
        ("0 : 0.9", "7 : 0.9", "line 16: a transition of this action leads to state 7, but the states are 0 to 1"),
        ("0 : 0.9", "0 : nan", "line 16: a transition of this action has the value nan"),
        ("0 : 0.9", "0 : -0.9", "line 16: .* has the value -0.9"),
        ("\taction keep [0, 0]\n", "", "line 16: a transition before the first action"),
        ("state 0 [3, 0] init works\n", "", "line 15: an action before the first state"),
        (MACHINE[MACHINE.index("\taction wait") :], "", "the last state, 1, has no action; perhaps the end is missing"),
        (MACHINE[MACHINE.index('state 1 [') :], "", "but it has 1; perhaps the end is missing"),
        (MACHINE, "", "announces 2 states in its header, but it has 0"),
    ],
)  # fmt: skip
def test_files_that_are_refused(tmp_path, old, new, sentence):
    path = write(tmp_path, MACHINE)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UserError, match=sentence):
        MDP.load(path)


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (
            lambda path: MDP.load(path, reward="wages"),
            "no reward model or label 'wages'. Reward models: 'profit', 'dow",
        ),
        (lambda path: MDP.load(path.with_name("none.drn")), "does not exist"),
        (lambda path: MDP.load(path.parent.rename(path.parent.with_suffix(".drn"))), "cannot be read"),
        (lambda path: MDP.load(path.with_suffix(".npz"), reward="x"), "Only a .drn file names its rewards"),
        (lambda path: MDP(np.eye(2)[:, None], [0, 0], start=[0.3, 0.7]).save(path), "different probabilities"),
        (lambda path: MDP.load(without_rewards(path)), "no rewards; name a label .* reward='works' or 'is broken'"),
        (lambda path: MDP.load(binary(path)), "line 1: this is no .drn file"),
    ],
)
def test_requests_that_are_refused(tmp_path, ask, sentence):
    with pytest.raises(UserError, match=sentence):
        ask(write(tmp_path, MACHINE))


def test_a_ctmc_whose_exit_rate_is_wrong_or_missing(tmp_path):
    for new, sentence in (("!3.1 [1]", "rates of state 1 sum to 3, but its exit rate is 3.1"), ("[1]", "such as !2.5")):
        path = write(tmp_path, QUEUE.replace("!3 [1]", new), "CTMC", "customers", 3, 3)
        with pytest.raises(UserError, match=sentence):
            MDP.load(path)


def without_rewards(path):
    path.write_text("\n".join(line.split(" [")[0] if "action" in line else line for line in bare(path)))
    return path


def bare(path):
    return [line.replace(" [3, 0]", "").replace(" [0, 1]", "") for line in path.read_text().splitlines()]


def binary(path):
    path.write_bytes(np.random.default_rng(0).bytes(3000))
    return path


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, MACHINE.replace("1 : 0.1", "1 : 0.10000000001"))
    exact(path, reward="profit", costs="downtime", limit=0.5)
    printed = capsys.readouterr()
    assert "did not sum to 1" in printed.err
    assert "Best gain 2.1666666" in printed.out
    with pytest.raises(UserError, match="leave out --reward and --costs"):
        exact(zoo="riverswim", reward="profit")
