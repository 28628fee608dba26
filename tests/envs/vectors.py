"""A vector environment in every autoreset mode, the same environment unvectorised, and some that misbehave."""

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

EDGE, GOAL = 1.0, 2.0
"""Below −1 is a fall, above 2 a goal."""
OBSERVATIONS = spaces.Box(-np.inf, np.inf, (2,), np.float64)
ACTIONS = spaces.Box(-1.0, 1.0, (1,), np.float32)


def move(position, speed, push):
    """One step: where it leads, what it pays, and whether it ends."""
    speed = 0.9 * speed + 0.2 * push
    position = position + speed
    ended = (position < -EDGE) | (position > GOAL)
    reward = 1.0 - position * position + 100.0 * (position > GOAL)
    return position, speed, reward, ended


class Cart(gymnasium.Env):
    """A cart on a line; a fall on the left, a goal on the right, and cut after `cuts_at` steps if that is given."""

    def __init__(self, cuts_at=None):
        self.observation_space, self.action_space, self.cuts_at = OBSERVATIONS, ACTIONS, cuts_at

    def put(self, position, speed):
        self.position, self.speed, self.steps = position, speed, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.put(*self.np_random.uniform(-0.1, 0.1, 2))
        return np.array([self.position, self.speed]), {}

    def step(self, action):
        push = float(action[0])
        self.position, self.speed, reward, ended = move(self.position, self.speed, push)
        self.steps += 1
        info = {"effort": abs(push), "cost": 0.5 * self.steps}
        return np.array([self.position, self.speed]), reward, bool(ended), self.steps == self.cuts_at, info


class Carts(gymnasium.vector.VectorEnv):
    """Many carts in one call. All arrays that it returns are its own, and the next call writes into them."""

    def __init__(self, num_envs, mode=AutoresetMode.NEXT_STEP, cuts_at=None, noise=0.0):
        self.num_envs, self.mode, self.cuts_at, self.noise = num_envs, mode, cuts_at, noise
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space, self.single_action_space = OBSERVATIONS, ACTIONS
        self.observation_space = batch_space(OBSERVATIONS, num_envs)
        self.action_space = batch_space(ACTIONS, num_envs)
        self.state = np.zeros((num_envs, 2))
        self.steps = np.zeros(num_envs, np.int64)
        self.reward = np.zeros(num_envs)
        self.terminated, self.truncated = np.zeros(num_envs, bool), np.zeros(num_envs, bool)
        self.calls = 0

    def restart(self, which):
        self.state[which] = self.np_random.uniform(-0.1, 0.1, (int(which.sum()), 2))
        self.steps[which], self.terminated[which], self.truncated[which] = 0, False, False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.restart((options or {}).get("reset_mask", np.ones(self.num_envs, bool)))
        return self.state, {}

    def step(self, actions):
        assert actions.shape == (self.num_envs, 1)
        assert actions.dtype == np.float32
        self.calls += 1
        over = self.terminated | self.truncated
        push = actions[:, 0].astype(np.float64)
        if self.mode is AutoresetMode.DISABLED:
            assert not over.any(), "step of a copy that ended"
        position, speed, reward, ended = move(*self.state.T, push)
        position += self.noise * self.np_random.standard_normal(self.num_envs)
        self.state[:] = np.column_stack([position, speed])
        self.steps += 1
        self.reward[:], self.terminated[:] = reward, ended
        self.truncated[:] = False if self.cuts_at is None else self.steps == self.cuts_at
        info = {"effort": np.abs(push), "cost": 0.5 * self.steps}
        if self.mode is AutoresetMode.NEXT_STEP and over.any():  # these restart instead, and ignore their actions
            self.restart(over)
            self.reward[over] = 0.0
        over = self.terminated | self.truncated
        if self.mode is AutoresetMode.SAME_STEP and over.any():
            ends = self.terminated.copy(), self.truncated.copy()
            info["final_obs"], info["final_info"] = self.state.copy(), dict(info)
            self.restart(over)
            self.terminated[:], self.truncated[:] = ends
            info["cost"] = np.where(over, 0.0, info["cost"])  # that of the restart
            returned = self.reward, *ends, info
            self.terminated[:] = self.truncated[:] = False
            return self.state, *returned
        return self.state, self.reward, self.terminated, self.truncated, info


class SavedCarts(Carts):
    """Carts whose state can be saved."""

    def get_state(self):
        return {
            "state": self.state,
            "steps": self.steps,
            "over": np.stack([self.terminated, self.truncated]),
            "random": self.np_random,
        }

    def set_state(self, state):
        self.state, self.steps, self.np_random = state["state"], state["steps"], state["random"]
        self.terminated, self.truncated = state["over"]


class Forgetful(SavedCarts):
    """Forgets its randomness when its state is saved."""

    def get_state(self):
        return {"state": self.state, "steps": self.steps}

    def set_state(self, state):
        self.state, self.steps = state["state"], state["steps"]


