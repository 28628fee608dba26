"""Linear systems with a quadratic cost per step: the affine rule with the least average cost, also under a limit.

The system is x' = A·x + B·u + c + w with independent noise w of mean 0 and covariance Σ. Two things are measured in
each step: the effort uᵀ·R·u, and the error (x − x₀)ᵀ·Q·(x − x₀) from the wanted state x₀. All actions are allowed.

The rule that minimises the mean of effort + weight · error is affine, u = offset − gain·x, and comes from the Riccati
equation (Bertsekas, Dynamic Programming and Optimal Control, vol. 1, §3.1). No rule of any other kind is better. The
least effort with a mean error of at most a limit is that of the weight at which the mean error is the limit. For a rule
with less effort and no larger error would have a smaller weighted sum, too, and there is none.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg as sl
from scipy.optimize import brentq

from kemeny.errors import UserError

STABLE = 1 - 1e-9
"""The largest eigenvalue that still counts as stable, in absolute value."""
WEIGHTS = (1e-9, 1e9)
"""Weights between which the weight of a limit is searched, in units of effort per error."""


@dataclasses.dataclass(frozen=True, eq=False)
class LinearSystem:
    """What the next state depends on, and what is measured in a step."""

    A: np.ndarray
    B: np.ndarray
    """States × actions."""
    c: np.ndarray
    noise: np.ndarray
    """Σ, the covariance of w."""
    error: np.ndarray
    """Q."""
    effort: np.ndarray
    """R, positive definite."""
    wanted: np.ndarray
    """x₀."""

    @property
    def drift(self) -> np.ndarray:
        """Where the wanted state would go in a step without action: c, if states are counted from x₀."""
        return self.A @ self.wanted + self.c - self.wanted


@dataclasses.dataclass(frozen=True, eq=False)
class AffineRule:
    """u = offset − gain·x; `rule(x)` for one state, `rule.rows(X)` for one state per row."""

    gain: np.ndarray
    """K, actions × states."""
    offset: np.ndarray
    """−k."""

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        """The action in a state."""
        return self.rows(np.asarray(observation)[None])[0]

    def rows(self, observations: np.ndarray, masks: np.ndarray | None = None) -> np.ndarray:
        """The actions in several states; masks mean nothing here."""
        del masks
        return self.offset - np.asarray(observations, float) @ self.gain.T


class Measured(NamedTuple):
    """The steady state of a system under an affine rule, exactly."""

    effort: float
    error: float
    mean: np.ndarray
    """Of the states."""
    covariance: np.ndarray
    action_mean: np.ndarray
    action_covariance: np.ndarray


class Optimum(NamedTuple):
    """The best rule, and what it costs."""

    rule: AffineRule
    effort: float
    error: float
    weight: float
    """Of the error. Under a limit it is the price of the limit: by how much the effort falls per unit of the limit."""
    cost: float
    """effort + weight · error, from the Riccati equation."""


def best_rule(system: LinearSystem, weight: float) -> Optimum:
    """The rule with the least mean of effort + weight · error.

    h(x) = xᵀPx + 2qᵀx solves ρ + h(x) = min_u [effort + weight · error + E h(x')], where x is counted from x₀. The
    quadratic part is the Riccati equation of P; the linear part is q = Fᵀ(P·drift + q) with F = A − BK.
    """
    A, B, drift = system.A, system.B, system.drift
    P = sl.solve_discrete_are(A, B, weight * system.error, system.effort)
    S = system.effort + B.T @ P @ B
    K = np.linalg.solve(S, B.T @ P @ A)
    F = A - B @ K
    q = np.linalg.solve(np.eye(len(A)) - F.T, F.T @ P @ drift)
    k = np.linalg.solve(S, B.T @ (P @ drift + q))
    cost = np.trace(P @ system.noise) + drift @ P @ drift + 2 * q @ drift - k @ S @ k
    rule = AffineRule(K, K @ system.wanted - k)
    measured = measure(system, rule)
    return Optimum(rule, measured.effort, measured.error, weight, float(cost))


def measure(system: LinearSystem, rule: AffineRule) -> Measured:
    """Mean effort and mean error of any affine rule that keeps the system stable, by the Lyapunov equation."""
    F = system.A - system.B @ rule.gain
    radius = float(np.abs(np.linalg.eigvals(F)).max())
    if radius > STABLE:
        raise UserError(
            f"This rule does not keep the system stable: deviations grow by a factor of {radius:.4g} per step."
        )
    mean = np.linalg.solve(np.eye(len(F)) - F, system.c + system.B @ rule.offset)
    covariance = sl.solve_discrete_lyapunov(F, system.noise)
    action_mean = rule.offset - rule.gain @ mean
    action_covariance = rule.gain @ covariance @ rule.gain.T
    return Measured(
        _mean_square(system.effort, action_mean, action_covariance),
        _mean_square(system.error, mean - system.wanted, covariance),
        mean,
        covariance,
        action_mean,
        action_covariance,
    )


def _mean_square(weights: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> float:
    return float(mean @ weights @ mean + np.trace(weights @ covariance))


def best_rule_within(system: LinearSystem, limit: float) -> Optimum:
    """The rule with the least mean effort among those whose mean error is at most `limit`.

    If doing nothing keeps the limit, that is best, and the price of the limit is 0.
    """
    count = system.B.shape[1]
    idle = AffineRule(np.zeros((count, len(system.A))), np.zeros(count))
    if np.abs(np.linalg.eigvals(system.A)).max() <= STABLE and (at_rest := measure(system, idle)).error <= limit:
        return Optimum(idle, 0.0, at_rest.error, 0.0, 0.0)

    def excess(log_weight: float) -> float:
        return best_rule(system, float(np.exp(log_weight))).error - limit

    low, high = np.log(WEIGHTS)
    if excess(high) > 0:
        raise UserError(
            f"No rule keeps the limit of {limit:g}: the error is {limit + excess(high):.4g} on average even if effort "
            "is free. Raise the limit."
        )
    found: Any = brentq(excess, low, high, xtol=1e-13)
    return best_rule(system, float(np.exp(found)))
