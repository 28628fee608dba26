"""Tiny tasks with analytic answers, and a policy that does as it is told."""

import gymnasium
import numpy as np
from gymnasium import spaces

from kemeny.experience.acting import Policy


def policy_for(observation_size, action_size, *, seed=0, std=0.5, discrete=False):
    """A random policy in NumPy, with an identity normaliser."""
    rng = np.random.default_rng(seed)
    arrays = {
        "policy/network/weights/0": rng.normal(size=(observation_size, action_size)).astype(np.float32),
        "policy/network/biases/0": np.zeros(action_size, np.float32),
        "normalizer/mean": np.zeros(observation_size, np.float32),
        "normalizer/scale": np.ones(observation_size, np.float32),
        "normalizer/clip": np.array(10.0, np.float32),
    }
    if not discrete:
        arrays["policy/log_std"] = np.full(action_size, np.log(std), np.float32)
    return Policy(arrays)


class Walk(gymnasium.Env):
    """Observation (start number, step); reward 1; ends in a fall at step `falls_at`, by itself at `times_out_at`."""

    def __init__(self, falls_at=0, times_out_at=0):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,))
        self.action_space = spaces.Box(-1.0, 1.0, (1,))
        self.falls_at, self.times_out_at, self.starts = falls_at, times_out_at, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.starts, self.t = self.starts + 1, 0
        return np.array([self.starts, 0.0], np.float32), {}

    def step(self, action):
        self.t += 1
        observation = np.array([self.starts, self.t], np.float32)
        return observation, 1.0, self.t == self.falls_at, self.t == self.times_out_at, {"cost": float(self.t)}


class Target(gymnasium.Env):
    """Reward −(a − target)², the same for ever: the best action is the target, whatever the criterion."""

    def __init__(self, target=0.5):
        self.observation_space = spaces.Box(-1.0, 1.0, (1,))
        self.action_space = spaces.Box(-1.0, 1.0, (1,))
        self.target = target

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), -float((action[0] - self.target) ** 2), False, False, {}


class Push(gymnasium.Env):
    """Reward a and cost a², the same in every step but the first `idle` ones of a trajectory, which cost nothing.

    A policy with mean μ and deviation σ costs μ² + σ² per step as it explores, and μ² by its mean action; if a
    trajectory is cut after L steps, (1 − idle/L) of that. So a limit on the one is another limit on the other.
    """

    def __init__(self, idle=0):
        self.observation_space = spaces.Box(-1.0, 1.0, (1,))
        self.action_space = spaces.Box(-5.0, 5.0, (1,))
        self.idle = idle

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        self.t += 1
        cost = float(action[0] ** 2) if self.t > self.idle else 0.0
        return np.ones(1, np.float32), float(action[0]), False, False, {"cost": cost}


class Patience(gymnasium.Env):
    """A loop of `length` states: leave it in state 0 for `now`, or go round for `later`, paid at the end of the round.

    Going round is worth later/length per step, leaving is worth now/2 (one step out, one back). A criterion that looks
    far enough goes round if later/length > now/2; under a discount γ, going round pays γ^(length−1)·later.
    """

    def __init__(self, length=6, now=1.0, later=4.0):
        self.observation_space = spaces.Discrete(length + 1)
        self.action_space = spaces.Discrete(2)
        self.length, self.now, self.later = length, now, later

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = 0
        return 0, {}

    def step(self, action):
        reward = 0.0
        if self.state == 0 and action == 0:
            self.state, reward = self.length, self.now  # outside
        elif self.state == self.length:
            self.state = 0
        else:
            self.state += 1
            if self.state == self.length:  # the round is complete
                self.state, reward = 0, self.later
        return self.state, reward, False, False, {}
