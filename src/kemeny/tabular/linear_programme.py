"""The linear programme of an average-reward model, with and without a limit on the average cost.

Its variable x(s, a) is the share of time spent in state s taking action a. With a limit it gives the exact optimum of
a constrained model (Kallenberg 1983; Altman 1999): tests compare ACPO with it.

HiGHS solves the programme up to a tolerance, and that is not enough for a policy: a wrong action in a state that is
visited once in 10⁸ steps may lead to states that the chain does not leave for 10⁸ steps. So policy iteration goes on
from the solution of HiGHS. With a limit it goes from vertex to vertex of the programme: these are the best policies for
the reward r − price·c, and the price is right when the limit lies between two neighbours.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import OptimizeResult, linprog

from kemeny.errors import RunError, UserError
from kemeny.tabular.chain import Chain
from kemeny.tabular.mdp import MDP

INFEASIBLE, NUMERICAL = 2, 4
"""What `linprog` calls a programme without a solution, and one that HiGHS could not cope with."""

VISITED = 1e-5
"""A state with a smaller share of the time than this, relative to the mean share of a state, counts as not visited.
HiGHS may violate a constraint by 1e-7, so what it says about such a state may be noise."""

TIE = 1e-12
"""Differences below this share of the largest value are rounding errors."""

KEPT = 1e-9
"""How far the least possible cost may be above the limit, relative to the costs: so much may be lost when it is printed
and typed again."""

ON_SEGMENT = 1e-10
"""How far a gain may be below that of two neighbours, relative to the rewards."""

CLAIM = 1e-6
"""How far the optimum that HiGHS reports may be from the exact one, relative to the rewards and the costs; in tests it
was 1e-8."""

ELIMINATED_UP_TO = 400
"""States of a sparse model that is solved as a dense one. Elimination without subtraction, which only dense chains
have, is exact however rare a state is, and takes a hundredth of a second for so many states."""


@dataclasses.dataclass(frozen=True, eq=False)
class ProgrammeSolution:
    """The optimum of the linear programme."""

    gain: float
    """The best reward per step of a policy that keeps the limit."""

    cost: float | None
    """The average cost of the policy; None if the model has no costs."""

    policy: np.ndarray
    """Probabilities, S × A; random in at most one state, unless neighbours among the vertices differ in several."""

    price: float
    """∂gain/∂limit, how much gain one more unit of the limit allows; 0 without a limit or if it does not bind."""


class Vertex(NamedTuple):
    """A deterministic policy that is the best for some signal, such as r − price·c."""

    policy: np.ndarray
    """Probabilities, S × A."""

    gain: float
    cost: float
    """0 if the model has no costs."""


def linear_programme(mdp: MDP, limit: float | None = None) -> ProgrammeSolution:
    """Maximise Σ x·r subject to flow in = flow out, Σ x = 1 and, with a limit, Σ x·c ≤ limit.

    For models in which every state can reach one common recurrent class (ergodic, unichain or communicating models).
    The policy found is checked, and for any other model an error says so.
    """
    if limit is not None and not np.isfinite(limit):
        raise UserError(f"The limit on the cost must be a finite number, not {limit}.")
    if mdp.is_sparse and mdp.n_states <= ELIMINATED_UP_TO:
        mdp = MDP(mdp.transitions, mdp.rewards, mdp.costs, mdp.start, mdp.name, mdp.allowed)
    bound = None if limit is None else (mdp.signal("cost"), limit)
    result = optimise(mdp, mdp.rewards, bound)
    if result.status == INFEASIBLE and bound is not None:
        raise out_of_reach(float(optimise(mdp, -bound[0], None).fun) / mdp.n_states, bound[1])
    if result.status != 0:
        raise RunError(f"The linear programme was not solved: {result.message}")
    start = policy_of(mdp, np.maximum(result.x.reshape(mdp.n_actions, mdp.n_states).T, 0))
    best = best_for(mdp, mdp.rewards, in_one_class(mdp, np.eye(mdp.n_actions)[start.argmax(axis=1)], mdp.rewards))
    price, policy = 0.0, best.policy
    if bound is not None:
        price, policy = at_the_limit(mdp, bound[1], best, -float(result.ineqlin.marginals[0]))
    if not mdp.chain(policy).is_unichain:  # between vertices with different classes; that of HiGHS has one
        policy = start
    return attained(mdp, policy, price, limit, -float(result.fun) / mdp.n_states)


def attained(mdp: MDP, policy: np.ndarray, price: float, limit: float | None, claim: float) -> ProgrammeSolution:
    """The exact gain and cost of the policy, if they are what HiGHS claims to be possible."""
    gain, cost = average(mdp, policy, mdp.rewards), None if mdp.costs is None else average(mdp, policy, mdp.costs)
    if claim - gain > CLAIM * np.abs(mdp.rewards).max():
        raise RunError(f"HiGHS reports an optimum of {claim:.9g}, but the gain of the best policy found is {gain:.9g}.")
    if limit is not None and cost is not None and cost - limit > KEPT * np.abs(mdp.signal("cost")).max():
        raise RunError(f"The limit is {limit:.9g}, but the cost of the best policy found is {cost:.9g}.")
    return ProgrammeSolution(gain, cost, policy, price)


def out_of_reach(least: float, limit: float) -> UserError:
    """The error for a limit that no policy keeps."""
    return UserError(
        f"No policy keeps the average cost at or below {limit:.9g}: the least possible is {least:.9g}; "
        "raise the limit to at least that."
    )


def optimise(mdp: MDP, objective: np.ndarray, bound: tuple[np.ndarray, float] | None) -> OptimizeResult:
    """Solve the programme by HiGHS; `x` has the order of the rows of the stacked transitions.

    Forbidden pairs are no variables; their `x` is 0. The variables sum to the number of states, so that the solver's
    tolerance is relative to the mean share of a state.
    """
    n, actions = mdp.n_states, mdp.n_actions
    pairs = np.arange(n * actions) if mdp.allowed is None else np.flatnonzero(mdp.allowed.T)
    out = sp.csr_array((np.ones(len(pairs)), (pairs % n, np.arange(len(pairs)))), shape=(n, len(pairs)))
    flow = sp.csr_array(out - sp.csr_array(mdp.P)[pairs].T)
    equalities = sp.csr_array(sp.vstack([flow, np.ones((1, len(pairs)))]))
    right = np.concatenate([np.zeros(n), [n]])
    extra = {} if bound is None else {"A_ub": bound[0].T.reshape(1, -1)[:, pairs], "b_ub": [n * bound[1]]}
    programme = {"A_eq": equalities, "b_eq": right, "bounds": (0, None), "method": "highs", **extra}
    minimised = -objective.T.ravel()[pairs]
    result = linprog(minimised, **programme)
    if result.status == NUMERICAL:  # its presolve gives up on some programmes that it solves without
        result = linprog(minimised, options={"presolve": False}, **programme)
    if result.x is not None:
        shares = np.zeros(n * actions)
        shares[pairs] = result.x
        result.x = shares
    return result


def policy_of(mdp: MDP, x: np.ndarray) -> np.ndarray:
    """π(a|s) = x(s, a)/x(s) in visited states; in other states, an action that leads toward the visited ones."""
    share = x.sum(axis=1, keepdims=True)
    policy = x / np.maximum(share, VISITED)
    lead_to(mdp, policy, share[:, 0] > VISITED)
    classes = mdp.chain(policy).classes
    if not classes.is_unichain:
        raise UserError(
            f"The optimum of the linear programme is spread over {classes}, so no stationary policy attains it "
            "from every start state; use multichain_policy_iteration, or solve for each class."
        )
    return policy


def lead_to(mdp: MDP, policy: np.ndarray, target: np.ndarray) -> None:
    """Give each state that is no target an action that leads toward the targets, so that it is not recurrent."""
    policy[~target] = 0
    reached = target.copy()
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


def best_for(mdp: MDP, signal: np.ndarray, policy: np.ndarray) -> Vertex:
    """Howard's policy iteration for any signal; among equally good actions, that of the policy given stays."""
    seen: set[bytes] = set()
    states = np.arange(mdp.n_states)
    while True:
        _, bias = mdp.chain(policy).gain_and_bias((policy * signal).sum(axis=1))
        value = signal + mdp.expect(bias)
        best = mdp.forbid(value).argmax(axis=1)
        rise = value[states, best] - (policy * value).sum(axis=1)
        better = rise > TIE * (np.abs(value).max(axis=1) + np.abs(signal).max())
        improved = np.where(better[:, None], np.eye(mdp.n_actions)[best], policy)
        improved = in_one_class(mdp, improved, signal)
        seen.add(policy.tobytes())
        if improved.tobytes() in seen:  # this policy; in rare cases an earlier one, if rounding leads in a circle
            cost = 0.0 if mdp.costs is None else average(mdp, policy, mdp.costs)
            return Vertex(policy, average(mdp, policy, mdp.rewards), cost)
        policy = improved


