"""Slow and simple versions of what `kemeny.tabular` computes; nothing here is imported from `src`."""

import decimal
import itertools
from fractions import Fraction

import numpy as np


def stationary(P):
    """The least-squares solution of dᵀP = dᵀ, Σd = 1."""
    n = len(P)
    system = np.vstack([P.T - np.eye(n), np.ones(n)])
    return np.linalg.lstsq(system, np.concatenate([np.zeros(n), [1.0]]), rcond=None)[0]


def stationary_exact(off_diagonal):
    """d in rational arithmetic, from the off-diagonal entries; a diagonal entry is 1 minus the rest of its row."""
    n = len(off_diagonal)
    P = [
        [Fraction(float(x)) if i != j else Fraction(0) for j, x in enumerate(row)] for i, row in enumerate(off_diagonal)
    ]
    rows = [[(P[i][j] if i != j else -sum(P[j], Fraction(0))) for i in range(n)] + [Fraction(0)] for j in range(n - 1)]
    rows.append([Fraction(1)] * n + [Fraction(1)])
    for k in range(n):
        pivot = next(i for i in range(k, n) if rows[i][k] != 0)
        rows[k], rows[pivot] = rows[pivot], rows[k]
        rows[k] = [x / rows[k][k] for x in rows[k]]
        for i in range(n):
            if i != k and rows[i][k] != 0:
                rows[i] = [x - rows[i][k] * y for x, y in zip(rows[i], rows[k], strict=True)]
    return np.array([float(row[-1]) for row in rows])


def cesaro_limit(P, doublings=40):
    """(I + P + … + P^{N−1})/N for N = 2^doublings; the chain may be periodic or have several classes."""
    mean, power = np.eye(len(P)), P.copy()
    for _ in range(doublings):
        mean, power = (mean + power @ mean) / 2, power @ power
        power /= power.sum(axis=1, keepdims=True)
    return mean


def first_passage(P):
    """M(s, t) = 1 + Σ_{u≠t} P(s, u)·M(u, t), the definition: one linear system per target t."""
    n = len(P)
    M = np.zeros((n, n))
    for target in range(n):
        avoiding = P.copy()
        avoiding[:, target] = 0
        M[:, target] = np.linalg.solve(np.eye(n) - avoiding, np.ones(n))
    return M


def visits_by_simulation(P, steps, rng):
    """The share of time in each state along one trajectory."""
    cumulative = np.cumsum(P, axis=1)
    state, count = 0, np.zeros(len(P))
    for u in rng.random(steps):
        count[state] += 1
        state = min(int(np.searchsorted(cumulative[state], u, side="right")), len(P) - 1)
    return count / steps


def bias_by_sum(P, r, laziness=0.5, terms=20_000):
    """Σ_t (r_t − ρ) of the lazy chain, times (1 − laziness): the bias. The lazy chain makes the sum converge."""
    lazy = laziness * np.eye(len(P)) + (1 - laziness) * P
    now = r - cesaro_limit(P) @ r
    total = np.zeros(len(r))
    for _ in range(terms):
        total += now
        now = lazy @ now
    return (1 - laziness) * total


def discounted_by_sum(P, r, gamma, terms):
    """Σ γᵗ Pᵗ r."""
    total, now = np.zeros(len(r)), r.astype(float)
    for _ in range(terms):
        total += now
        now = gamma * (P @ now)
    return total


def policies(states, actions):
    """All deterministic policies."""
    return (np.array(p) for p in itertools.product(range(actions), repeat=states))


def best_gain(P, r):
    """The best gain of all deterministic policies from each start state, by Cesàro limits."""
    states, actions, _ = P.shape
    rows = np.arange(states)
    return np.max([cesaro_limit(P[rows, p]) @ r[rows, p] for p in policies(states, actions)], axis=0)


def kemeny_by_passage(P):
    """Σ_t d(t)·M(s, t) for each s."""
    return first_passage(P) @ stationary(P)


def birth_death_gain(up, down, reward):
    """The gain of a birth–death chain by detailed balance: d(s+1)·down(s+1) = d(s)·up(s)."""
    d = np.concatenate([[1.0], np.cumprod(np.asarray(up[:-1]) / np.asarray(down[1:]))])
    return float(d @ reward / d.sum())


def gains_and_costs(P, r, c):
    """Of every deterministic policy, from the first state."""
    rows = np.arange(len(r))
    shares = ((cesaro_limit(P[rows, policy])[0], policy) for policy in policies(*r.shape))
    return np.array([(d @ r[rows, policy], d @ c[rows, policy]) for d, policy in shares]).T


