"""Which method suits a model: chosen by what the first sweeps show."""

import math

import numpy as np

from kemeny.tabular.anderson import Anderson
from kemeny.tabular.mdp import MDP
from kemeny.tabular.policy_iteration import first_guess, is_large, iterate_large, iterate_small
from kemeny.tabular.solution import Search, Solution, Watch
from kemeny.tabular.sweeps import Sweeps
from kemeny.tabular.value_iteration import iterate_modified, next_values

FIRST_SWEEPS = 12
"""Sweeps after which `solve` chooses, and then again after as many as it expected."""

MEMORY = 5
"""Iterations that accelerated value iteration remembers in `solve`."""

FEW = 60
"""Sweeps up to which `solve` goes on with accelerated value iteration."""

WORTH = 500
"""Sweeps up to which it chooses modified policy iteration, whose sweeps are of one policy only and cost less. More is
what policy iteration takes, which does not depend on how fast a model mixes."""

SMALL = 50_000
"""States up to which that is considered: on larger models policy iteration needs no more than some 200 sweeps."""

STEP = 0.95
"""The step of the sweeps: below 1, so that they converge on periodic models too."""

LEAST_PRECISION = 1e-12
"""The width is never asked to be smaller than this share of the largest reward: rounding would not allow it."""


def solve(mdp: MDP, tolerance: float | None = None, precision: float = 1e-8, watch: Watch | None = None) -> Solution:
    """The best policy, its gain, and bounds on the best gain, by the method that suits the model.

    It ends when the gain is known to within `tolerance`, or if that is not given, to within `precision` times the gain.
    A small model is solved exactly, by policy iteration. A large one is swept a few times by accelerated value
    iteration. If the bounds close in fast, the sweeps go on. If they close in less fast, modified policy iteration
    takes over with the values so far; if slowly, policy iteration. `method` and `reason` of the solution say what was
    chosen and why.
    """
    sweeps = Sweeps(mdp)

    def goal(low: float, high: float) -> float:
        size = max(abs(low), abs(high)) if low * high > 0 else 0.0
        asked = tolerance if tolerance is not None else precision * size
        return max(asked, LEAST_PRECISION * sweeps.scale)

    if not is_large(mdp):
        reason = f"{mdp.n_states:,} states are few enough for an exact evaluation of every policy"
        with Search("policy iteration", sweeps.policy, watch, reason) as search:
            first = mdp.rewards_by_action.argmax(axis=0)
            return iterate_small(mdp, sweeps, search, first, max_iterations=1000)
    h, anderson = np.zeros(mdp.n_states), Anderson(MEMORY, sweeps.blocks)
    spans: list[float] = []
    with Search("accelerated value iteration", sweeps.policy, watch) as search:
        while True:
            found = sweeps.backup(h)
            search.see(h, found.low, found.high)
            spans.append(found.span)
            aim = goal(search.low, search.high)
            if found.span <= aim:
                search.reason = f"the sweeps shrank the interval of the gain fast enough ({len(spans)} of them)"
                return search.solution(h)
            left = sweeps_left(spans, aim)
            if len(spans) >= FIRST_SWEEPS and left > FEW:
                break
            h = next_values(h, found, STEP, anderson)
        del anderson
        expected = f"about {left:,.0f} more seemed to be needed" if math.isfinite(left) else "more did not help"
        search.reason = f"after {len(spans)} sweeps the gain was known to within {found.span:.3g}, and {expected}"

        def asked() -> float:
            return goal(search.low, search.high)

        if left <= WORTH and mdp.n_states <= SMALL:
            search.method = "modified policy iteration"
            h, solution = iterate_modified(mdp, sweeps, search, h, asked, budget=WORTH)
            if solution is not None:
                return solution
            search.reason += f"; after {WORTH} more it was not known well enough"
        search.method = "policy iteration"
        h = first_guess(mdp, h)
        return iterate_large(mdp, sweeps, search, h, None, asked, max_iterations=1000)


def sweeps_left(spans: list[float], goal: float) -> float:
    """How many sweeps more it takes to the goal, at the rate of the later half of those so far."""
    recent = spans[len(spans) // 2 :]
    if not recent[-1] < recent[0]:
        return math.inf
    rate = math.log(recent[0] / recent[-1]) / (len(recent) - 1)
    return math.log(recent[-1] / goal) / rate if goal > 0 else math.inf
