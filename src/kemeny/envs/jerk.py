"""The cost `jerk`: how much the action changes from one step of a trajectory to the next."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from kemeny.envs.costs import Cost
from kemeny.envs.pool import Comeback, Pool, Stateful, Step
from kemeny.errors import Damaged, UserError
from kemeny.spec import Continuous, Spec

JERK = "jerk"
LAST, BEGUN = "jerk_last", "jerk_begun"
"""What the saved state of a pool has more."""


def without_jerk(costs: Sequence[Cost]) -> tuple[Cost, ...]:
    """Those that an environment gives."""
    return tuple(cost for cost in costs if cost != JERK)


def refuse_jerk(spec: Spec, env: str) -> None:
    """Refuse an environment whose actions are chosen: no change of a choice is larger than another."""
    if not isinstance(spec.action, Continuous):
        raise UserError(
            f"{env} has actions to choose from, and the cost {JERK!r} is for actions of numbers (a Box): leave it out."
        )


class WithJerk:
    """A pool with the cost `jerk` among its costs: mean (aₜ − aₜ₋₁)² over the components, in the environment's units.

    Actions are as the environment got them, within its bounds. After a restart there is no action before: the first
    step of a trajectory costs nothing.
    """

    def __init__(self, pool: Pool, costs: Sequence[Cost]) -> None:
        """`pool` has all of these costs but `jerk`, in this order."""
        refuse_jerk(pool.spec, "The environment")
        self._pool, self.num_envs, self.spec, self.sent = pool, pool.num_envs, pool.spec, pool.sent
        self._places = [place for place, cost in enumerate(costs) if cost == JERK]
        self._last = np.zeros((pool.num_envs, pool.spec.action.array.size))
        self._begun = np.zeros(pool.num_envs, bool)
        """Which environments have taken a step since their restart."""
        self._stepping = self._everyone = np.arange(pool.num_envs)

    @property
    def comeback(self) -> Comeback:
        """As that of the pool: what is remembered here is in its saved state, or comes back by a replay."""
        return self._pool.comeback

    def reset(self, ids: np.ndarray) -> np.ndarray:
        """Restart these environments; returns their start observations, one row per id."""
        self._begun[ids] = False
        return self._pool.reset(ids)

    def send(self, action: np.ndarray, ids: np.ndarray | None = None) -> None:
        """Begin a step of all environments, or of these only; returns at once."""
        self._pool.send(action, ids)
        self.sent = self._pool.sent
        self._stepping = self._everyone if ids is None else np.array(ids, np.int64, ndmin=1)

    def recv(self) -> Step:
        """Wait for the step that was begun; its rows are in the order of the ids sent."""
        step, ids = self._pool.recv(), self._stepping
        action = self.sent.reshape(len(ids), -1).astype(np.float64)
        change = np.square(action - self._last[ids]).mean(1)
        jerk = np.where(self._begun[ids], change, 0.0)
        self._last[ids], self._begun[ids] = action, True
        costs = step.costs
        for place in self._places:
            costs = np.insert(costs, place, jerk, axis=1)
        return step._replace(costs=costs)

    def fast_forward(self, restarts: np.ndarray) -> None:
        """Bring a newly made pool to its state after so many restarts of each environment."""
        self._pool.fast_forward(restarts)

    def take_faults(self) -> list[str]:
        """What failed since the last call."""
        return self._pool.take_faults()

    def get_state(self) -> dict[str, np.ndarray]:
        """Where all environments are, if the pool can say so."""
        own = {LAST: self._last.copy(), BEGUN: self._begun.copy()}
        return {**cast(Stateful, self._pool).get_state(), **own}

    def set_state(self, arrays: dict[str, np.ndarray]) -> bool:
        """Bring a newly made pool to where another was; whether it got there."""
        theirs: dict[str, Any] = dict(arrays)
        last, begun = theirs.pop(LAST, None), theirs.pop(BEGUN, None)
        if not (_is_like(last, self._last) and _is_like(begun, self._begun)):
            raise Damaged("The checkpoint does not fit its run: it does not hold the last actions, for the cost jerk.")
        self._last[:], self._begun[:] = last, begun
        return cast(Stateful, self._pool).set_state(theirs)

    def close(self) -> None:
        """Close the pool."""
        self._pool.close()


def _is_like(found: np.ndarray | None, wanted: np.ndarray) -> bool:
    return found is not None and found.shape == wanted.shape and found.dtype == wanted.dtype
