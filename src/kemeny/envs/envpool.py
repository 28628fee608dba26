"""EnvPool behind the pool interface: C++ threads do the steps, and no Python runs per environment."""

import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from kemeny.envs.costs import Cost, call_cost, read_cost, refuse_names
from kemeny.envs.names import Environment, EnvLike, as_environment
from kemeny.envs.pool import DEFAULT_SIMULATION, Clock, Comeback, Step, seed_of
from kemeny.envs.settings import Simulation
from kemeny.envs.spaces import Actions, understand_actions, understand_observations
from kemeny.envs.strangers import text_of
from kemeny.errors import UserError
from kemeny.machine import available_cores
from kemeny.spaces import Dict, Leaf, Space, leaves
from kemeny.spec import Spec, vector

FOREVER = 2**31 - 1  # EnvPool counts steps in 32-bit integers; a trajectory of this length takes a day or more
OURS = frozenset(
    "num_envs batch_size num_threads max_num_players thread_affinity_offset base_path seed env_seed "
    "gym_reset_return_info".split()
)
"""EnvPool's options that Kemeny sets, or that say where EnvPool's own files are."""


class EnvPoolPool:
    """Environments of EnvPool that never restart by themselves.

    Peculiarities of EnvPool 1.2.5 that this class hides: after an end it ignores the next action and restarts by itself
    (so here `reset` always comes first); it reports a fall at the time limit as a time-out only (so the time limit is
    counted here); its `send` and `recv` build nested dictionaries in Python, about 40 µs per step (so `_send` and
    `_recv` below them are called, and a test compares the two).
    """

    comeback: Comeback = "replay"

    def __init__(
        self,
        env: EnvLike,
        num_envs: int,
        *,
        seed: int,
        first_env: int = 0,
        costs: Sequence[Cost] = (),
        time_limit: int | None = None,
        simulation: Simulation = DEFAULT_SIMULATION,
        rendering: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        import envpool

        env = as_environment(env)
        self.spec, self._observations, self._actions, info_keys = _understand(env, costs)
        self.num_envs = num_envs
        self._costs = tuple(costs)
        self._info_keys = info_keys if costs else {}
        self._pool: Any = envpool.make_gymnasium(
            env.name,
            num_envs=num_envs,
            seed=[seed_of(seed, first_env + j) for j in range(num_envs)],
            num_threads=simulation.threads or min(num_envs, available_cores()),
            **{**env.kwargs, "max_episode_steps": FOREVER, **rendering},
        )
        keys: list[str] = list(self._pool._state_keys)
        self._parts = [(part, keys.index(key)) for part, key in _observation_keys(self._observations, keys)]
        self._columns = [keys.index(key) for key in ("reward", "done", "trunc")]
        self._clock = Clock(num_envs, time_limit)
        self._everyone = self._clock.everyone.astype(np.int32)
        self.sent = np.empty(0)

    def reset(self, ids: np.ndarray) -> np.ndarray:
        """Restart these environments; returns their start observations, one row per id."""
        ids = self._clock.restart(ids)
        self._pool._reset(ids.astype(np.int32))
        return self._rows(self._pool._recv())

    def send(self, action: np.ndarray, ids: np.ndarray | None = None) -> None:
        """Begin a step of all environments, or of these only; returns at once."""
        checked = self._clock.begin(ids)
        env_ids = self._everyone if ids is None else checked.astype(np.int32)
        self.sent = self._actions.batch(action)
        self._pool._send([env_ids, env_ids, self.sent])

    def recv(self) -> Step:
        """Wait for the step that was begun; its rows are in the order of the ids sent."""
        self._clock.stepping()  # raises if no step is under way, where EnvPool would wait for ever
        state = self._pool._recv()
        reward, done, cut = (state[i] for i in self._columns)
        terminated = done & ~cut
        truncated = self._clock.end(terminated, cut)
        observation = self._rows(state)
        costs = self._read_costs(observation, reward, terminated, state)
        return Step(observation, reward, terminated, truncated, costs, np.zeros(len(reward), bool))

    def fast_forward(self, restarts: np.ndarray) -> None:
        """Restart each environment this many times, because EnvPool can neither save nor set its randomness.

        This is exact if an environment draws random numbers only when it restarts, as those of MuJoCo do.
        """
        left = np.array(restarts, dtype=np.int64)
        while (ids := np.flatnonzero(left > 0)).size:
            self._pool._reset(ids.astype(np.int32))
            self._pool._recv()
            left[ids] -= 1

    def take_faults(self) -> list[str]:
        """Always empty: a failure inside EnvPool ends the process."""
        return []

    def render(self) -> np.ndarray:
        """A picture of environment 0; `camera.py` prepares what this needs."""
        return self._pool.render()[0]

    def close(self) -> None:
        """Stop the threads."""
        self._pool.close()
        self._pool = None

    def _rows(self, state: list[np.ndarray]) -> np.ndarray:
        rows = [part.rows(state[i]) for part, i in self._parts]
        return rows[0] if len(rows) == 1 else np.concatenate(rows, 1)

    def _read_costs(
        self, observation: np.ndarray, reward: np.ndarray, terminated: np.ndarray, state: list[np.ndarray]
    ) -> np.ndarray:
        costs = np.empty((len(reward), len(self._costs)))
        if not self._costs:
            return costs
        info = {key: state[i] for key, i in self._info_keys.items()}
        for k, cost in enumerate(self._costs):
            if isinstance(cost, str):
                costs[:, k] = read_cost(cost, info, terminated)
            else:  # a function sees one environment at a time, as it does with Gymnasium
                for row in range(len(reward)):
                    row_info = {key: value[row] for key, value in info.items()}
                    costs[row, k] = call_cost(cost, observation[row], self.sent[row], float(reward[row]), row_info)
        return costs


def inspect_envpool(env: Environment, costs: Sequence[Cost]) -> Spec:
    """The spec of an EnvPool environment, found without making one."""
    return _understand(env, costs)[0]


def info_keys(env: Environment) -> list[str]:
    """Keys of `info` that are one number per environment."""
    return list(_understand(env, ())[3])


def refuse_options(env: Environment) -> None:
    """Refuse keyword arguments that are no options of an environment that EnvPool has, or not such values."""
    import envpool

    options = envpool.make_spec(env.name).config._asdict()
    ours = sorted(OURS & env.kwargs.keys())
    if ours:
        raise UserError(f"EnvPool's option {ours[0]!r} is Kemeny's to set, not one of --env-kwargs.")
    for name in env.kwargs:
        if name not in options:
            known = ", ".join(sorted(options.keys() - OURS))
            raise UserError(f"EnvPool's {env.name} takes no argument {name!r}; it takes: {known}.")
    try:
        envpool.make_spec(env.name, **env.kwargs)
    except (TypeError, ValueError) as error:
        values = ", ".join(f"{name} {options[name]!r}" for name in env.kwargs)
        raise UserError(f"EnvPool's {env.name} does not take these arguments; its own are: {values}.") from error


def _understand(env: Environment, costs: Sequence[Cost]) -> tuple[Spec, Space, Actions, dict[str, int]]:
    """Spec, spaces, and the position of each key of `info` in EnvPool's list of arrays."""
    import envpool

    try:
        described: Any = envpool.make_spec(env.name, **env.kwargs)
    except RuntimeError as error:  # files that EnvPool does not include: Atari's ROMs, Doom's scenarios
        raise UserError(f"EnvPool cannot make {env.name}: {text_of(error).splitlines()[0]}") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium warns about EnvPool's float64 bounds
        observation_space, action_space = described.observation_space, described.action_space
    observations = understand_observations(observation_space, env.name)
    actions = understand_actions(action_space, env.name)
    arrays = described.state_array_spec
    info_keys = {
        key.removeprefix("info:"): column
        for column, (key, array) in enumerate(arrays.items())
        if key.startswith("info:") and not key.endswith("env_id") and list(array.shape) in ([], [-1])
    }
    refuse_names(costs, list(info_keys), env.name)
    limit = int(described.config.max_episode_steps)
    spec = Spec(vector(observations.size), actions.spec, limit if 0 < limit < FOREVER else None, observations)
    return spec, observations, actions, info_keys


def _observation_keys(observations: Space, keys: list[str]) -> list[tuple[Leaf, str]]:
    """Each part of an observation with its name among EnvPool's arrays."""
    if isinstance(observations, Dict):
        return [(part, f"obs:{name}") for name, part in leaves(observations)]
    (_, whole), *_ = leaves(observations)
    return [(whole, next(key for key in keys if key == "obs" or key.startswith("obs:")))]
