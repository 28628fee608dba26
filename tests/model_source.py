"""Batches drawn straight from a finite model: learning tests whose right answer a linear programme knows."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import linprog

from kemeny.learning.learner import Learner, State, init
from kemeny.learning.update import update
from kemeny.rollout import Rollout
from kemeny.spaces import Discrete
from kemeny.spec import Spec, vector
from kemeny.tabular import MDP


class ModelSource:
    """Many trajectories of a model, continued from batch to batch; observations are one-hot states."""

    def __init__(self, mdp: MDP, costs: list[np.ndarray], *, num_envs: int, batch_length: int, seed: int = 0):
        self.mdp, self.costs, self.batch_length = mdp, costs, batch_length
        self.rng = np.random.default_rng(seed)
        self.state = self.rng.choice(mdp.n_states, size=num_envs, p=mdp.start)
        self.spec = Spec(vector(mdp.n_states), Discrete(mdp.n_actions), None)

    def policy(self, state: State) -> np.ndarray:
        """π(a|s) of the network, states × actions."""
        logits = state.policy(state.normalizer(jnp.eye(self.mdp.n_states))).logits
        weights = np.exp(np.asarray(logits, np.float64))
        return weights / weights.sum(1, keepdims=True)

    def roll_out(self, state: State) -> Rollout:
        """The next batch of all trajectories."""
        ladder = np.cumsum(self.policy(state), axis=1)
        rows = (self.batch_length, len(self.state))
        states, actions = np.empty((self.batch_length + 1, rows[1]), np.int64), np.empty(rows, np.int64)
        for t in range(self.batch_length):
            states[t] = self.state
            actions[t] = (ladder[self.state] < self.rng.random((rows[1], 1)) * ladder[self.state, -1:]).sum(1)
            self.state = self.mdp.draw_next(self.state, actions[t], self.rng)
        states[-1] = self.state
        eye = np.eye(self.mdp.n_states, dtype=np.float32)
        return Rollout(
            observation=eye[states[:-1]],
            action=actions.astype(np.int32),
            signals=tuple(
                signal[states[:-1], actions].astype(np.float32) for signal in (self.mdp.rewards, *self.costs)
            ),
            next_observation=eye[states[1:]],
            terminal=np.zeros(rows, bool),
            cut=np.zeros(rows, bool),
            start_observation=eye[self.rng.choice(self.mdp.n_states, size=rows[1], p=self.mdp.start)],
        )

    def learn(self, learner: Learner, iterations: int, begin: State | None = None, seed: int = 0):
        """Train for some iterations; the state, and the metrics of each."""
        state = init(learner, self.spec, jax.random.key(seed)) if begin is None else begin
        history = []
        for _ in range(iterations):
            state, metrics = update(learner, state, self.roll_out(state))
            history.append(jax.device_get(metrics))
        return state, history


def constrained_optimum(mdp: MDP, costs: list[np.ndarray], limits: tuple[float, ...]) -> tuple[float, np.ndarray]:
    """The best reward per step that keeps every limit, and what a unit of each limit is worth."""
    n, actions = mdp.n_states, mdp.n_actions
    flow = np.repeat(np.eye(n), actions, axis=1) - mdp.transitions.reshape(n * actions, n).T
    found = linprog(
        -mdp.rewards.ravel(),
        A_ub=np.stack([cost.ravel() for cost in costs]),
        b_ub=limits,
        A_eq=np.vstack([flow, np.ones(n * actions)]),
        b_eq=np.append(np.zeros(n), 1.0),
    )
    assert found.status == 0, found.message
    return -found.fun, -found.ineqlin.marginals