class AllAtOnce(Carts):
    """Ignores `reset_mask`."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)


class Undeclared(Carts):
    """Does not say how its copies restart."""

    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.metadata = {}


class WithoutLast(Carts):
    """Restarts copies within the step that ends them, and does not tell where they ended."""

    def __init__(self, num_envs):
        super().__init__(num_envs, AutoresetMode.SAME_STEP, cuts_at=2)

    def step(self, actions):
        *values, info = super().step(actions)
        info.pop("final_obs", None)
        return *values, info


class Broken(Carts):
    """Fails in the way that `how` names, at step `at`."""

    def __init__(self, num_envs, how="raise", at=1):
        super().__init__(num_envs)
        self.how, self.at = how, at

    def step(self, actions):
        observation, reward, *rest = super().step(actions)
        if self.calls < self.at:
            return observation, reward, *rest
        if self.how == "raise":
            raise KeyError("the wheels came off")
        if self.how == "rows":
            return observation[:-1], reward, *rest
        if self.how == "rewards":
            return observation, reward[:, None], *rest
        if self.how == "four":
            return observation, reward, *rest[:2]
        raise AssertionError(self.how)


class Doors(gymnasium.Env):
    """Three doors, of which one is locked at each step; whoever opens that one breaks the environment."""

    def __init__(self, ends_at=5, by_method=False, last="missing"):
        """`last` is what becomes of the last mask: "missing" (in `info`), "known" or "nothing" (is allowed)."""
        self.observation_space, self.action_space = spaces.Box(0.0, 100.0, (1,), np.float64), spaces.Discrete(3)
        self.ends_at, self.by_method, self.last = ends_at, by_method, last
        if by_method:
            self.action_masks = self.mask

    def mask(self):
        nothing = self.last == "nothing" and self.steps == self.ends_at
        return np.arange(3) != (self.number + self.steps) % 3 if not nothing else np.zeros(3, bool)

    def answer(self):
        hidden = self.by_method or (self.last == "missing" and self.steps == self.ends_at)
        return np.array([10.0 * self.number + self.steps]), {} if hidden else {"action_mask": self.mask()}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.steps = int(self.np_random.integers(10)), 0
        return self.answer()

    def step(self, action):
        assert self.mask()[action], "a locked door"
        self.steps += 1
        observation, info = self.answer()
        ended = self.steps == self.ends_at
        return observation, float(action), ended and self.number % 2 == 0, ended and self.number % 2 == 1, info


class ManyDoors(gymnasium.vector.VectorEnv):
    """The same in one call; `wrong` says what is wrong with its masks."""

    def __init__(self, num_envs, mode=AutoresetMode.NEXT_STEP, ends_at=5, wrong=None):
        self.num_envs, self.mode, self.ends_at, self.wrong = num_envs, mode, ends_at, wrong
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space, self.single_action_space = spaces.Box(0.0, 100.0, (1,)), spaces.Discrete(3)
        self.number, self.steps = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)
        self.over = np.zeros(num_envs, bool)

    def mask(self):
        mask = np.arange(3) != ((self.number + self.steps) % 3)[:, None]
        if self.wrong == "nothing":
            mask[-1] = False
        return mask[:, 1:] if self.wrong == "shape" else mask

    def observe(self):
        return (10.0 * self.number + self.steps)[:, None]

    def restart(self, which):
        self.number[which], self.steps[which], self.over[which] = (
            self.np_random.integers(10, size=which.sum()),
            0,
            False,
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.restart((options or {}).get("reset_mask", np.ones(self.num_envs, bool)))
        return self.observe(), {} if self.wrong == "late" else {"action_mask": self.mask()}

    def step(self, actions):
        pending, everyone = self.over.copy(), np.arange(self.num_envs)
        if self.wrong is None:
            ignored = pending & (self.mode is AutoresetMode.NEXT_STEP)
            assert (self.mask()[everyone, actions] | ignored).all(), "a locked door"
        assert not (pending.any() and self.mode is AutoresetMode.DISABLED)
        self.steps += 1
        reward, ended, info = actions.astype(float), self.steps == self.ends_at, {}
        if self.mode is AutoresetMode.NEXT_STEP:
            self.restart(pending)
            ended &= ~pending
        if self.mode is AutoresetMode.SAME_STEP and ended.any():
            info["final_obs"] = self.observe()
            self.restart(ended)
        self.over[:] = ended & (self.mode is not AutoresetMode.SAME_STEP)
        return self.observe(), reward, ended, np.zeros(self.num_envs, bool), {**info, "action_mask": self.mask()}

    def get_state(self):
        return {"number": self.number, "steps": self.steps, "over": self.over, "random": self.np_random}

    def set_state(self, state):
        self.number, self.steps, self.over, self.np_random = (
            state[key] for key in ("number", "steps", "over", "random")
        )
