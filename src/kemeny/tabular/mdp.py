"""A finite Markov decision process (MDP), the chain of a policy, and the values of a policy.

Both criteria evaluate a policy by the affine equation of `kemeny.criterion`, v = r − offset + discount · P v.
"""

import dataclasses
import functools
from typing import Any, Literal, NoReturn

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla

from kemeny.criterion import Average, Bellman, Criterion
from kemeny.errors import UserError
from kemeny.tabular.chain import Chain
from kemeny.tabular.sparse import DIRECT_FIRST, krylov
from kemeny.tabular.structure import show_states, stochastic
from kemeny.tabular.transitions import Stacked, read_allowed, stack_pairs, stack_transitions, without_forbidden

SignalName = Literal["reward", "cost"]


@dataclasses.dataclass(frozen=True, eq=False)
class PolicyValues:
    """ρ, V, Q, A and the visitation of one policy under one criterion (§2), exact.

    Arrays have one entry per state, or are states × actions. Of a forbidden pair Q and A are −∞, or +∞ if the signal is
    the cost: nobody who looks for the best action finds it.
    """

    rho: float
    """ρ(π), the signal per step; for the discounted criterion ρ_γ(π) = E[Σ γᵗ rₜ] from the start distribution."""

    value: np.ndarray
    """V̄ with d·V̄ = 0, or V_γ."""

    action_value: np.ndarray
    """Q̄ or Q_γ."""

    advantage: np.ndarray
    """Q − V."""

    visitation: np.ndarray
    """The stationary distribution d_π, or the discounted visitation d_{π,γ}; each sums to 1."""

    policy: np.ndarray
    """The probabilities of the policy, states × actions."""

    chain: Chain
    """The chain of the states under the policy."""

    criterion: Criterion
    bellman: Bellman

    @property
    def bias(self) -> np.ndarray:
        """V̄(s): how much more reward a start in s earns, in total, than ρ per step."""
        self._require_average("bias", "value")
        return self.value

    @property
    def action_bias(self) -> np.ndarray:
        """Q̄(s, a)."""
        self._require_average("action_bias", "action_value")
        return self.action_value

    @property
    def stationary(self) -> np.ndarray:
        """d_π."""
        self._require_average("stationary", "visitation")
        return self.visitation

    def expected_advantage(self, policy: np.ndarray) -> np.ndarray:
        """E_{a∼policy}[A(s, a)] for each state."""
        return average_over(policy, self.advantage)

    def _require_average(self, name: str, instead: str) -> None:
        if not isinstance(self.criterion, Average):
            raise UserError(f"Values under the discounted criterion have no {name}; use {instead}.")