def average(mdp: MDP, policy: np.ndarray, signal: np.ndarray) -> float:
    """The signal per step under a policy."""
    return float(mdp.chain(policy).stationary @ (policy * signal).sum(axis=1))


def in_one_class(mdp: MDP, policy: np.ndarray, signal: np.ndarray) -> np.ndarray:
    """The policy; or, if it has several recurrent classes, one that leads from everywhere to the best of them."""
    chain = mdp.chain(policy)
    if chain.is_unichain:
        return policy
    earned = (policy * signal).sum(axis=1)
    classes = chain.classes.recurrent
    gains = [Chain.trusted(chain.P[states][:, states]).stationary @ earned[states] for states in classes]
    policy, target = policy.copy(), np.zeros(mdp.n_states, dtype=bool)
    target[classes[int(np.argmax(gains))]] = True
    lead_to(mdp, policy, target)
    return policy


def at_the_limit(mdp: MDP, limit: float, high: Vertex, price: float) -> tuple[float, np.ndarray]:
    """The price of the limit, and the best policy that keeps it; `high` is the best policy without a limit.

    The best gain is a concave function of the limit; its graph is a chain of segments between vertices. `low` and
    `high` are vertices on the two sides of the limit. The best vertex for the slope between them is nearer to the limit
    than one of them, or they are neighbours. The first price is that of HiGHS.
    """
    rewards, costs = mdp.rewards, mdp.signal("cost")
    rounding = TIE * np.abs(costs).max()
    if high.cost <= limit + rounding:
        return 0.0, high.policy
    low = best_for(mdp, -costs, high.policy)
    if low.cost > limit + KEPT * np.abs(costs).max():
        raise out_of_reach(low.cost, limit)
    limit = max(limit, low.cost)
    if high.cost <= limit + rounding:
        return 0.0, high.policy
    found = best_for(mdp, rewards - price * costs, high.policy)
    while True:
        low, high = (found, high) if found.cost <= limit + rounding else (low, found)
        price = (high.gain - low.gain) / (high.cost - low.cost)
        priced = rewards - price * costs
        found = best_for(mdp, priced, low.policy)
        above = (found.gain - low.gain) - price * (found.cost - low.cost)
        if above <= TIE * np.abs(priced).max():
            return price, between(mdp, low, high, price, limit)


