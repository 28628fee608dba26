"""Random chains, models and policies for property tests."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

SEEDS = st.integers(0, 2**32 - 1)


def dirichlet_rows(rng, shape, concentration):
    rows = rng.gamma(concentration, size=shape) + 1e-12
    return rows / rows.sum(axis=-1, keepdims=True)


@st.composite
def ergodic_chains(draw, max_states=7):
    """Every entry is positive; with a small concentration one entry dominates each row and the chain mixes slowly."""
    n = draw(st.integers(1, max_states))
    rng = np.random.default_rng(draw(SEEDS))
    P = dirichlet_rows(rng, (n, n), draw(st.sampled_from([0.2, 0.5, 1.0, 5.0])))
    return (0.98 * P + 0.02 / n) / (0.98 * P + 0.02 / n).sum(axis=1, keepdims=True)


@st.composite
def structured_chains(draw, max_states=6):
    """One or two successors per state: periods, transient states and several classes all occur."""
    n = draw(st.integers(1, max_states))
    P = np.zeros((n, n))
    for s in range(n):
        for t in draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=2)):
            P[s, t] += 1
    return P / P.sum(axis=1, keepdims=True)


@st.composite
def models(draw, max_states=5, max_actions=3, transient=False):
    """P and r of an ergodic model or, if `transient`, of a unichain model with transient states."""
    n, actions = draw(st.integers(2, max_states)), draw(st.integers(2, max_actions))
    rng = np.random.default_rng(draw(SEEDS))
    P = dirichlet_rows(rng, (n, actions, n), draw(st.sampled_from([0.2, 0.5, 1.0])))
    P = 0.95 * P + 0.05 / n
    if transient:
        left = draw(st.integers(1, n - 1))
        P[left:, :, :left] = 0
    P /= P.sum(axis=-1, keepdims=True)
    return P, rng.standard_normal((n, actions)) * draw(st.sampled_from([0.1, 1.0, 10.0]))


@st.composite
def comparisons(draw, transient=False):
    """A model and two policies, close to each other or far apart, with similar or very unequal probabilities."""
    P, r = draw(models(transient=transient))
    rng = np.random.default_rng(draw(SEEDS))
    old = dirichlet_rows(rng, r.shape, draw(st.sampled_from([0.3, 1.0])))
    other = dirichlet_rows(rng, r.shape, draw(st.sampled_from([0.1, 1.0])))
    share = draw(st.sampled_from([0.001, 0.03, 0.3, 1.0]))
    return P, r, old, (1 - share) * old + share * other


repeatable = settings(max_examples=60, deadline=None, derandomize=True)
"""Few examples, and the same ones in every run."""
