"""Slow and obvious versions of what the library computes; nothing here imports from it."""

import numpy as np


def gae_double_sum(reward, value, next_value, trace, offset, discount, lam):
    """Aₜ = Σ_{t' ≥ t} (discount·λ)^{t'−t} δ_t', stopping after the first t' whose trace is 0."""
    time, envs = reward.shape
    advantage = np.zeros((time, envs))
    for e in range(envs):
        for t in range(time):
            weight = 1.0
            for u in range(t, time):
                delta = reward[u, e] - offset + discount * next_value[u, e] - value[u, e]
                advantage[t, e] += weight * delta
                if not trace[u, e]:
                    break
                weight *= discount * lam
    return advantage


def vtrace_double_sum(reward, value, next_value, trace, kept, offset, discount, lam):
    """Aₜ = Σ_{t' ≥ t} (discount·λ)^{t'−t} · kept_{t+1} ⋯ kept_{t'} · δ_t', stopping after the first trace that is 0."""
    time, envs = reward.shape
    advantage = np.zeros((time, envs))
    for e in range(envs):
        for t in range(time):
            for u in range(t, time):
                if not np.all(trace[t:u, e]):
                    break
                delta = reward[u, e] - offset + discount * next_value[u, e] - value[u, e]
                advantage[t, e] += (discount * lam) ** (u - t) * np.prod(kept[t + 1 : u + 1, e]) * delta
    return advantage


def stationary(P):
    """The distribution with d P = d, by least squares."""
    n = len(P)
    A = np.vstack([P.T - np.eye(n), np.ones(n)])
    return np.linalg.lstsq(A, np.append(np.zeros(n), 1.0), rcond=None)[0]


def average_reward(P, r, policy):
    """ρ(π) for P[s, a, s'], r[s, a], π[s, a]."""
    P_pi = np.einsum("sa,sat->st", policy, P)
    return float(stationary(P_pi) @ np.sum(policy * r, 1))


def bias(P, r, policy):
    """v̄ with d·v̄ = 0, by iterating v ← r − ρ + P v on the lazy chain."""
    P_pi, r_pi = np.einsum("sa,sat->st", policy, P), np.sum(policy * r, 1)
    d = stationary(P_pi)
    rho = d @ r_pi
    v = np.zeros(len(d))
    for _ in range(200_000):
        new = v + 0.5 * (r_pi - rho + P_pi @ v - v)
        new -= d @ new
        if np.abs(new - v).max() < 1e-14:
            break
        v = new
    return v


def discounted_value(P, r, policy, gamma):
    """v_γ by summing γᵗ Pᵗ r until the rest cannot matter."""
    P_pi, term = np.einsum("sa,sat->st", policy, P), np.sum(policy * r, 1)
    v, weight = np.zeros(len(term)), 1.0
    while weight > 1e-15 * (1 - gamma):
        v = v + weight * term
        term = P_pi @ term
        weight *= gamma
    return v


def random_mdp(rng, states=4, actions=3):
    """An ergodic MDP: every transition is possible."""
    P = rng.dirichlet(np.ones(states), size=(states, actions))
    return P, rng.normal(size=(states, actions))


def simulate(rng, P, r, policy, time, envs):
    """States, actions, rewards and next states of `envs` chains."""
    states, actions = r.shape
    s = np.empty((time, envs), int)
    a, s_next, reward = np.empty_like(s), np.empty_like(s), np.empty((time, envs))
    cumulative_policy, cumulative_P = policy.cumsum(1), P.cumsum(2)
    now = rng.integers(states, size=envs)
    for t in range(time):
        s[t] = now
        a[t] = (rng.random((envs, 1)) > cumulative_policy[now]).sum(1).clip(max=actions - 1)
        reward[t] = r[now, a[t]]
        now = (rng.random((envs, 1)) > cumulative_P[now, a[t]]).sum(1).clip(max=states - 1)
        s_next[t] = now
    return s, a, reward, s_next


def ridge_regression(features, target, weight, ridge):
    """The coefficients with the least weighted mean of squared errors plus ridge · their squares: as many samples more
    as coefficients, in double precision."""
    root = np.sqrt(weight / weight.sum(), dtype=np.float64)
    more = np.sqrt(ridge) * np.eye(features.shape[1])
    rows = np.concatenate([features * root[:, None], more])
    return np.linalg.lstsq(rows, np.concatenate([target * root, np.zeros(len(more))]), rcond=None)[0]