def between(mdp: MDP, low: Vertex, high: Vertex, price: float, limit: float) -> np.ndarray:
    """A policy whose cost is the limit and whose gain is on the segment between two neighbours.

    Neighbours differ in one state, apart from states that hardly matter: there both get the best action for their
    price. If they still differ in several states, the policy is random in one of them, on the way from one neighbour
    to the other; or in all of them, if this way leads below the segment or through several recurrent classes.
    """
    costs = mdp.signal("cost")
    nearer = [best_for(mdp, mdp.rewards - price * costs, vertex.policy) for vertex in (low, high)]
    if nearer[0].cost <= limit < nearer[1].cost:
        low, high = nearer
    differ = np.flatnonzero((low.policy != high.policy).any(axis=1))
    first, last = 0, len(differ)
    while last - first > 1:
        middle = (first + last) // 2
        policy = exchange(low, high, differ[:middle])
        if not mdp.chain(policy).is_unichain:
            break
        first, last = (middle, last) if average(mdp, policy, costs) <= limit else (first, middle)
    policy = mixture(mdp, exchange(low, high, differ[:first]), exchange(low, high, differ[:last]), limit)
    segment = low.gain + price * (limit - low.cost) - ON_SEGMENT * np.abs(mdp.rewards).max()
    if mdp.chain(policy).is_unichain and average(mdp, policy, mdp.rewards) >= segment:
        return policy
    return mixture(mdp, low.policy, high.policy, limit)


def exchange(low: Vertex, high: Vertex, states: np.ndarray) -> np.ndarray:
    """The policy of `low` with the actions of `high` in some states."""
    policy = low.policy.copy()
    policy[states] = high.policy[states]
    return policy


def mixture(mdp: MDP, one: np.ndarray, other: np.ndarray, cost: float) -> np.ndarray:
    """The policy whose shares of time x are a mixture of those of two policies, with this cost."""
    x, y = (mdp.chain(policy).stationary[:, None] * policy for policy in (one, other))
    costs = mdp.signal("cost")
    share = np.clip((cost - (y * costs).sum()) / ((x - y) * costs).sum(), 0, 1)
    mixed, policy = share * x + (1 - share) * y, one.copy()
    differ = (one != other).any(axis=1) & (mixed.sum(axis=1) > 0)
    policy[differ] = mixed[differ] / mixed[differ].sum(axis=1, keepdims=True)
    return policy
