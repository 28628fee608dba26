"""The environments of one collector: they are stepped here, whether this is the run's process or one far away.

They are split into two shards used in turn: while one is simulated, the actions of the other are computed. (The copies
of a vector environment are one shard: nothing else happens while they are stepped.) Every number is a function of the
seed, whatever the thread timing: the noise of a batch comes from a generator seeded by (seed, iteration, shard), so
there is no random state to carry along. Nothing here loads JAX.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from kemeny.envs.faults import TRIES, Faults
from kemeny.envs.names import EnvLike
from kemeny.envs.pool import Comeback, Stateful, inspect, make_in_turn, sizes_in_turn
from kemeny.envs.settings import Simulation
from kemeny.errors import Damaged
from kemeny.experience.acting import Policy
from kemeny.experience.settings import Task
from kemeny.experience.shard import LATEST_STARTS, NEVER, Shard
from kemeny.observers import NOBODY, Observer
from kemeny.rollout import Rollout
from kemeny.spaces import ArraySpec
from kemeny.spec import Spec, check_arrays

F32 = np.float32
NOISE_STREAM = 1
"""Keeps exploration noise apart from other uses of a run's seed."""
STATE = "state"
"""Begins the names of a pool's own arrays in a snapshot; the number of its shard follows."""


@dataclasses.dataclass(frozen=True)
class Share:
    """Which of a run's environments are here, and all that it takes to make them."""

    env: EnvLike
    task: Task
    first_env: int
    num_envs: int
    all_envs: int
    """Environments of the whole run."""
    first_shard: int
    batch_length: int
    seed: int
    costs: tuple
    simulation: Simulation
    explore: bool = True
    """Whether the policy draws its actions there; if not, it takes its mean (or likeliest) action."""

    @property
    def columns(self) -> slice:
        """Where its environments are in a batch."""
        return slice(self.first_env, self.first_env + self.num_envs)

    @property
    def shard_sizes(self) -> list[int]:
        """Environments of each shard."""
        return sizes_in_turn(self.env, self.num_envs, self.simulation)


