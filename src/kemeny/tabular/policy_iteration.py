"""Policy iteration: exact for small models, and with Krylov solves for models of millions of states.

Large models are solved as by Newton's method with inexact steps. The best policy given h is evaluated only as precisely
as the present error in the optimality equation deserves. Between two evaluations, sweeps over all actions mend the
policy where it is wrong in places, which takes them a few steps and policy iteration many. A model on a grid begins
with the values of a coarser model.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from kemeny.errors import UserError
from kemeny.tabular.bicgstab import solve_chain
from kemeny.tabular.chain import Chain
from kemeny.tabular.coarser import interpolate, merged
from kemeny.tabular.mdp import MDP
from kemeny.tabular.multigrid import Merging
from kemeny.tabular.solution import Search, Solution, Watch
from kemeny.tabular.sparse import DIRECT_FIRST, SparseChain
from kemeny.tabular.sweeps import Backup, PolicySweeps, Sweeps

FORCING = 0.1
"""The residual to which a policy is evaluated, relative to the present error in the optimality equation."""

MENDING = 40
"""Most sweeps over all actions between two evaluations."""

MENDED = 0.98
"""Sweeps go on while each leaves at most this share of the error."""

ROUGH = 0.01
"""The precision to which a coarser model is solved, relative to its gain."""

ROUGH_ITERATIONS = 12
"""Policies that a coarser model may take at most: it is only a guess."""

KRYLOV_LIMIT = 100
"""Most Krylov iterations for one policy; a few dozen are usual. What is left then is left to the next policy."""

PATIENCE = 3
"""Evaluations in a row that may fail before sweeps of the policy take their place for a while."""

RELIEF = 500
"""The number of sweeps that take the place of failed evaluations."""

STEP = 0.95
"""The length of their steps: below 1, so that they converge on periodic chains too."""

ROUNDING = 64 * np.finfo(float).eps
"""The span cannot become smaller than this share of the values: r + P·h − h is the difference of such values."""


def policy_iteration(
    mdp: MDP,
    initial: Any = None,
    tolerance: float = 1e-9,
    max_iterations: int = 1000,
    watch: Watch | None = None,
) -> Solution:
    """Howard's policy iteration for models whose policies have one recurrent class (Puterman 1994, §8.6).

    `initial` is the first policy. The iteration stops when the gain is known to within `tolerance`, relative to the
    largest reward, or as precisely as rounding allows. A small model goes on until its policy no longer changes.
    """
    sweeps = Sweeps(mdp)
    goal = tolerance * sweeps.scale
    with Search("policy iteration", sweeps.policy, watch) as search:
        if not is_large(mdp):
            policy = mdp.rewards_by_action.argmax(axis=0) if initial is None else np.asarray(initial)
            return iterate_small(mdp, sweeps, search, policy, max_iterations)
        h, policy = np.zeros(mdp.n_states), None if initial is None else np.asarray(initial)
        found = sweeps.backup(h)
        search.see(h, found.low, found.high)
        if policy is None:
            h = first_guess(mdp, h)
        return iterate_large(mdp, sweeps, search, h, policy, lambda: goal, max_iterations)


def is_large(mdp: MDP) -> bool:
    """Whether its policies are evaluated by a Krylov method, not by a factorisation."""
    return mdp.is_sparse and mdp.n_states > DIRECT_FIRST


def first_guess(mdp: MDP, otherwise: np.ndarray) -> np.ndarray:
    """Values from a coarser model if the states are points of a grid; if not, the values that are given."""
    if mdp.grid is None:
        return otherwise
    coarse = merged(mdp)
    sweeps = Sweeps(coarse)
    search = Search("policy iteration", sweeps.policy)

    def rough() -> float:
        return ROUGH * max(abs(search.low), abs(search.high))

    try:
        if is_large(coarse):
            h = first_guess(coarse, np.zeros(coarse.n_states))
            h = iterate_large(coarse, sweeps, search, h, None, rough, ROUGH_ITERATIONS).bias
        else:
            policy = coarse.rewards_by_action.argmax(axis=0)
            h = iterate_small(coarse, sweeps, search, policy, ROUGH_ITERATIONS).bias
    except UserError:
        h = search.best
    return otherwise if h is None else interpolate(h, mdp.grid)


def iterate_small(mdp: MDP, sweeps: Sweeps, search: Search, policy: np.ndarray, max_iterations: int) -> Solution:
    """Evaluate each policy exactly, by a factorisation, until it no longer changes."""
    for _ in range(max_iterations):
        gain, h = evaluate_exactly(mdp, policy)
        better, found = sweeps.improve(h, policy)
        search.see(h, found.low, found.high)
        if np.array_equal(better, policy):
            return search.solution(h, policy, gain)
        policy = better
    raise UserError(f"Policy iteration did not converge in {max_iterations} iterations; raise max_iterations.")


def evaluate_exactly(mdp: MDP, policy: np.ndarray) -> tuple[float, np.ndarray]:
    """ρ and h of a deterministic policy of a small model."""
    chain = mdp.chain(policy)
    refuse_several(chain)
    reward = mdp.rewards[np.arange(mdp.n_states), policy]
    if chain.is_sparse:
        return SparseChain(chain.P).gain_and_bias(reward)
    # (I − P + 1uᵀ)x = r is the Bellman equation with the gauge u·x = ρ, for any u that sums to 1.
    found = np.linalg.solve(np.eye(chain.n) - chain.P + 1 / chain.n, reward)
    return float(found.mean()), found - found.mean()


def refuse_several(chain: Chain) -> None:
    """An error that names the classes of a chain with several recurrent classes."""
    if not chain.is_unichain:
        raise UserError(
            f"Policy iteration met a policy with {chain.classes}, so its gain depends on the start state; "
            "use multichain_policy_iteration."
        )


def iterate_large(
    mdp: MDP,
    sweeps: Sweeps,
    search: Search,
    h: np.ndarray,
    policy: np.ndarray | None,
    goal: Callable[[], float],
    max_iterations: int,
) -> Solution:
    """Evaluate each policy as precisely as the error deserves, until the gain is known to within `goal()`.

    The first policy to be evaluated is `policy`, or the best one given h if it is None.
    """
    evaluator = Evaluator(mdp)
    if policy is not None:
        h = evaluator(policy, h, sweeps.scale * FORCING)
    for _ in range(max_iterations):
        policy, found = sweeps.improve(h, evaluator.policy)
        search.see(h, found.low, found.high)
        if is_enough(found, goal(), h):
            return search.solution(h, policy)
        h, found = mend(sweeps, search, found, goal())
        if is_enough(found, goal(), h):
            return search.solution(h)
        policy, found = sweeps.improve(h, evaluator.policy)
        h = evaluator(policy, found.best, FORCING * found.span)
    raise UserError(
        f"Policy iteration did not reach the tolerance in {max_iterations} iterations: the gain is known to be in "
        f"[{search.low:.10g}, {search.high:.10g}]. Raise max_iterations, or ask for less."
    )


def is_enough(found: Backup, goal: float, h: np.ndarray) -> bool:
    """Whether the gain is known to the goal, or as well as rounding allows."""
    return found.span <= max(goal, ROUNDING * max(float(h.max()), -float(h.min())))


def mend(sweeps: Sweeps, search: Search, found: Backup, goal: float) -> tuple[np.ndarray, Backup]:
    """Sweep over all actions while that helps."""
    h = found.best
    for _ in range(MENDING):
        before, h = found.span, found.best
        found = sweeps.backup(h)
        search.see(h, found.low, found.high)
        if found.span > MENDED * before or found.span <= goal:
            break
    return h, found


class Evaluator:
    """Evaluates one policy after another; each solve starts from the values that it is given."""

    def __init__(self, mdp: MDP):
        self.mdp = mdp
        self.merging = Merging(mdp.grid)
        self.policy: np.ndarray | None = None
        self.failures = 0

    def __call__(self, policy: np.ndarray, h: np.ndarray, enough: float) -> np.ndarray:
        """h of a policy, up to a constant, with a residual whose span is `enough`, or better values than were given.

        The values that are given are overwritten.
        """
        self.policy = policy
        h -= h.mean()
        fixed = PolicySweeps(self.mdp, policy)
        inverse = self.merging.hierarchy(fixed.rows)
        solved = solve_chain(fixed.rows, fixed.reward, h, enough, KRYLOV_LIMIT, fixed.blocks, inverse)
        if not solved.span <= enough and inverse is not None:
            again = solve_chain(fixed.rows, fixed.reward, solved.x, enough, KRYLOV_LIMIT, fixed.blocks)
            solved = again if again.span < solved.span else solved
        self.failures = 0 if solved.span <= enough else self.failures + 1
        x = solved.x
        if self.failures >= PATIENCE:
            refuse_several(self.mdp.chain(policy))
            self.failures = 0
            for _ in range(RELIEF):
                x, _ = fixed.step(x, STEP)
                x -= x[0]
        x -= x[0]
        return x
