"""A task that is solved ends well; few states and tiny gradients lose no update."""

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import kemeny
from kemeny.errors import UserError
from kemeny.learning.steps.protocol import Outcome
from kemeny.learning.steps.trust_region import conjugate_gradient
from kemeny.runs import checkpoint
from kemeny.tabular import MDP
from tests.test_training import Listener


class Bandit(gymnasium.Env):
    """Three arms that pay 0, ½ and 1."""

    def __init__(self):
        self.observation_space, self.action_space = spaces.Box(-1, 1, (1,)), spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), int(action) / 2, False, False, {}


def test_a_solved_task_ends_normally_with_its_policy(tmp_path):
    listener = Listener()
    run = kemeny.train(
        Bandit, out=tmp_path / "run", steps=200_000, num_envs=4, batch_size=400, hidden=(16,), cut=100,
        eval_every=10**6, checkpoint_every=10**6, eval_max_steps=20, observers=[listener],
    )  # fmt: skip
    last = run.metrics[-1]
    assert last["steps"] < 200_000
    assert last["outcome"] == Outcome.FLAT
    assert run.evaluations[-1]["returns_20"] == [20.0] * 10
    assert checkpoint.latest(run.path).facts["steps"] == run.evaluations[-1]["steps"]
    assert run.policy(np.ones(1)) == 2
    assert any("nothing is left to gain" in message for message in listener.said)
    before = (run.path / "metrics.jsonl").read_bytes()
    assert kemeny.resume(run.path, env=Bandit).path == run.path  # it is finished, and stays so
    assert (run.path / "metrics.jsonl").read_bytes() == before


def few_states(seed=0, states=14, actions=3):
    """A model in which few states are visited: its Fisher matrix has low rank."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(states, 0.05), size=(states, actions))
    return MDP(P, rng.normal(size=(states, actions)))


def test_no_update_is_lost_where_few_states_are_visited(tmp_path):
    model = few_states()
    run = kemeny.train(
        model.as_gymnasium, out=tmp_path / "run", algorithm="trpo", gamma=0.8, steps=60_000, num_envs=4,
        batch_size=400, hidden=(16,), cut=100, eval_every=10**6, eval_max_steps=10,
    )  # fmt: skip
    outcomes = [line["outcome"] for line in run.metrics]
    assert not {Outcome.NON_FINITE, Outcome.CURVATURE} & set(outcomes)


@pytest.mark.parametrize("size", [1e20, 1.0, 1e-8, 3e-16, 1e-25])
def test_conjugate_gradient_on_a_matrix_of_low_rank(size):
    """It is solved in three iterations; the others must not divide rounding errors by each other."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(40, 3))
    H, g = jnp.array(A @ A.T + 0.01 * np.eye(40), jnp.float32), A @ rng.normal(size=3)
    x, least = conjugate_gradient(lambda v: H @ v, jnp.array(g * size, jnp.float32), 30)
    assert np.isfinite(x).all()
    assert 0 < least < np.inf
    residual = np.asarray(H, np.float64) @ np.asarray(x, np.float64) / size - g
    assert np.linalg.norm(residual) < 1e-4 * np.linalg.norm(g)


def test_a_trust_region_of_nothing_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"--delta is 0\.0; it must be above 0"):
        kemeny.train("Pendulum-v1", out=tmp_path / "run", delta=0)


def test_the_best_policy_under_a_limit_is_judged_as_it_explores():
    from kemeny.experience.evaluation import Evaluation

    def evaluation(reward, cost, exploring):
        trajectories = np.linspace(-0.02, 0.02, 10)[:, None]
        returns = {1_000: np.full(10, reward)}
        return Evaluation(returns, np.full(10, 1_000), cost + trajectories, 0, exploring + trajectories)

    slow, good = evaluation(698.0, 0.77, 0.7), evaluation(2_139.0, 2.29, 2.005)
    assert good.score((2.0,)) > slow.score((2.0,))  # 2.005 is within the noise of ten trajectories
    fast = evaluation(4_000.0, 3.0, 2.8)
    assert fast.score((2.0,)) < slow.score((2.0,))
    assert Evaluation.from_record(good.record()).score((2.0,)) == good.score((2.0,))


def test_an_evaluation_under_limits_has_the_costs_of_exploring(constrained_run):
    (record,) = constrained_run.evaluations
    assert len(record["exploring_costs"]) == len(record["average_costs"])
    assert record["exploring_costs"] != record["average_costs"]
