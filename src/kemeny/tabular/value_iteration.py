"""Value iteration: repeated sweeps, plain, accelerated, or with sweeps of a fixed policy in between."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kemeny.errors import UserError
from kemeny.tabular.anderson import Anderson
from kemeny.tabular.mdp import MDP
from kemeny.tabular.solution import Search, Solution, Watch
from kemeny.tabular.sweeps import Backup, PolicySweeps, Sweeps


def relative_value_iteration(
    mdp: MDP,
    tolerance: float = 1e-8,
    step: float = 0.95,
    max_iterations: int = 1_000_000,
    initial: Any = None,
    memory: int = 0,
    watch: Watch | None = None,
) -> Solution:
    """h ← h + step·(max_a [r + P·h] − h), until the gain is known to within `tolerance` (White 1963; Puterman §8.5).

    A `step` below 1 is the aperiodicity transform of Schweitzer (1971): the chain stays where it is with probability
    1 − step. The optimal policies, gains and biases are the same, and the iteration converges on periodic models too.
    With a `memory` of a few iterations, Anderson's acceleration combines the last ones into the next: on models that
    mix slowly this takes a tenth of the sweeps. It needs two vectors per iteration that it remembers.
    """
    check_step(step)
    sweeps = Sweeps(mdp)
    h = np.zeros(mdp.n_states) if initial is None else np.array(initial, dtype=float)
    anderson = Anderson(memory, sweeps.blocks) if memory else None
    name = "accelerated value iteration" if memory else "relative value iteration"
    with Search(name, sweeps.policy, watch) as search:
        for _ in range(max_iterations):
            found = sweeps.backup(h)
            search.see(h, found.low, found.high)
            if found.span <= tolerance:
                return search.solution(h)
            h = next_values(h, found, step, anderson)
    raise UserError(not_converged(search, max_iterations))


def next_values(h: np.ndarray, found: Backup, step: float, anderson: Anderson | None = None) -> np.ndarray:
    """The values after a sweep: a step towards the best ones, accelerated if there is a memory."""
    image = found.best
    image -= h
    image *= step
    image += h
    if anderson is not None:
        return anderson.next(h, image, step * found.mean, found.span)
    image -= image[0]
    return image


def modified_policy_iteration(
    mdp: MDP,
    tolerance: float = 1e-8,
    sweeps: int = 50,
    step: float = 0.95,
    max_iterations: int = 100_000,
    watch: Watch | None = None,
) -> Solution:
    """Improve the policy over all actions, then update h several times for this policy (Puterman & Shin 1978).

    Such an update, a sweep, reads the transitions of one action per state, so it costs 1/A of an improvement. Sweeps
    stop when they change h little, after `sweeps` at most.
    """
    check_step(step)
    all_actions = Sweeps(mdp)
    with Search("modified policy iteration", all_actions.policy, watch) as search:
        start = np.zeros(mdp.n_states)
        _, solution = iterate_modified(mdp, all_actions, search, start, lambda: tolerance, sweeps, step, max_iterations)
    if solution is None:
        raise UserError(not_converged(search, max_iterations))
    return solution


def iterate_modified(
    mdp: MDP,
    all_actions: Sweeps,
    search: Search,
    h: np.ndarray,
    goal: Callable[[], float],
    sweeps: int = 50,
    step: float = 0.95,
    max_iterations: int = 100_000,
    budget: float = math.inf,
) -> tuple[np.ndarray, Solution | None]:
    """Modified policy iteration from h until the gain is known to within `goal()`.

    Returns the last h; and the solution, or None after so many iterations, or as many sweeps over all actions as the
    `budget` allows: a sweep of one policy counts 1/A.
    """
    policy, fixed, spent = None, None, 0.0
    for _ in range(max_iterations):
        better, found = all_actions.improve(h)
        search.see(h, found.low, found.high)
        if found.span <= goal():
            return h, search.solution(h, better)
        if spent > budget:
            break
        h = next_values(h, found, step)
        if fixed is None or policy is None or not np.array_equal(better, policy):
            policy = better
            fixed = PolicySweeps(mdp, policy)
        spent += 1
        for _ in range(sweeps):
            h, span = fixed.step(h, step)
            spent += 1 / mdp.n_actions
            if span <= 0.1 * found.span:
                break
        h -= h[0]
    return h, None


def check_step(step: float) -> None:
    """Raise an error unless 0 < step ≤ 1, which the aperiodicity transform needs."""
    if not 0 < step <= 1:
        raise UserError(f"The step must be above 0 and at most 1, not {step:g}.")


def not_converged(search: Search, iterations: int) -> str:
    """The message for a gain that is not known to the tolerance yet, with the usual reasons."""
    return (
        f"{search.method.capitalize()} did not reach the tolerance: after {iterations} iterations the gain is known to "
        f"be in [{search.low:.6g}, {search.high:.6g}]. Use policy_iteration if the model mixes slowly, "
        "multichain_policy_iteration if its gain depends on the start state, or a step below 1 if it is periodic."
    )
