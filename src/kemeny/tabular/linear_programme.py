"""The linear programme of an average-reward model, with and without a limit on the average cost.

Its variables x(s, a) are the shares of time spent in state s taking action a. With a limit it gives the exact
optimum of a constrained model (Kallenberg 1983; Altman 1999), which no dynamic programme does: the oracle for ACPO.
"""

import dataclasses

import numpy as np
import scipy.sparse as sp
from scipy.optimize import OptimizeResult, linprog

from kemeny.errors import RunError, UserError
from kemeny.tabular.mdp import MDP

VISITED = 1e-10
"""A state with less than this share of the time is not visited: HiGHS's own feasibility tolerance is 1e-7, and the
vertices it returns are exact to rounding."""


@dataclasses.dataclass(frozen=True, eq=False)
class ProgrammeSolution:
    """The optimum of the linear programme."""

    gain: float
    """The best reward per step that keeps the limit."""

    cost: float | None
    """The average cost of the policy, where the model has costs."""

    policy: np.ndarray
    """Probabilities, S × A; a limit makes it random in at most one state of a vertex solution."""

    occupancy: np.ndarray
    """x(s, a), the share of time."""

    price: float
    """What a unit of the limit is worth: ∂gain/∂limit; 0 without a limit or where it does not bind."""


def linear_programme(mdp: MDP, limit: float | None = None) -> ProgrammeSolution:
    """Maximise Σ x·r subject to flow in = flow out, Σ x = 1 and, with a limit, Σ x·c ≤ limit.

    For models where one recurrent class can be reached from everywhere (ergodic, unichain, communicating): the policy
    found is checked, and a model that is not so is refused with a sentence.
    """
    if limit is not None and not np.isfinite(limit):
        raise UserError(f"The limit on the cost must be a finite number, not {limit}.")
    bound = None if limit is None else (mdp.signal("cost"), limit)
    result = optimise(mdp, mdp.rewards, bound)
    if result.status == 2 and bound is not None:
        least = -float(optimise(mdp, -bound[0], None).fun)
        raise UserError(
            f"No policy keeps the average cost at or below {limit:g}: the least possible is {-least:.6g}; "
            "raise the limit to at least that."
        )
    if result.status != 0:
        raise RunError(f"The linear programme was not solved: {result.message}")
    x = np.maximum(result.x.reshape(mdp.n_actions, mdp.n_states).T, 0)
    policy = policy_of(mdp, x)
    gain = attained(mdp, policy, -float(result.fun))
    return ProgrammeSolution(
        gain=gain,
        cost=None if mdp.costs is None else float((x * mdp.costs).sum()),
        policy=policy,
        occupancy=x,
        price=0.0 if bound is None else -float(result.ineqlin.marginals[0]),
    )


def optimise(mdp: MDP, objective: np.ndarray, bound: tuple[np.ndarray, float] | None) -> OptimizeResult:
    """The programme itself, by HiGHS; variables are ordered as the rows of the stacked transitions."""
    n, actions = mdp.n_states, mdp.n_actions
    out = sp.csr_array(sp.hstack([sp.eye_array(n)] * actions))
    flow = sp.csr_array(out - sp.csr_array(mdp.P).T)
    equalities = sp.csr_array(sp.vstack([flow, np.ones((1, n * actions))]))
    right = np.concatenate([np.zeros(n), [1.0]])
    extra = {} if bound is None else {"A_ub": bound[0].T.reshape(1, -1), "b_ub": [bound[1]]}
    return linprog(-objective.T.ravel(), A_eq=equalities, b_eq=right, bounds=(0, None), method="highs", **extra)


def policy_of(mdp: MDP, x: np.ndarray) -> np.ndarray:
    """π(a|s) = x(s, a)/x(s) where s is visited; elsewhere an action that leads toward the visited states."""
    share = x.sum(axis=1)
    visited = share > VISITED
    policy = np.zeros(x.shape)
    policy[visited] = x[visited] / share[visited, None]
    reached = visited.copy()
    while not reached.all():
        chance = mdp.expect(reached.astype(float))
        chance[reached] = 0
        new = chance.max(axis=1) > 0
        if not new.any():
            state = int(np.argmin(reached))
            raise UserError(
                f"State {state} cannot reach the states that the best policy visits, so the best gain depends on the "
                "start; use multichain_policy_iteration."
            )
        policy[new, chance[new].argmax(axis=1)] = 1.0
        reached |= new
    return policy


def attained(mdp: MDP, policy: np.ndarray, gain: float) -> float:
    """What the policy earns: the programme's optimum without the solver's tolerance, or an error."""
    classes = mdp.chain(policy).classes
    if not classes.is_unichain:
        raise UserError(
            f"The optimum of the linear programme spreads over {classes}, so no stationary policy attains it "
            "from every start; use multichain_policy_iteration, or solve for each class."
        )
    earned = mdp.evaluate(policy).rho
    if abs(earned - gain) > 1e-6 * max(1.0, abs(gain)):
        raise RunError(f"The linear programme claims a gain of {gain:.9g}, but its policy earns {earned:.9g}.")
    return earned
