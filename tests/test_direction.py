"""The closed-form step against independent solvers, with any number of limits and in every corner."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kemeny.learning.steps.direction import Case, Gram, plan
from tests import oracles_direction as oracle

DELTA = 0.01
TOLERANCE = 1e-6
"""Of the optimal value, relative to what the step would gain without limits."""


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@functools.cache
def batched_plan(dtype=np.float64):
    def solve(q, r, s, c):
        return plan(Gram(q, r, s, c, DELTA))

    vectorised = jax.jit(jax.vmap(solve))

    def run(H, g, B, c):
        """Plans of many problems, and the points they describe."""
        ng, nB = np.linalg.solve(H, g[..., None])[..., 0], np.linalg.solve(H, B.swapaxes(1, 2)).swapaxes(1, 2)
        q = np.einsum("ni,ni->n", g, ng)
        r = np.einsum("nki,ni->nk", B, ng)
        s = np.einsum("nki,nji->nkj", B, nB)
        found = vectorised(*(jnp.asarray(a, dtype) for a in (q, r, s, c)))
        a, b = np.asarray(found.along_g, np.float64), np.asarray(found.along_b, np.float64)
        return a[:, None] * ng + np.einsum("nk,nki->ni", b, nB), np.asarray(found.case), np.asarray(found.nu), (a, b)

    return run


def problems(rng, count, dim, limits):
    """Random ones, half of them with limits so near that they bind."""
    A = rng.standard_normal((count, dim, dim))
    H = A @ A.swapaxes(1, 2) + 0.1 * np.eye(dim)
    g, B = rng.standard_normal((count, dim)), rng.standard_normal((count, limits, dim))
    reach = np.sqrt(2 * DELTA * np.einsum("nki,nki->nk", B, np.linalg.solve(H, B.swapaxes(1, 2)).swapaxes(1, 2)))
    c = reach * rng.uniform(-1.5, 1.2, (count, limits))
    return H, g, B, c


def check_optimal(H, g, B, c, x, case, nu, slip=1e-9):
    """Feasible up to rounding and no better point, or RECOVERY and there is no feasible point.

    Weak duality proves optimality: no feasible point gains more than the plan's multipliers ν ≥ 0 allow.
    """
    p = oracle.whiten(H, g, B, c, DELTA)
    z = np.linalg.cholesky(H).T @ x / np.sqrt(2 * DELTA)
    size = np.linalg.norm(p.g)
    assert np.linalg.norm(z) <= 1 + slip
    if case == Case.RECOVERY:
        nearest = oracle.nearest(p)
        far = np.inf if nearest is None else np.linalg.norm(nearest)
        assert far >= 1 - 1e-9
        if far < 1e3:  # farther, and the limits as good as contradict each other
            np.testing.assert_allclose(z, nearest / far, atol=1e-6)
        return
    assert (p.c + p.B @ z <= slip * (1 + np.abs(p.c))).all()
    assert (nu >= -1e-6 * np.abs(nu).max()).all()
    length = np.sqrt(2 * DELTA * np.einsum("ki,ik->k", B, np.linalg.solve(H, B.T)))
    assert p.g @ z >= oracle.upper_bound(p, np.maximum(nu * length, 0)) - TOLERANCE * size
    if case == Case.INACTIVE:
        assert p.g @ z == pytest.approx(size, rel=1e-9)


@pytest.mark.parametrize("limits", [1, 2, 3, 5])
def test_no_feasible_point_is_better(limits):
    H, g, B, c = problems(np.random.default_rng(limits), 1000, 6, limits)
    x, case, nu, _ = batched_plan()(H, g, B, c)
    for i in range(len(g)):
        check_optimal(H[i], g[i], B[i], c[i], x[i], case[i], nu[i])
    assert min(np.bincount(case, minlength=3)) > len(g) // 50  # all three cases occurred


@pytest.mark.parametrize("solver", [oracle.primal, oracle.dual])
def test_agrees_with_general_purpose_solvers(solver):
    H, g, B, c = problems(np.random.default_rng(10), 60, 4, 2)
    x, case, _, _ = batched_plan()(H, g, B, c)
    compared = 0
    for i in np.flatnonzero(case != Case.RECOVERY):
        p = oracle.whiten(H[i], g[i], B[i], c[i], DELTA)
        assert g[i] @ x[i] == pytest.approx(solver(p), abs=TOLERANCE * np.linalg.norm(p.g))
        compared += 1
    assert compared > 30


def three_points(q, r, s, c):
    """The formula for one limit, written out: coefficients of H⁻¹g and H⁻¹b."""
    radius = np.sqrt(2 * DELTA)
    if c > 0 and c > radius * np.sqrt(s):
        return 0.0, -radius / np.sqrt(s), Case.RECOVERY
    if c + radius * r / np.sqrt(q) <= 0:
        return radius / np.sqrt(q), 0.0, Case.INACTIVE
    reach = np.sqrt((2 * DELTA - c**2 / s) / (q - r**2 / s))
    return reach, -c / s - reach * r / s, Case.ACTIVE


def test_one_limit_is_the_three_point_formula():
    H, g, B, c = problems(np.random.default_rng(11), 500, 5, 1)
    _, case, _, (a, b) = batched_plan()(H, g, B, c)
    for i in range(len(g)):
        ng, nb = np.linalg.solve(H[i], g[i]), np.linalg.solve(H[i], B[i, 0])
        expected = three_points(g[i] @ ng, g[i] @ nb, B[i, 0] @ nb, c[i, 0])
        assert case[i] == expected[2]
        np.testing.assert_allclose([a[i], b[i, 0]], expected[:2], rtol=1e-9, atol=1e-12)


def test_no_limit_is_trpo():
    none = jnp.zeros(0)
    found = plan(Gram(jnp.array(4.0), none, jnp.zeros((0, 0)), none, DELTA))
    assert float(found.along_g) == pytest.approx(np.sqrt(2 * DELTA / 4.0))
    assert found.along_b.shape == (0,)
    assert found.case == Case.INACTIVE
    assert plan(Gram(jnp.array(0.0), none, jnp.zeros((0, 0)), none, DELTA)).along_g == 0


RADIUS = np.sqrt(2 * DELTA)
E0, E1 = np.eye(2)
CORNERS = {
    # name: g, B, c, case, x
    "out of reach": (E0, [E1], [2 * RADIUS], Case.RECOVERY, -RADIUS * E1),
    "within reach": (E0, [E1], [0.6 * RADIUS], Case.ACTIVE, RADIUS * (0.8 * E0 - 0.6 * E1)),
    "just kept": (E0, [E1], [0.0], Case.INACTIVE, RADIUS * E0),
    "slack beyond reach": (E0, [E0], [-2 * RADIUS], Case.INACTIVE, RADIUS * E0),
    "b along g": (E0, [E0], [-0.5 * RADIUS], Case.ACTIVE, 0.5 * RADIUS * E0),
    "b along g, exceeded": (E0, [E0], [0.5 * RADIUS], Case.ACTIVE, -0.5 * RADIUS * E0),
    "b along g, on the limit": (E0, [E0], [0.0], Case.ACTIVE, 0 * E0),
    "b against g": (E0, [-E0], [0.5 * RADIUS], Case.INACTIVE, RADIUS * E0),
    "b = 0, kept": (E0, [0 * E0], [-1.0], Case.INACTIVE, RADIUS * E0),
    "b = 0, exceeded": (E0, [0 * E0], [1.0], Case.RECOVERY, 0 * E0),
    "g = 0, kept": (0 * E0, [E0], [-1.0], Case.INACTIVE, 0 * E0),
    "g = 0, exceeded": (0 * E0, [E0], [0.5 * RADIUS], Case.ACTIVE, -0.5 * RADIUS * E0),
    "g = 0, out of reach": (0 * E0, [E0], [2 * RADIUS], Case.RECOVERY, -RADIUS * E0),
    "g = 0 and b = 0": (0 * E0, [0 * E0], [0.0], Case.INACTIVE, 0 * E0),
    "b = 0 beside another": (E0, [0 * E0, E1], [1.0, 2.0], Case.RECOVERY, -RADIUS * E1),
    "the same limit twice": (E0, [E0, E0], [-0.5 * RADIUS] * 2, Case.ACTIVE, 0.5 * RADIUS * E0),
    "parallel, one tighter": (E0, [E0, 3 * E0], [-0.5 * RADIUS, -0.9 * RADIUS], Case.ACTIVE, 0.3 * RADIUS * E0),
    "a corridor": (E0 + E1, [E0, -E0], [-0.6 * RADIUS, 0.6 * RADIUS], Case.ACTIVE, RADIUS * (0.6 * E0 + 0.8 * E1)),
    "a corner": (E0 + E1, [E0, E1], [-0.1 * RADIUS, -0.2 * RADIUS], Case.ACTIVE, RADIUS * (0.1 * E0 + 0.2 * E1)),
    "contradiction": (E0, [E1, -E1], [0.2 * RADIUS, 0.3 * RADIUS], Case.RECOVERY, RADIUS * E1),
    "contradiction, one kept": (E0, [E1, -E1], [-0.2 * RADIUS, 0.3 * RADIUS], Case.RECOVERY, RADIUS * E1),
    "both out of reach": (E0, [E0, E1], [2.0, 2.0], Case.RECOVERY, -RADIUS * np.sqrt(0.5) * (E0 + E1)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size_g", [1.0, 1e-12, 1e8])
@pytest.mark.parametrize("size_b", [1.0, 1e-12, 1e8])
@pytest.mark.parametrize("corner", CORNERS)
def test_corners(corner, size_g, size_b, dtype):
    """Each corner has the answer found by hand, however small or large the gradients are."""
    g, B, c, case, x = CORNERS[corner]
    g, B, c = np.array(g) * size_g, np.array(B) * size_b, np.array(c) * size_b
    found, which, _, (a, b) = batched_plan(dtype)(np.eye(2)[None], g[None], B[None], c[None])
    assert Case(which[0]) == case
    assert np.isfinite([a[0], *b[0]]).all()
    np.testing.assert_allclose(found[0], x, atol=1e-12 if dtype == np.float64 else 1e-6)


def test_nearly_parallel_gradients():
    """Angles from 1 down to nothing between g and b, and between two limits: still optimal, still feasible."""
    rng = np.random.default_rng(12)
    H, g, B, c = problems(rng, 400, 5, 2)
    H[:] = np.eye(5)  # no rounding but that of the plan's own numbers
    angle = 10.0 ** rng.uniform(-9, 0, (400, 1))
    B[:200, 0] = g[:200] + angle[:200] * B[:200, 0]
    B[200:, 1] = B[200:, 0] * rng.choice([-1, 1], (200, 1)) + angle[200:] * B[200:, 1]
    x, case, nu, _ = batched_plan()(H, g, B, c)
    for i in range(400):
        check_optimal(H[i], g[i], B[i], c[i], x[i], case[i], nu[i], slip=1e-5)


def test_single_precision_stays_feasible():
    """What training computes with: limits and ball hold to 1e-3 of the ball, the value is within 1 % of the best."""
    H, g, B, c = problems(np.random.default_rng(13), 1000, 6, 2)
    x, case, _, _ = batched_plan(np.float32)(H, g, B, c)
    exact, exact_case, _, _ = batched_plan()(H, g, B, c)
    assert (case == exact_case).mean() > 0.995
    for i in np.flatnonzero((case != Case.RECOVERY) & (exact_case != Case.RECOVERY)):
        p = oracle.whiten(H[i], g[i], B[i], c[i], DELTA)
        z = np.linalg.cholesky(H[i]).T @ x[i] / RADIUS
        assert np.linalg.norm(z) < 1 + 1e-3
        assert (p.c + p.B @ z).max() < 1e-3
        assert g[i] @ x[i] == pytest.approx(g[i] @ exact[i], abs=0.01 * np.linalg.norm(p.g))
