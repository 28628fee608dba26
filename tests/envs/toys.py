"""Tiny environments whose numbers are all known, and some that misbehave."""

import os
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Counter(gymnasium.Env):
    """Observation: (start drawn from the seed, steps since restart, last action); ends itself at `falls_at`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012

    def __init__(self, falls_at=None, cuts_at=None, render_mode=None, dtype=np.float64):
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), dtype)
        self.action_space = spaces.Box(np.array([-1.0], np.float32), np.array([2.0], np.float32))
        self.falls_at, self.cuts_at, self.render_mode, self.dtype = falls_at, cuts_at, render_mode, dtype

    def observe(self):
        return np.array([self.start, self.steps, self.last], self.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.start, self.steps, self.last = self.np_random.random(), 0, 0.0
        return self.observe(), {}

    def step(self, action):
        self.steps += 1
        self.last = float(action[0])
        info = {"steps": self.steps, "x_velocity": -3.0, "cost": 0.5 * self.steps, "label": "text"}
        noise = self.np_random.random()
        return self.observe(), noise, self.steps == self.falls_at, self.steps == self.cuts_at, info

    def render(self):
        return np.full((4, 4, 3), self.steps, np.uint8)


class Sloppy(Counter):
    """Returns numbers in unusual types of Python and NumPy."""

    def observe(self):
        return [self.start, self.steps, self.last]

    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        return observation, np.array([2]), np.bool_(terminated), int(truncated), info


class Faulty(Counter):
    """Works until step `at`, then fails in the way that `how` names."""

    def __init__(self, how, at=3):
        super().__init__()
        self.how, self.at = how, at

    def step(self, action):
        values = super().step(action)
        if self.steps < self.at:
            return values
        if self.how == "raise":
            raise KeyError("the wheel came off")
        if self.how == "die":
            os._exit(7)
        if self.how == "hang":
            time.sleep(60)
        if self.how == "nan":
            return np.full(3, np.nan), float("nan"), *values[2:]
        if self.how == "huge":
            return np.full(3, 3e38), *values[1:]
        if self.how == "shape":
            return np.zeros(4), *values[1:]
        if self.how == "reward":
            return values[0], np.zeros(2), *values[2:]
        if self.how == "four":
            return values[:4]
        raise AssertionError(self.how)


class FailsToRestart(Counter):
    """Raises when it is restarted."""

    def reset(self, *, seed=None, options=None):
        raise OSError("no such arena")


class Mute(Exception):
    """An exception whose text raises."""

    def __str__(self):
        raise RuntimeError("no words")


class Rude(Counter):
    """Raises what it is given in one of its methods, from that method's `at`-th call on."""

    def __init__(self, method, error, at=1):
        self.method, self.error, self.left = method, error, at
        self.perhaps_raise("__init__")
        super().__init__()

    def perhaps_raise(self, method):
        if method == self.method:
            self.left -= 1
            if self.left <= 0:
                raise self.error

    def reset(self, *, seed=None, options=None):
        self.perhaps_raise("reset")
        return super().reset(seed=seed)

    def step(self, action):
        self.perhaps_raise("step")
        return super().step(action)

    def close(self):
        self.perhaps_raise("close")


class SixValues(Counter):
    """A step as in Safety-Gymnasium: the cost follows the reward."""

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, 10.0 * self.steps, terminated, truncated, {}


class Grid(gymnasium.Env):
    """Discrete states 5, 6, 7 and actions 3, 4: action 4 moves on, 3 stays."""

    def __init__(self):
        self.observation_space = spaces.Discrete(3, start=5)
        self.action_space = spaces.Discrete(2, start=3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = 5
        return self.state, {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.state += int(action) - 3
        return self.state, 1, False, False, {}


class Aim(gymnasium.Env):
    """One action between bounds; reward −((a − target) / half the distance of the bounds)², the same for ever."""

    def __init__(self, low, high, target, dtype=np.float32):
        self.observation_space = spaces.Box(-1.0, 1.0, (1,))
        self.action_space = spaces.Box(low, high, (1,), dtype)
        self.target, self.reach = target, (high - low) / 2

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return np.ones(1, np.float32), -(((float(action[0]) - self.target) / self.reach) ** 2), False, False, {}


class Spaces(gymnasium.Env):
    """Has the spaces that it is given; for spaces that are refused."""

    def __init__(self, observation, action):
        self.observation_space, self.action_space = observation, action

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        self.took = action
        return self.observation_space.sample(), 0.0, False, False, {}
