"""The linear programme of an average-reward model, with and without a limit on the average cost.

Its variable x(s, a) is the share of time spent in state s taking action a. With a limit it gives the exact optimum of
a constrained model (Kallenberg 1983; Altman 1999), which dynamic programming cannot: tests compare ACPO with it.
"""

import dataclasses

import numpy as np
import scipy.sparse as sp
from scipy.optimize import OptimizeResult, linprog

from kemeny.errors import RunError, UserError
from kemeny.tabular.mdp import MDP

VISITED = 1e-10
"""A state with a smaller share of the time than this counts as not visited. (HiGHS may violate a constraint by 1e-7,
but the vertices that it returns are exact up to rounding.)"""


@dataclasses.dataclass(frozen=True, eq=False)
class ProgrammeSolution:
    """The optimum of the linear programme."""

    gain: float
    """The best reward per step of a policy that keeps the limit."""

    cost: float | None
    """The average cost of the policy; None if the model has no costs."""

    policy: np.ndarray
    """Probabilities, S × A; with a limit, the policy of a vertex is random in at most one state."""

    price: float
    """∂gain/∂limit, how much gain one more unit of the limit allows; 0 without a limit or if it does not bind."""


def linear_programme(mdp: MDP, limit: float | None = None) -> ProgrammeSolution:
    """Maximise Σ x·r subject to flow in = flow out, Σ x = 1 and, with a limit, Σ x·c ≤ limit.

    For models in which every state can reach one common recurrent class (ergodic, unichain or communicating models).
    The policy found is checked, and for any other model an error says so.
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
        price=0.0 if bound is None else -float(result.ineqlin.marginals[0]),
    )


def optimise(mdp: MDP, objective: np.ndarray, bound: tuple[np.ndarray, float] | None) -> OptimizeResult:
    """Solve the programme by HiGHS; the variables have the order of the rows of the stacked transitions."""
    n, actions = mdp.n_states, mdp.n_actions
    out = sp.csr_array(sp.hstack([sp.eye_array(n)] * actions))
    flow = sp.csr_array(out - sp.csr_array(mdp.P).T)
    equalities = sp.csr_array(sp.vstack([flow, np.ones((1, n * actions))]))
    right = np.concatenate([np.zeros(n), [1.0]])
    extra = {} if bound is None else {"A_ub": bound[0].T.reshape(1, -1), "b_ub": [bound[1]]}
    return linprog(-objective.T.ravel(), A_eq=equalities, b_eq=right, bounds=(0, None), method="highs", **extra)


def policy_of(mdp: MDP, x: np.ndarray) -> np.ndarray:
    """π(a|s) = x(s, a)/x(s) in visited states; in other states, an action that leads toward the visited ones."""
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
                "start state; use multichain_policy_iteration."
            )
        policy[new, chance[new].argmax(axis=1)] = 1.0
        reached |= new
    return policy


def attained(mdp: MDP, policy: np.ndarray, gain: float) -> float:
    """The gain of the policy, free of the solver's tolerance; an error if it is not the programme's optimum."""
    classes = mdp.chain(policy).classes
    if not classes.is_unichain:
        raise UserError(
            f"The optimum of the linear programme is spread over {classes}, so no stationary policy attains it "
            "from every start state; use multichain_policy_iteration, or solve for each class."
        )
    earned = mdp.evaluate(policy).rho
    if abs(earned - gain) > 1e-6 * max(1.0, abs(gain)):
        raise RunError(
            f"The linear programme reports a gain of {gain:.9g}, but the gain of its policy is {earned:.9g}."
        )
    return earned