def shares(count: int, num_envs: int, simulation: Simulation, **run: Any) -> list[Share]:
    """A run's environments, divided among `count` collectors as evenly as possible."""
    each = dataclasses.replace(simulation, workers=-(-simulation.workers // count))
    divided, env, shard = [], 0, 0
    for part in np.array_split(np.arange(num_envs), count):
        share = Share(
            first_env=env, num_envs=len(part), all_envs=num_envs, first_shard=shard, simulation=each, **run
        )  # fmt: skip
        divided.append(share)
        env, shard = env + len(part), shard + len(share.shard_sizes)
    return divided


class Taken(NamedTuple):
    """What became of the steps of a batch, beside the batch itself."""

    fell: np.ndarray
    """(time, env): which ended in a fall or a goal, on a continuing task."""
    starts: list[tuple[int, np.ndarray]]
    """The start states of all restarts, each with its time step."""
    fault: str
    """What the latest failure was; empty if there was none."""


class Part:
    """Some of a run's environments, and where each of them stands."""

    def __init__(self, share: Share, observer: Observer = NOBODY) -> None:
        self.share, self.observer, self.shards, self.starts = share, observer, [], StartLog()
        self.shards: list[Shard]
        task, env = share.task, share.env
        if task.episodic:
            limit = inspect(env, simulation=share.simulation).time_limit
            longest = np.full(share.all_envs, NEVER if limit is None else limit)
        else:
            longest = cuts(task, share.all_envs)
        phases = first_phases(longest, share.batch_length)
        for first_env, pool in make_in_turn(
            env, share.num_envs, seed=share.seed, first_env=share.first_env, costs=share.costs,
            simulation=share.simulation,
        ):  # fmt: skip
            mine = slice(first_env, first_env + pool.num_envs)
            faults = Faults(pool, share.simulation.restart_faulty, first_env)
            self.shards.append(
                Shard(pool, task, longest[mine], phases[mine], faults, self.starts, len(share.costs), observer)
            )
        self.spec: Spec = self.shards[0].pool.spec
        self.comeback: Comeback = self.shards[0].pool.comeback

    def begin(self) -> list[tuple[int, np.ndarray]]:
        """Put all environments into start states, which are returned."""
        for shard in self.shards:
            shard.restart(shard.everyone)
        return self.starts.take()

    def roll_out(self, policy: Policy, iteration: int, into: Rollout) -> Taken:
        """The steps of an iteration, with rewards as the environments gave them."""
        views, begin, faults = [], 0, self.faults
        for number, shard in enumerate(self.shards, self.share.first_shard):
            rng = np.random.default_rng([NOISE_STREAM, self.share.seed, iteration, number])
            self.observer.begin("act")
            rows = (self.share.batch_length, shard.pool.num_envs)
            shard.noise = policy.noise(rng, *rows) if self.share.explore else np.zeros((*rows, policy.action_size), F32)
            shard.fell = np.zeros(rows, bool)
            self.observer.end("act")
            views.append(columns(into, slice(begin, begin + shard.pool.num_envs)))
            begin += shard.pool.num_envs
        for shard in self.shards:
            shard.begin(policy, 0)
        for t in range(self.share.batch_length):
            self.starts.now = t
            for shard, view in zip(self.shards, views, strict=True):
                shard.finish(policy, view, t)
                if t + 1 < self.share.batch_length:
                    shard.begin(policy, t + 1)
        fell = np.concatenate([shard.fell for shard in self.shards], 1)
        failed = [shard for shard, before in zip(self.shards, faults, strict=True) if shard.faults.count > before]
        return Taken(fell, self.starts.take(), failed[0].faults.last if failed else "")

    @property
    def faults(self) -> list[int]:
        """Of each shard the restarts after a fault since the run began."""
        return [shard.faults.count for shard in self.shards]

    @property
    def since_restart(self) -> np.ndarray:
        """Steps of each environment since its last restart."""
        return np.concatenate([shard.since_restart for shard in self.shards])

    def standing(self) -> dict[str, np.ndarray]:
        """Where every environment stands; with the actions since its restart, all it takes to get there again."""
        rows = {
            name: np.concatenate([getattr(shard, name) for shard in self.shards])
            for name in ("clock", "restarts", "since_restart", "observation", "paid")
        }
        return {"faults": np.array(self.faults), **rows, **self._states()}

    def _states(self) -> dict[str, np.ndarray]:
        """The saved states of the pools that have one."""
        return {
            f"{STATE}{number}/{name}": array
            for number, shard in enumerate(self.shards, self.share.first_shard)
            if shard.pool.comeback == "state"
            for name, array in cast(Stateful, shard.pool).get_state().items()
        }

    def come_back(
        self, standing: Mapping[str, np.ndarray], actions: np.ndarray, inexact: bool
    ) -> tuple[list[int], list[tuple[int, np.ndarray]]]:
        """Bring new environments to where others stood.

        Returns those that did not get there, and all start states on the way. With `inexact` they begin anew.
        """
        astray, end = [], 0
        per_env = ("restarts", "since_restart", "observation", "clock", "paid")
        for number, (shard, faults) in enumerate(
            zip(self.shards, standing["faults"], strict=True), self.share.first_shard
        ):
            mine = slice(end, end + shard.pool.num_envs)
            end = mine.stop
            rows = {name: standing[name][mine] for name in per_env if name in standing}
            prefix = f"{STATE}{number}/"
            state = {name.removeprefix(prefix): array for name, array in standing.items() if name.startswith(prefix)}
            lost = np.flatnonzero(~shard.come_back(rows, actions[:, mine], state))
            astray += (self.share.first_env + mine.start + lost).tolist()
            if lost.size and inexact:
                shard.clock[lost] = 0
                shard.restart(lost)
            shard.faults.count = int(faults)
        return astray, self.starts.take()

    def close(self) -> None:
        """Give back the simulators' threads and processes."""
        for shard in self.shards:
            shard.pool.close()


def check_standing(
    standing: Mapping[str, np.ndarray],
    spec: Spec,
    *,
    num_envs: int,
    shards: int,
    costs: int,
    steps: int,
    replayed: bool,
    where: str,
) -> None:
    """Refuse what no environments can have left behind after so many steps, before anything is replayed.

    `where` begins the names of the arrays in a checkpoint.
    """
    envs, whole = (num_envs,), np.dtype(np.int64)
    shapes = {"faults": (shards,), "clock": envs, "restarts": envs, "since_restart": envs}
    longest = standing["since_restart"].max(initial=0) if "since_restart" in standing and replayed else 0
    observation, action = spec.observation, spec.action.array
    paid = ArraySpec((*envs, 1 + costs), np.dtype(np.float64))
    check_arrays(
        standing,
        {
            **{name: ArraySpec(shape, whole) for name, shape in shapes.items()},
            "observation": ArraySpec((*envs, *observation.shape), observation.dtype),
            "actions": ArraySpec((int(longest), *envs, *action.shape), action.dtype),
            **({"paid": paid} if "paid" in standing else {}),  # an older Kemeny did not store this
        },
        "The collector's part of the checkpoint",
    )
    restarts, since = standing["restarts"], standing["since_restart"]
    if not ((since >= 0) & (since <= steps) & (restarts >= 1) & (restarts <= 1 + (1 + TRIES) * steps)).all():
        raise Damaged(f"The checkpoint does not fit its run: {where}/restarts is more than its steps allow.")


class StartLog:
    """Start states as they come, until somebody takes them."""

    def __init__(self) -> None:
        self.now = 0
        """The time step in the batch."""
        self._rows: list[tuple[int, np.ndarray]] = []

    def add(self, rows: np.ndarray) -> None:
        """Of some more restarts."""
        self._rows.append((self.now, rows.copy()))

    def take(self) -> list[tuple[int, np.ndarray]]:
        """All since the last call, the oldest first."""
        rows, self._rows, self.now = self._rows, [], 0
        return rows


def in_order(logs: Sequence[list[tuple[int, np.ndarray]]]) -> list[np.ndarray]:
    """The start states of several collectors, by time step and then by collector: whichever was the fastest."""
    return [rows for _, rows in sorted((entry for log in logs for entry in log), key=lambda entry: entry[0])]


def allocate(spec: Spec, batch_length: int, num_envs: int, num_costs: int) -> Rollout:
    """Room for a batch."""
    rows, observation, action = (batch_length, num_envs), spec.observation, spec.action.array
    return Rollout(
        observation=np.empty((*rows, *observation.shape), observation.dtype),
        action=np.empty((*rows, *action.shape), action.dtype),
        signals=tuple(np.empty(rows, F32) for _ in range(1 + num_costs)),
        next_observation=np.empty((*rows, *observation.shape), observation.dtype),
        terminal=np.zeros(rows, bool),
        cut=np.zeros(rows, bool),
        start_observation=np.empty((LATEST_STARTS, *observation.shape), observation.dtype),
    )


def columns(batch: Rollout, mine: slice) -> Rollout:
    """A view of some environments' part of a batch."""
    views: dict[str, Any] = {
        name: array[:, mine] for name, array in batch._asdict().items() if isinstance(array, np.ndarray)
    }
    views["start_observation"] = batch.start_observation
    return Rollout(**views, signals=tuple(signal[:, mine] for signal in batch.signals))


def cuts(task: Task, num_envs: int) -> np.ndarray:
    """After how many steps the trajectories of each environment are cut, on a continuing task.

    Both lengths are mixed evenly: any neighbours, such as those of a shard, have them in the same proportion as all do.
    """
    long_so_far = np.arange(num_envs + 1) * task.long_envs(num_envs) // num_envs
    return np.where(np.diff(long_so_far) > 0, task.long_cut or 0, task.cut)


def first_phases(longest: np.ndarray, batch_length: int) -> np.ndarray:
    """Where in its first trajectory each environment begins, so that a batch holds all phases of each length alike.

    The first trajectories are shorter for it.
    """
    phases, num_envs = np.zeros_like(longest), len(longest)
    for length in np.unique(longest[longest < NEVER]):
        same = np.flatnonzero(longest == length)
        if len(same) == num_envs and length <= num_envs * batch_length:
            phases[same] = same * batch_length % length
        else:
            phases[same] = np.arange(len(same)) * length // len(same)
    return phases