def average_over(policy: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Σ_a π(a|s)·values(s, a) for each state; the values of actions that the policy never takes may be infinite."""
    return np.einsum("sa,sa->s", policy, np.where(policy == 0, 0.0, values))


@dataclasses.dataclass(frozen=True, eq=False)
class Trajectories:
    """Sampled transitions; every array is time × trajectories."""

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    costs: np.ndarray | None
    next_states: np.ndarray


class MDP:
    """A finite model: its transitions, its rewards and, if it has them, its costs.

    A state may forbid some of the actions. Of a forbidden pair (state, action) the transitions are empty, `rewards` and
    `costs` are 0, and `rewards_by_action` is −∞: a maximum over actions needs to know nothing else.
    """

    def __init__(
        self,
        P: Any,
        r: Any,
        costs: Any = None,
        start: Any = None,
        name: str = "model",
        allowed: Any = None,
        grid: tuple[int, ...] | None = None,
        edge: Any = None,
    ):
        """Check and store a model.

        `P`: an array S × A × S, or a list of A sparse S × S matrices (they stay sparse). `r` and `costs`: S × A, or S
        (the same for every action), or, if P is dense, S × A × S (then the mean over the next state is used). `start`:
        the distribution of the first state, uniform by default; of the values, only the discounted depend on it.
        `allowed`: S × A, True where a state allows an action, everywhere by default; what P, r and costs hold elsewhere
        is ignored.

        Two facts about a model that was cut out of an infinite one, if it was: `grid`, the shape of the grid whose
        points are the states, numbered as by `numpy.ravel_multi_index`; and `edge`, one boolean per state, which says
        whether the cut changed the transitions of the state.
        """
        self.name = name
        self.P = stack_transitions(P)
        self.n_states = self.P.shape[1]
        self.n_actions = self.P.shape[0] // self.n_states
        self.allowed = read_allowed(allowed, self.n_states, self.n_actions)
        """Which pairs are allowed, S × A; None if all are."""
        forbidden = None if self.allowed is None else ~self.allowed.T.ravel()
        self.P = stochastic(without_forbidden(self.P, self.allowed), label=self._name_row, empty=forbidden)
        self.rewards = self._signal(r, "rewards")
        self.costs = None if costs is None else self._signal(costs, "costs")
        self.start = np.full(self.n_states, 1 / self.n_states) if start is None else np.array(start, dtype=float)
        if self.start.shape != (self.n_states,):
            raise UserError(f"The start distribution has shape {self.start.shape}, but it needs {(self.n_states,)}.")
        self.start = stochastic(self.start[None, :], "start distribution")[0]
        self.grid = grid
        if grid is not None and np.prod(grid) != self.n_states:
            raise UserError(f"A grid of shape {grid} has {np.prod(grid)} points, but the model {self.n_states} states.")
        self.edge = None if edge is None else np.array(edge, dtype=bool)
        if self.edge is not None and self.edge.shape != (self.n_states,):
            raise UserError(f"The edge has shape {self.edge.shape}, but it needs {(self.n_states,)}.")

    def _name_row(self, row: int) -> str:
        return f"(state {row % self.n_states}, action {row // self.n_states})"

    def _signal(self, given: Any, what: str) -> np.ndarray:
        signal = np.array(given, dtype=float)
        shape = (self.n_states, self.n_actions)
        if signal.shape == (*shape, self.n_states) and not self.is_sparse:
            signal = np.einsum("sat,sat->sa", self.transitions, signal)
        elif signal.shape == (self.n_states,):
            signal = np.repeat(signal[:, None], self.n_actions, axis=1)
        if signal.shape != shape:
            raise UserError(f"The {what} have shape {signal.shape}, but the transitions need {shape}.")
        signal = self.forbid(signal, 0.0)
        if not np.all(np.isfinite(signal)):
            state, action = np.argwhere(~np.isfinite(signal))[0]
            advice = "; to forbid an action, use allowed=…" if np.isneginf(signal[state, action]) else ""
            raise UserError(f"The {what} of state {state}, action {action} are not finite{advice}.")
        return signal

    def __repr__(self) -> str:
        kind = "sparse" if self.is_sparse else "dense"
        pairs = "" if self.allowed is None else f", {int(self.allowed.sum())} allowed pairs"
        return f"MDP({self.name}: {self.n_states} states, {self.n_actions} actions{pairs}, {kind})"

    @property
    def is_sparse(self) -> bool:
        """Whether the transitions are stored as a sparse matrix."""
        return sp.issparse(self.P)

    @functools.cached_property
    def by_action(self) -> tuple[Any, ...]:
        """The S × S transition matrix of each action; these are views of the stacked (A·S) × S matrix, not copies."""
        n = self.n_states
        if not self.is_sparse:
            return tuple(self.P[a * n : (a + 1) * n] for a in range(self.n_actions))
        views = []
        for a in range(self.n_actions):
            begin, end = self.P.indptr[a * n], self.P.indptr[(a + 1) * n]
            pointers = self.P.indptr[a * n : (a + 1) * n + 1] - begin
            views.append(sp.csr_array((self.P.data[begin:end], self.P.indices[begin:end], pointers), shape=(n, n)))
        return tuple(views)

    @functools.cached_property
    def rewards_by_action(self) -> np.ndarray:
        """The rewards as a contiguous A × S array, the layout that the solvers read; −∞ at forbidden pairs."""
        return np.ascontiguousarray(self.forbid(self.rewards).T)

    @property
    def transitions(self) -> np.ndarray:
        """The transitions as a dense S × A × S array; the rows of forbidden pairs are 0."""
        matrix = self.P.toarray() if self.is_sparse else self.P
        return matrix.reshape(self.n_actions, self.n_states, self.n_states).transpose(1, 0, 2)

    def expect(self, v: np.ndarray) -> np.ndarray:
        """Σ_{s'} P(s'|s, a)·v(s'), an array states × actions; 0 at forbidden pairs."""
        return (self.P @ v).reshape(self.n_actions, self.n_states).T

    def forbid(self, values: np.ndarray, value: float = -np.inf) -> np.ndarray:
        """Values of pairs, S × A, with this value at the forbidden ones; they themselves if all pairs are allowed."""
        return values if self.allowed is None else np.where(self.allowed, values, value)

    def signal(self, signal: SignalName) -> np.ndarray:
        """The rewards or the costs."""
        if signal == "reward":
            return self.rewards
        if self.costs is None:
            raise UserError(f"The model {self.name} has no costs; set them with MDP(P, r, costs=…).")
        return self.costs

    # Policies

    def policy(self, policy: Any) -> np.ndarray:
        """A policy as probabilities, S × A. A deterministic policy may be given as S integers, one action per state."""
        given = np.asarray(policy)
        if given.shape == (self.n_states,):
            self._check_actions(given)
            chosen = np.zeros((self.n_states, self.n_actions))
            chosen[np.arange(self.n_states), given] = 1.0
            return chosen
        if given.shape != (self.n_states, self.n_actions):
            raise UserError(
                f"The policy has shape {given.shape}, but it needs {(self.n_states,)} (one action per state) or "
                f"{(self.n_states, self.n_actions)} (probabilities)."
            )
        weights = stochastic(given.astype(float), "policy")
        if self.allowed is not None and (weights[~self.allowed] > 0).any():
            self._refuse_forbidden(*np.argwhere((weights > 0) & ~self.allowed)[0])
        return weights

    @property
    def uniform_policy(self) -> np.ndarray:
        """The policy that takes every allowed action with the same probability."""
        if self.allowed is None:
            return np.full((self.n_states, self.n_actions), 1 / self.n_actions)
        return self.allowed / self.allowed.sum(axis=1, keepdims=True)

    def chain(self, policy: Any) -> Chain:
        """The Markov chain of the states under a policy."""
        given = np.asarray(policy)
        if given.ndim == 1:
            self._check_actions(given)
            return Chain.trusted(self.P[given * self.n_states + np.arange(self.n_states)], self.grid)
        weights = self.policy(given)
        if not self.is_sparse:
            stacked = self.P.reshape(self.n_actions, self.n_states, self.n_states)
            return Chain.trusted(np.einsum("sa,ast->st", weights, stacked))
        states, actions = np.nonzero(weights)
        pairs = (weights[states, actions], (states, actions * self.n_states + states))
        mixed = sp.csr_array(sp.csr_array(pairs, shape=self.P.shape[::-1]) @ self.P)
        mixed.sort_indices()
        return Chain.trusted(mixed, self.grid)

    def _check_actions(self, given: np.ndarray) -> None:
        if given.shape != (self.n_states,):
            raise UserError(f"The policy has {len(given)} actions, but the model has {self.n_states} states.")
        if not np.issubdtype(given.dtype, np.integer):
            raise UserError("A policy with one number per state must hold integers: the action in each state.")
        if given.min() < 0 or given.max() >= self.n_actions:
            state = int(np.argmax((given < 0) | (given >= self.n_actions)))
            last = self.n_actions - 1
            raise UserError(f"The policy takes action {given[state]} in state {state}, but actions are 0 to {last}.")
        if self.allowed is not None:
            forbidden = ~self.allowed[np.arange(self.n_states), given]
            if forbidden.any():
                state = int(np.argmax(forbidden))
                self._refuse_forbidden(state, given[state])

    def _refuse_forbidden(self, state: int, action: int, who: str = "The policy takes") -> NoReturn:
        assert self.allowed is not None
        raise UserError(
            f"{who} action {action} in state {state}, which is forbidden there; the allowed actions are "
            f"{show_states(np.flatnonzero(self.allowed[state]))}."
        )

    # Values

    def evaluate(self, policy: Any, criterion: Criterion | None = None, signal: SignalName = "reward") -> PolicyValues:
        """ρ, V, Q, A and the visitation of a policy; the criterion is `Average` by default (§2, Appendix A).

        Under `Average` the chain of the policy must have one recurrent class; otherwise use `gain_and_bias`.
        """
        criterion = Average() if criterion is None else criterion
        weights, chain, payoff = self.policy(policy), self.chain(policy), self.signal(signal)
        earned = np.einsum("sa,sa->s", weights, payoff)
        if isinstance(criterion, Average):
            rho, value = chain.gain_and_bias(earned)
            visitation = chain.stationary
        else:
            value = solve_discounted(chain, earned, criterion.gamma)
            visitation = (1 - criterion.gamma) * solve_discounted(chain, self.start, criterion.gamma, transposed=True)
            rho = float(self.start @ value)
        bellman = criterion.bellman(rho)
        action_value = payoff - bellman.offset + bellman.discount * self.expect(value)
        action_value = self.forbid(action_value, np.inf if signal == "cost" else -np.inf)
        return PolicyValues(
            rho=rho,
            value=value,
            action_value=action_value,
            advantage=action_value - value[:, None],
            visitation=visitation,
            policy=weights,
            chain=chain,
            criterion=criterion,
            bellman=bellman,
        )

    def gain_and_bias(self, policy: Any, signal: SignalName = "reward") -> tuple[np.ndarray, np.ndarray]:
        """The gain P*·r and the bias (Z − P*)·r from each start state, also with several recurrent classes."""
        weights, chain = self.policy(policy), self.chain(policy)
        earned = np.einsum("sa,sa->s", weights, self.signal(signal))
        if chain.is_unichain:
            gain, bias = chain.gain_and_bias(earned)
            return np.full(self.n_states, gain), bias
        return chain.limiting @ earned, chain.deviation @ earned

    # Samples

    @functools.cached_property
    def _sampler(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The cumulative probabilities of all rows, one row after another: one binary search draws a next state."""
        matrix = self.P if self.is_sparse else sp.csr_array(self.P)
        ends = np.cumsum(matrix.data)
        return matrix.indptr, matrix.indices, ends

    def draw_next(self, states: np.ndarray, actions: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw one next state per pair of state and action."""
        if self.allowed is not None and not self.allowed[states, actions].all():
            wrong = int(np.argmin(self.allowed[states, actions]))
            self._refuse_forbidden(states[wrong], actions[wrong], "Somebody took")
        pointers, successors, ends = self._sampler
        row = actions * self.n_states + states
        first, last = pointers[row], pointers[row + 1] - 1
        before = np.where(first > 0, ends[first - 1], 0.0)
        target = before + rng.random(len(row)) * (ends[last] - before)
        return successors[np.clip(np.searchsorted(ends, target, side="right"), first, last)]

    def sample(self, policy: Any, steps: int, rng: np.random.Generator, trajectories: int = 1) -> Trajectories:
        """Follow a policy for some steps; the first state of each trajectory is drawn from the start distribution."""
        cumulative = np.cumsum(self.policy(policy), axis=1)
        state = rng.choice(self.n_states, size=trajectories, p=self.start)
        states = np.empty((steps + 1, trajectories), dtype=np.int64)
        actions = np.empty((steps, trajectories), dtype=np.int64)
        for t in range(steps):
            states[t] = state
            drawn = rng.random((trajectories, 1)) * cumulative[state, -1:]
            actions[t] = (cumulative[state] <= drawn).sum(axis=1)
            state = self.draw_next(state, actions[t], rng)
        states[steps] = state
        costs = None if self.costs is None else self.costs[states[:-1], actions]
        return Trajectories(states[:-1], actions, self.rewards[states[:-1], actions], costs, states[1:])

    # Files and environments: see formats.py and environment.py

    @classmethod
    def from_pairs(
        cls,
        states: Any,
        actions: Any,
        P: Any,
        r: Any,
        costs: Any = None,
        start: Any = None,
        name: str = "model",
    ) -> "MDP":
        """Make a model from its allowed pairs: row i of `P` (L × S, sparse or dense) is where (sᵢ, aᵢ) leads.

        `r` and `costs` have one entry per pair. A pair that is not listed is forbidden.
        """
        stacked, allowed, signals = stack_pairs(states, actions, P, {"rewards": r, "costs": costs})
        return cls(Stacked(stacked), signals["rewards"], signals.get("costs"), start, name, allowed)

    def save(self, path: Any) -> None:
        """Write the model to a file: .npz or, for Storm, .drn."""
        from kemeny.tabular import formats

        formats.save(self, path)

    @classmethod
    def load(cls, path: Any, reward: str | None = None, costs: str | None = None) -> "MDP":
        """Read a model from a .npz file or from one of Storm's .drn files.

        In a .drn file `reward` and `costs` name a reward model, or a label whose states pay 1; by default the rewards
        are the first reward model.
        """
        from kemeny.tabular import formats

        return formats.load(path, reward, costs)

    @classmethod
    def from_gymnasium(cls, env: Any, reset_cost: float = 0.0) -> "MDP":
        """Make a continuing model from a toy-text environment, which has a transition table `P`."""
        from kemeny.tabular import formats

        return formats.from_gymnasium(env, reset_cost)

    def as_gymnasium(self) -> Any:
        """The model as a Gymnasium environment that never ends."""
        from kemeny.tabular.environment import MDPEnv

        return MDPEnv(self)


def solve_discounted(
    chain: Chain, right: np.ndarray, gamma: float, transposed: bool = False, guess: np.ndarray | None = None
) -> np.ndarray:
    """(I − γP)⁻¹·b, the discounted value of a reward b; with Pᵀ, the discounted visits from a start distribution b.

    A large system is solved by iterations that begin with the `guess`.
    """
    P = chain.P.T if transposed else chain.P
    if not chain.is_sparse:
        return np.linalg.solve(np.eye(chain.n) - gamma * P, right)
    if chain.n > DIRECT_FIRST:
        matrix = sp.csr_array(P)
        found = krylov(lambda x: x - gamma * (matrix @ x), right, guess)
        if found is not None:
            return found
    return np.asarray(spla.spsolve(sp.csc_array(sp.eye_array(chain.n) - gamma * P), right))
