"""Heating a room under random weather: a continuous task whose best average is known, with and without a limit.

    kemeny train kemeny/Heating-v0
    kemeny train kemeny/Heating-v0 --algorithm acpo --cost discomfort --limit 0.5

    from kemeny.tasks import Heating
    Heating().best()                # the best rule for the reward, and its average
    Heating().best_within(0.5)      # the least energy with a mean discomfort of at most 0.5

The states are three temperatures in °C: of the room, of its wall, and outdoors. Heat flows between them in proportion
to their differences. The temperature outdoors wanders around its mean (an AR(1) process), and people, sun and open
windows add or take heat at random. The action is the heating power in kW.

The reward of a step is −(energy + comfort · discomfort). The energy is the square of the power: the more is drawn, the
more a kilowatt costs. The discomfort, also in `info`, is the squared difference between the room's temperature and the
wanted one. So the task is linear with a quadratic cost, and its optimum is exact (`kemeny.tasks.linear_quadratic`),
except that power is limited. The limits are so wide that the best rules reach them in fewer than one step of a million
(`clipped`).

A limit on the discomfort that binds has the same best rule whatever `comfort` is: it is the rule with the least energy.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from scipy.special import ndtr

from kemeny.errors import UserError
from kemeny.tasks.environment import OneCopy
from kemeny.tasks.linear_quadratic import STABLE, AffineRule, LinearSystem, Measured, Optimum, measure
from kemeny.tasks.linear_quadratic import best_rule as best_affine_rule
from kemeny.tasks.linear_quadratic import best_rule_within as best_affine_rule_within

ROOM, WALL, OUTDOORS = range(3)


class Step(NamedTuple):
    """What follows from a step, one row or number per copy."""

    states: np.ndarray
    """The next states."""
    energy: np.ndarray
    discomfort: np.ndarray


@dataclasses.dataclass(frozen=True)
class Heating:
    """A room, its wall and the weather. The heat that flows between two is a conductance times their difference."""

    comfort: float = 1.0
    """Weight of the discomfort in the reward; 0 leaves energy alone."""
    wanted: float = 21.0
    """The wanted temperature of the room, °C."""
    outdoors: float = 0.0
    """The mean temperature outdoors, °C."""
    outdoors_deviation: float = 4.0
    """The standard deviation of the temperature outdoors in the long run, K."""
    persistence: float = 0.97
    """How much of a deviation of the weather is left after a step: φ of the AR(1) process."""
    gains: float = 0.5
    """Mean heat from people and sun, kW."""
    gains_deviation: float = 0.6
    """The standard deviation of these gains, independent in each step, kW."""
    room_capacity: float = 0.6
    """Heat that warms the room by 1 K, kWh/K."""
    wall_capacity: float = 4.0
    """Heat that warms the wall by 1 K, kWh/K."""
    room_to_wall: float = 0.5
    """Conductance, kW/K."""
    room_to_outdoors: float = 0.1
    """Conductance, kW/K."""
    wall_to_outdoors: float = 0.2
    """Conductance, kW/K."""
    hours: float = 0.25
    """How long a step lasts."""
    most_power: float = 10.0
    """Power is between 0 and this, kW."""

    def __post_init__(self) -> None:
        check(self)

    @functools.cached_property
    def system(self) -> LinearSystem:
        """The physics: everything else, simulation and optimum, reads it here."""
        room, wall = self.hours / self.room_capacity, self.hours / self.wall_capacity
        A = np.eye(3)
        A[ROOM] += room * np.array(
            [-self.room_to_wall - self.room_to_outdoors, self.room_to_wall, self.room_to_outdoors]
        )
        A[WALL] += wall * np.array(
            [self.room_to_wall, -self.room_to_wall - self.wall_to_outdoors, self.wall_to_outdoors]
        )
        A[OUTDOORS, OUTDOORS] = self.persistence
        weather = self.outdoors_deviation**2 * (1 - self.persistence**2)
        return LinearSystem(
            A=A,
            B=np.array([[room], [0.0], [0.0]]),
            c=np.array([room * self.gains, 0.0, (1 - self.persistence) * self.outdoors]),
            noise=np.diag([(room * self.gains_deviation) ** 2, 0.0, weather]),
            error=np.diag([1.0, 0.0, 0.0]),
            effort=np.eye(1),
            wanted=np.array([self.wanted, self.wanted, self.outdoors]),
        )

    def step(self, states: np.ndarray, power: np.ndarray, rng: np.random.Generator) -> Step:
        """One step of all copies; states are (copies, 3), power is (copies, 1)."""
        system = self.system
        power = np.clip(power, 0.0, self.most_power)
        noise = rng.standard_normal(states.shape) * np.sqrt(system.noise.diagonal())
        error = states - system.wanted
        return Step(
            states @ system.A.T + power @ system.B.T + system.c + noise,
            np.einsum("ni,ij,nj->n", power, system.effort, power),
            np.einsum("ni,ij,nj->n", error, system.error, error),
        )

    def start(self, copies: int, rng: np.random.Generator) -> np.ndarray:
        """First states: the room as wanted, the wall at rest with it, and the weather of a day like any other."""
        states = np.empty((copies, 3))
        states[:, ROOM] = self.wanted
        shares = self.system.A[WALL] / (1 - self.system.A[WALL, WALL])
        states[:, WALL] = shares[ROOM] * self.wanted + shares[OUTDOORS] * self.outdoors
        states[:, OUTDOORS] = self.outdoors + self.outdoors_deviation * rng.standard_normal(copies)
        return states

    def best(self) -> Optimum:
        """The best rule for the reward; its `cost` is minus the best average reward."""
        return best_affine_rule(self.system, self.comfort)

    def best_within(self, limit: float) -> Optimum:
        """The rule with the least energy (`effort`) whose mean discomfort (`error`) is at most `limit`."""
        if not 0 < limit < math.inf:
            raise UserError(f"The limit on the discomfort is {limit}; it must be a positive number.")
        return best_affine_rule_within(self.system, limit)

    def measure(self, rule: AffineRule) -> Measured:
        """The steady state under an affine rule, exactly, if power had no limits."""
        return measure(self.system, rule)

    def clipped(self, rule: AffineRule) -> float:
        """The share of steps in which the rule asks for less than no power, or for more than there is."""
        found = self.measure(rule)
        mean, deviation = found.action_mean[0], math.sqrt(found.action_covariance[0, 0])
        if deviation == 0:
            return float(not 0 <= mean <= self.most_power)
        return float(ndtr(-mean / deviation) + ndtr((mean - self.most_power) / deviation))


def check(heating: Heating) -> None:
    """Refuse numbers that mean nothing, and a room whose temperature would grow without end."""
    for field in dataclasses.fields(heating):
        value = getattr(heating, field.name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UserError(f"Heating: {field.name} is {value!r}; it must be a finite number.")
    for name in ("room_capacity", "wall_capacity", "room_to_wall", "wall_to_outdoors", "hours", "most_power"):
        if not getattr(heating, name) > 0:
            raise UserError(f"Heating: {name} is {getattr(heating, name)}; it must be above 0.")
    for name in ("comfort", "room_to_outdoors", "outdoors_deviation", "gains_deviation"):
        if not getattr(heating, name) >= 0:
            raise UserError(f"Heating: {name} is {getattr(heating, name)}; it must be at least 0.")
    if not abs(heating.persistence) <= STABLE:
        raise UserError(
            f"Heating: persistence is {heating.persistence}; it must be between −1 and 1, or the weather wanders off "
            "without end."
        )
    radius = float(np.abs(np.linalg.eigvals(heating.system.A[:OUTDOORS, :OUTDOORS])).max())
    if radius > STABLE:
        raise UserError(
            f"Heating: a step of {heating.hours} hours is too long for these capacities and conductances: differences "
            f"of temperature would change by a factor of {radius:.3g} in a step. Choose a shorter step (hours)."
        )


class HeatingVectorEnv(VectorEnv):
    """Copies of the room, all stepped in one call. No copy ever terminates."""

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(self, heating: Heating, num_envs: int) -> None:
        self.heating, self.num_envs = heating, num_envs
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.single_action_space = spaces.Box(0.0, heating.most_power, (1,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.states = np.zeros((num_envs, 3))
        self._never = np.zeros(num_envs, bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Restart all copies, or those of `options["reset_mask"]`."""
        super().reset(seed=seed)
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        self.states[mask] = self.heating.start(int(mask.sum()), self.np_random)
        return self._observe(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        """One step of all copies."""
        power = np.asarray(actions, float).reshape(self.num_envs, 1)
        self.states, energy, discomfort = self.heating.step(self.states, power, self.np_random)
        reward = -(energy + self.heating.comfort * discomfort)
        return self._observe(), reward, self._never, self._never, {"energy": energy, "discomfort": discomfort}

    def get_state(self) -> dict[str, Any]:
        """All that the next steps depend on."""
        return {"states": self.states, "random": self.np_random}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.states, self.np_random = state["states"], state["random"]

    def _observe(self) -> np.ndarray:
        return self.states.astype(np.float32)


class HeatingEnv(OneCopy):
    """One room."""

    def __init__(self, heating: Heating) -> None:
        super().__init__(HeatingVectorEnv(heating, 1))
        self.heating = heating
