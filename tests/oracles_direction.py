"""The step problem solved slowly and independently: nothing here is imported from the package.

    maximise  g·x   subject to   ½ xᵀHx ≤ δ   and   c + B x ≤ 0

With H = LLᵀ and z = Lᵀx/√(2δ) the ball has radius 1; everything below is in those coordinates.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize, nnls


class White(NamedTuple):
    """maximise g·z subject to ‖z‖ ≤ 1 and c + Bz ≤ 0, rows of B of length 1 (or 0)."""

    g: np.ndarray
    B: np.ndarray
    c: np.ndarray


def whiten(H: np.ndarray, g: np.ndarray, B: np.ndarray, c: np.ndarray, delta: float) -> White:
    inverse = np.linalg.inv(np.linalg.cholesky(H)) * np.sqrt(2 * delta)
    g, B = inverse @ g, B @ inverse.T
    size = np.linalg.norm(B, axis=1)
    size = np.where(size > 0, size, 1.0)
    return White(g, B / size[:, None], c / size)


def nearest(p: White) -> np.ndarray | None:
    """The point nearest to 0 that obeys the limits: least-distance programming (Lawson & Hanson, ch. 23)."""
    E = np.vstack([-p.B.T, p.c[None, :]])
    f = np.zeros(len(p.g) + 1)
    f[-1] = 1.0
    u, _ = nnls(E, f, maxiter=1000)
    residual = E @ u - f
    if abs(residual[-1]) < 1e-12:
        return None  # the limits contradict each other
    return -residual[:-1] / residual[-1]


def upper_bound(p: White, nu: np.ndarray) -> float:
    """Weak duality: no feasible point gains more than ‖g − Bᵀν‖ − ν·c, whatever ν ≥ 0."""
    assert (nu >= 0).all()
    return float(np.linalg.norm(p.g - p.B.T @ nu) - nu @ p.c)


def dual(p: White) -> float:
    """The least upper bound, by a general-purpose solver from several starts."""
    size = np.linalg.norm(p.g)
    starts = [np.zeros(len(p.c)), np.full(len(p.c), 0.5 * size), np.maximum(p.B @ p.g, 0)]

    def smooth(nu):
        rest = p.g - p.B.T @ nu
        length = np.linalg.norm(rest)
        return length - nu @ p.c, -(p.B @ rest) / max(length, 1e-300) - p.c

    best = np.inf
    for start in starts:
        found = minimize(
            smooth, start, jac=True, bounds=[(0, None)] * len(p.c), method="L-BFGS-B",
            options={"ftol": 1e-16, "gtol": 1e-13, "maxiter": 1000},
        )  # fmt: skip
        best = min(best, upper_bound(p, np.maximum(found.x, 0)))
    return best


def primal(p: White) -> float:
    """The same optimum by sequential quadratic programming on the primal, from the point nearest to 0."""
    start = nearest(p)
    assert start is not None
    limits = [
        {"type": "ineq", "fun": lambda z: 1 - z @ z, "jac": lambda z: -2 * z},
        {"type": "ineq", "fun": lambda z: -p.c - p.B @ z, "jac": lambda z: -p.B},
    ]
    size = np.linalg.norm(p.g)
    found = minimize(
        lambda z: -(p.g @ z) / size, start, jac=lambda z: -p.g / size, constraints=limits, method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )  # fmt: skip
    return float(p.g @ found.x)
