"""The reset cost by itself (`--reset-cost auto`): the price of a fall at which falls are as rare as they are to be.

    maximise ρ   subject to   falls per step ≤ target

has the Lagrangian ρ − cost · (falls − target), and its multiplier is a reset cost. RVI-SAC finds it by gradient ascent
on cost · (falls − target) (Hisaki & Ono 2024). Here the ascent is once per batch, in units of the cost that it began
with, and the error is relative: (falls − target)/(falls + target) is between −1 and 1, whatever the rewards and however
often an untrained policy falls.
"""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from kemeny.learning.rare_events import memory_for
from kemeny.learning.running_mean import RunningMean
from kemeny.rollout import Array as Recorded
from kemeny.rollout import Rollout

STEP = 0.01
"""Share of the first cost that one batch adds or takes off at most. An untrained policy falls far too often for
hundreds of batches, and a cost that grew fast would by then be so large that nothing else counts."""
LARGEST = 10.0
"""Times the first cost: beyond, a fall outweighs all that can be learned from the rewards."""


@dataclasses.dataclass(frozen=True)
class FallTarget:
    """What is looked for, and where the search begins."""

    falls: float
    """Per step."""
    first_cost: float
    """Of a fall, for rewards of order one."""


class ResetCost(eqx.Module):
    """What a fall costs now, and how it came to that."""

    value: Float[Array, ""]
    first: Float[Array, ""]
    """What it was at first, in units of the reward."""
    falls: RunningMean
    """Per step."""

    @classmethod
    def init(cls, target: FallTarget) -> "ResetCost":
        """Before the first batch."""
        first = jnp.array(target.first_cost, jnp.float32)
        return cls(first, first, RunningMean.init(1))

    def settled(self, target: FallTarget, unit: Float[Array, ""]) -> "ResetCost":
        """With the unit of the reward, which the first batch shows (`first_batch.py`)."""
        first = jnp.where(self.falls.batches == 0, target.first_cost * unit, self.first)
        return ResetCost(jnp.where(self.falls.batches == 0, first, self.value), first, self.falls)

    def after(self, target: FallTarget, rollout: Rollout) -> "ResetCost":
        """After one more batch: dearer if there were too many falls, otherwise cheaper."""
        assert rollout.fall is not None, "falls are to be charged"
        memory = memory_for(target.falls, rollout.steps)
        falls = self.falls.add(jnp.mean(rollout.fall, keepdims=True).reshape(1), (memory,))
        rate = falls.mean[0]
        error = (rate - target.falls) / (rate + target.falls)
        value = jnp.clip(self.value + STEP * self.first * error, 0, LARGEST * self.first)
        return ResetCost(value, self.first, falls)


def charged(rollout: Rollout, cost: ResetCost | None) -> tuple[Float[Recorded, "time env"], ...]:
    """The signals of a batch, with what each fall costs now subtracted from the reward, unless that has been done."""
    if cost is None:
        return rollout.signals
    assert rollout.fall is not None, "falls are to be charged"
    reward, *costs = rollout.signals
    return (reward - jnp.where(rollout.fall, cost.value, 0), *costs)
