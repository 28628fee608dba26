"""A finite model as a Gymnasium environment that never ends: a task whose exact solution is known."""

from typing import Any

import gymnasium
import numpy as np

from kemeny.tabular.mdp import MDP


class MDPEnv(gymnasium.Env[np.int64, np.int64]):
    """Observations and actions are integers. A step pays r(s, a); `info` holds the state and the cost, if any.

    If the model forbids actions, `info["action_mask"]` says which are allowed now; a forbidden one is refused.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012, a class attribute in Gymnasium's interface

    def __init__(self, mdp: MDP):
        self.mdp = mdp
        self.observation_space = gymnasium.spaces.Discrete(mdp.n_states)
        self.action_space = gymnasium.spaces.Discrete(mdp.n_actions)
        self.state = np.zeros(1, dtype=np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Draw a state from the start distribution."""
        super().reset(seed=seed, options=options)
        self.state = np.array([self.np_random.choice(self.mdp.n_states, p=self.mdp.start)])
        return np.int64(self.state[0]), self._describe()

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Take an action; `terminated` and `truncated` are always False."""
        s, a = int(self.state[0]), int(action)
        self.state = self.mdp.draw_next(self.state, np.array([a]), self.np_random)
        info = self._describe()
        if self.mdp.costs is not None:
            info["cost"] = float(self.mdp.costs[s, a])
        return np.int64(self.state[0]), float(self.mdp.rewards[s, a]), False, False, info

    def _describe(self) -> dict[str, Any]:
        """The `info` of the present state."""
        state = int(self.state[0])
        mask = {} if self.mdp.allowed is None else {"action_mask": self.mdp.allowed[state].astype(np.int8)}
        return {"state": state} | mask
