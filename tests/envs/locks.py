"""An environment with masks, nested observations and any kind of choice; and some whose masks are wrong."""

import gymnasium
import numpy as np
from gymnasium import spaces

KINDS = {
    "one": spaces.Discrete(4, start=2),
    "several": spaces.MultiDiscrete([3, 2, 4], start=[0, -1, 7]),
    "bits": spaces.MultiBinary(3),
}
NESTED = spaces.Dict(
    {
        "place": spaces.Box(-1.0, 1.0, (2, 1)),
        "time": spaces.Tuple((spaces.Discrete(5, start=1), spaces.MultiDiscrete([2, 3], start=[-1, 4]))),
        "bits": spaces.MultiBinary(2),
    }
)
"""2 + (5 + 5) + 2 numbers, in the order in which Gymnasium has them."""


def sizes(space):
    """Options of each choice."""
    return {spaces.Discrete: lambda: [int(space.n)], spaces.MultiDiscrete: lambda: space.nvec.tolist()}.get(
        type(space), lambda: [2] * space.n
    )()


class Locks(gymnasium.Env):
    """At each step some options are locked; whoever takes one of them is thrown out. Pays the numbers of the options.

    `wrong` says what is wrong with the mask from step `at` on.
    """

    def __init__(self, kind="one", wrong=None, at=3, falls_at=None, observation_space=NESTED):
        self.action_space, self.observation_space = KINDS[kind], observation_space
        self.wrong, self.at, self.falls_at = wrong, at, falls_at

    def observe(self):
        self.open = self.np_random.random(sum(sizes(self.action_space))) < 0.5
        first = np.cumsum([0, *sizes(self.action_space)[:-1]])
        self.open[first + self.np_random.integers(sizes(self.action_space))] = True
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()

    def action_mask(self):
        ended = self.steps == self.falls_at
        if ended or (self.wrong is not None and self.steps >= self.at):
            how = self.wrong or "missing"
            return {
                "missing": None,
                "late": self.open,
                "nothing": np.zeros_like(self.open),
                "shape": self.open[1:],
                "rows": self.open[None],
                "text": "all",
                "two": 2 * self.open.astype(int),
            }[how]
        return None if self.wrong == "late" else self.open.astype(np.int8)

    def info(self):
        mask = self.action_mask()
        return {} if mask is None else {"action_mask": mask}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), self.info()

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        start = getattr(self.action_space, "start", 0)
        options = np.reshape(action - start, -1)
        first = np.cumsum([0, *sizes(self.action_space)[:-1]])
        assert self.open[first + options].all(), "a locked option was taken"
        observation = self.observe()
        return observation, float(options.sum()), self.steps == self.falls_at, False, self.info()


class LocksByMethod(Locks):
    """Says what is locked as SB3-contrib has it."""

    def info(self):
        return {}

    def action_masks(self):
        return self.action_mask()


def wrapped(kind="one", wrong=None, at=3):
    """Below wrappers that know nothing of masks."""
    return gymnasium.wrappers.TimeLimit(gymnasium.wrappers.OrderEnforcing(LocksByMethod(kind, wrong, at)), 50)