def limited_gain(gain, cost, limit):
    """The best gain with an average cost of at most `limit`, if all policies have one class: the gain and cost of any
    policy lie in the convex hull of those of the deterministic policies."""
    best = gain[cost <= limit].max()
    for i in np.flatnonzero(cost <= limit):
        for j in np.flatnonzero(cost > limit):
            share = (limit - cost[i]) / (cost[j] - cost[i])
            best = max(best, (1 - share) * gain[i] + share * gain[j])
    return best


class PreciseQueue:
    """A birth–death model with two actions, in numbers of 120 digits: for shares of time such as 10⁻⁴⁰.

    `up`, `down`, `reward` and `cost` are lists of (action 0, action 1), one pair per state.
    """

    def __init__(self, up, down, reward, cost):
        exact = [[tuple(map(decimal.Decimal, pair)) for pair in pairs] for pairs in (up, down, reward, cost)]
        self.up, self.down, self.reward, self.cost = exact
        self.states = range(len(up))

    def evaluate(self, policy, price):
        """Gain, cost, and h(s) − h(s−1) of the reward − price · cost, by detailed balance."""
        d = [decimal.Decimal(1)]
        for s in self.states[1:]:
            d.append(d[-1] * self.up[s - 1][policy[s - 1]] / self.down[s][policy[s]])
        d = [share / sum(d) for share in d]
        gain, cost = (sum(d[s] * signal[s][policy[s]] for s in self.states) for signal in (self.reward, self.cost))
        rises, flow = [decimal.Decimal(0)] * (len(d) + 1), decimal.Decimal(0)
        for s in self.states[:0:-1]:
            flow += d[s] * (self.reward[s][policy[s]] - price * self.cost[s][policy[s]] - (gain - price * cost))
            rises[s] = flow / (d[s] * self.down[s][policy[s]])
        return gain, cost, rises

    def best(self, price, policy):
        """Policy iteration: gain, cost and policy."""
        while True:
            gain, cost, rises = self.evaluate(policy, price)
            values = [
                [
                    self.reward[s][a]
                    - price * self.cost[s][a]
                    + self.up[s][a] * rises[s + 1]
                    - self.down[s][a] * rises[s]
                    for a in (0, 1)
                ]
                for s in self.states
            ]
            tie = decimal.Decimal("1e-60")
            improved = [b if values[s][1 - b] <= values[s][b] + tie else 1 - b for s, b in enumerate(policy)]
            if improved == policy:
                return gain, cost, policy
            policy = improved

    def limited_gain(self, limit):
        """The best gain with an average cost of at most `limit`; the least cost is that of always taking action 0."""
        with decimal.localcontext(prec=120):
            low, high = (self.best(decimal.Decimal(price), [a] * len(self.up)) for price, a in ((10**6, 0), (0, 1)))
            if high[1] <= limit:
                return float(high[0])
            while True:
                price = (high[0] - low[0]) / (high[1] - low[1])
                found = self.best(price, low[2])
                if found[0] - price * found[1] <= low[0] - price * low[1] + decimal.Decimal("1e-50"):
                    return float(low[0] + price * (decimal.Decimal(limit) - low[1]))
                low, high = (found, high) if found[1] <= limit else (low, found)


def network(truncation, arrivals, services, cost):
    """P (states × actions × states) and rewards of a uniformised network of queues, state by state and event by event.

    `arrivals`: rate per queue. `services`: a list, per action a function from the lengths to (rate, from, to), where
    `to` is None if the job leaves. An arrival at a full queue is lost; a job that finds the next queue full stays.
    """
    states = list(itertools.product(range(truncation + 1), repeat=len(arrivals)))
    fastest = max(sum(rate for rate, _, _ in service(x)) for service in services for x in states)
    clock = sum(arrivals) + fastest
    P, r = np.zeros((len(states), len(services), len(states))), np.zeros((len(states), len(services)))
    for s, x in enumerate(states):
        for a, service in enumerate(services):
            events = [(rate, None, queue) for queue, rate in enumerate(arrivals)] + list(service(x))
            r[s, a] = -cost(x)
            P[s, a, s] = 1 - sum(rate for rate, _, _ in events) / clock
            for rate, source, target in events:
                after = list(x)
                if target is None or x[target] < truncation:
                    if source is not None:
                        after[source] -= 1
                    if target is not None:
                        after[target] += 1
                P[s, a, states.index(tuple(after))] += rate / clock
    return P, r
