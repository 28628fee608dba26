"""EnvPool behind the pool interface: C++ threads do the steps, and no Python runs per environment."""

import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from kemeny.envs.costs import Cost, call_cost, read_cost, refuse_names
from kemeny.envs.pool import Clock, Step, available_cores, seed_of
from kemeny.envs.spaces import Actions, Observations, understand_actions, understand_observations
from kemeny.errors import UserError
from kemeny.spec import Spec

FOREVER = 2**31 - 1  # EnvPool's counters are 32-bit integers; a trajectory of this length takes a day or more


class EnvPoolPool:
    """Environments of EnvPool, with their own restarts switched off.

    Sharp edges of EnvPool 1.2.5 that this class hides: after an end it ignores the next action and
    restarts by itself (so here `reset` comes first, always); a fall at the time limit is reported as a
    time-out only (so the time limit is counted here); `send` and `recv` build nested dictionaries in
    Python, about 40 µs a step (so their lower halves `_send` and `_recv` are called, and a test compares
    the two).
    """

    def __init__(
        self,
        env: str,
        num_envs: int,
        *,
        seed: int,
        first: int,
        costs: Sequence[Cost],
        time_limit: int | None,
        threads: int,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        import envpool

        self.spec, self._observations, self._actions, info_keys = _understand(env, costs)
        self.num_envs = num_envs
        self._costs = tuple(costs)
        self._info_keys = info_keys if costs else {}
        self._pool: Any = envpool.make_gymnasium(
            env,
            num_envs=num_envs,
            seed=[seed_of(seed, first + j) for j in range(num_envs)],
            num_threads=threads or min(num_envs, available_cores()),
            max_episode_steps=FOREVER,
            **settings,
        )
        keys: list[str] = list(self._pool._state_keys)
        self._columns = [keys.index(key) for key in (_observation_key(keys), "reward", "done", "trunc")]
        self._clock = Clock(num_envs, time_limit)
        self._everyone = self._clock.everyone.astype(np.int32)
        self._sent = np.empty(0)

    def reset(self, ids: np.ndarray) -> np.ndarray:
        """Restart these environments; their start observations, a row an id."""
        ids = self._clock.restart(ids)
        self._pool._reset(ids.astype(np.int32))
        return self._observations.rows(self._pool._recv()[self._columns[0]])

    def send(self, action: np.ndarray, ids: np.ndarray | None = None) -> None:
        """Begin a step of all (or only these) environments; returns at once."""
        whole = ids is None
        ids = self._clock.begin(ids)
        who = self._everyone if whole else ids.astype(np.int32)
        self._sent = self._actions.batch(action)
        self._pool._send([who, who, self._sent])

    def recv(self) -> Step:
        """Wait for the step begun; rows in the order of the ids sent."""
        self._clock.stepping()  # without a step under way EnvPool would wait for ever
        state = self._pool._recv()
        raw, reward, done, cut = (state[i] for i in self._columns)
        terminated = done & ~cut
        truncated = self._clock.end(terminated, cut)
        observation = self._observations.rows(raw)
        return Step(observation, reward, terminated, truncated, self._read_costs(observation, reward, state))

    def fast_forward(self, restarts: np.ndarray) -> None:
        """Restart each environment this many times, for EnvPool can neither save nor set its randomness.

        Exact where an environment draws random numbers only to restart, as those of MuJoCo do.
        """
        left = np.array(restarts, dtype=np.int64)
        while (left > 0).any():
            who = np.flatnonzero(left > 0)
            self._pool._reset(who.astype(np.int32))
            self._pool._recv()
            left[who] -= 1

    def take_faults(self) -> list[str]:
        """Nothing: what goes wrong inside EnvPool ends the process."""
        return []

    def render(self) -> np.ndarray:
        """A picture of the first environment; see `film.py` for what that needs."""
        return self._pool.render()[0]

    def close(self) -> None:
        """Stop the threads."""
        self._pool.close()
        self._pool = None

    def _read_costs(self, observation: np.ndarray, reward: np.ndarray, state: list[np.ndarray]) -> np.ndarray:
        costs = np.empty((len(reward), len(self._costs)))
        if not self._costs:
            return costs
        info = {key: state[i] for key, i in self._info_keys.items()}
        for k, cost in enumerate(self._costs):
            if isinstance(cost, str):
                costs[:, k] = read_cost(cost, info)
            else:  # a function sees one environment at a time, here as with Gymnasium
                for row in range(len(reward)):
                    about = {key: value[row] for key, value in info.items()}
                    costs[row, k] = call_cost(cost, observation[row], self._sent[row], float(reward[row]), about)
        return costs


def inspect_envpool(env: str, costs: Sequence[Cost]) -> Spec:
    """What EnvPool's environment is, without making one."""
    return _understand(env, costs)[0]


def _understand(env: str, costs: Sequence[Cost]) -> tuple[Spec, Observations, Actions, dict[str, int]]:
    """Spec, spaces, and where in EnvPool's list of arrays each key of `info` stands."""
    import envpool

    try:
        described: Any = envpool.make_spec(env)
    except RuntimeError as error:  # files it does not carry: Atari's ROMs, Doom's scenarios
        raise UserError(f"EnvPool cannot make {env}: {str(error).splitlines()[0]}") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's about EnvPool's own float64 bounds
        observation_space, action_space = described.observation_space, described.action_space
    observations = understand_observations(observation_space, env)
    actions = understand_actions(action_space, env)
    arrays = described.state_array_spec
    info_keys = {
        key.removeprefix("info:"): column
        for column, (key, array) in enumerate(arrays.items())
        if key.startswith("info:") and not key.endswith("env_id") and list(array.shape) in ([], [-1])
    }
    refuse_names(costs, list(info_keys), env)
    limit = int(described.config.max_episode_steps)
    spec = Spec(observations.size, actions.spec, limit if 0 < limit < FOREVER else None)
    return spec, observations, actions, info_keys


def _observation_key(keys: list[str]) -> str:
    return next(key for key in keys if key == "obs" or key.startswith("obs:"))
