"""Whether an environment can be trained on, and what Kemeny makes of it: findings, and what to do about each."""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kemeny.envs.names import EnvLike, as_environment
from kemeny.envs.pool import choose_backend, inspect, why_not_envpool
from kemeny.experience.ends import find_goals
from kemeny.experience.evaluation import HORIZONS
from kemeny.experience.settings import RESET_COST, Task
from kemeny.experience.trial import Trial, try_out
from kemeny.machine import available_cores
from kemeny.spec import Continuous, Spec

BACKENDS = {"envpool": "EnvPool", "gymnasium": "Gymnasium", "vector": "vector environment"}
ORDINARY_REWARDS = (0.1, 10.0)
"""Rewards per step of this size suit the cost of a fall that is the default."""
SLOW = 3e-4
"""Seconds per step from which on workers pay for their messages."""
VECTOR_ENVS = 100
"""Copies of a vector environment that share the default batch well: 50 steps each."""
SHORT = 20
"""Trajectories shorter than this are episodes rather than an ongoing task that fails."""


@dataclass(frozen=True)
class Check:
    """What was found out about an environment. `print` shows it as one page."""

    env: str
    env_kwargs: dict[str, Any]
    backend: str
    """Who simulates it."""
    facts: dict[str, Any]
    """What was measured and seen, by name; plain JSON."""
    suggestions: dict[str, Any]
    """Settings of `kemeny.train` that suit it better than their defaults; empty if the defaults do."""
    problems: tuple[str, ...]
    """Why it cannot be trained on, and what to do; empty if it can."""
    warnings: tuple[str, ...]
    """What will probably be regretted, and what to do."""
    notes: tuple[str, ...]
    """What Kemeny makes of it."""

    @property
    def trainable(self) -> bool:
        """Whether it can be trained on."""
        return not self.problems

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {**dataclasses.asdict(self), "trainable": self.trainable}

    def __str__(self) -> str:
        lines = [f"{self.env} ({self.backend})", ""]
        width = max(map(len, self.facts))
        lines += [f"  {name.replace('_', ' '):<{width}}  {_in_words(value)}" for name, value in self.facts.items()]
        for title, sentences in (("Problems", self.problems), ("Warnings", self.warnings), ("Notes", self.notes)):
            if sentences:
                lines += ["", f"{title}:", *(f"  - {sentence}" for sentence in sentences)]
        if self.trainable:
            flags = [f"--env-kwargs '{json.dumps(self.env_kwargs)}'"] if self.env_kwargs else []
            flags += [f"--{name.replace('_', '-')} {value:g}" for name, value in self.suggestions.items()]
            lines += ["", f"It can be trained: kemeny train {' '.join([self.env, *flags])}"]
        return "\n".join(lines)


def check(
    env: EnvLike,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    steps: int = 4_000,
    seconds: float = 10.0,
    seed: int = 0,
) -> Check:
    """Step an environment by random actions, for at most so many steps and seconds, and say what was found.

    What cannot be made or stepped at all is a `UserError` or a `RunError`, as it would be in `kemeny.train`.
    """
    named = as_environment(env, env_kwargs)
    spec = inspect(named)
    backend = choose_backend(named, "auto", 0)
    trial = try_out(named, spec, backend, steps=steps, seconds=seconds, seed=seed)
    slower = why_not_envpool(named, 0)
    return Check(
        env=named.name,
        env_kwargs=dict(named.kwargs),
        backend=BACKENDS[backend],
        facts=_facts(trial),
        suggestions=_suggestions(trial, backend),
        problems=tuple(_problems(trial)),
        warnings=tuple(_warnings(trial)),
        notes=(*([slower] if slower else ()), *known_beforehand(spec, Task()), *_notes(trial)),
    )


def known_beforehand(spec: Spec, task: Task) -> Iterator[str]:
    """What the spec alone says of the form that Kemeny gives a task; `kemeny train` says it at its start."""
    if not task.episodic and spec.time_limit is not None and spec.time_limit < task.cut:
        yield (
            f"Its time limit of {spec.time_limit:,} steps is dropped, for the task goes on; trajectories are cut after "
            f"{task.cut:,} steps. For the lengths that it was made for: --cut {spec.time_limit}."
        )
    if isinstance(spec.action, Continuous) and spec.action.unit is not None:
        yield (
            f"Its actions have bounds that are not of order one (from {spec.action.low.min():g} to "
            f"{spec.action.high.max():g}): the policy acts between −1 and 1, and that is mapped to them."
        )


def _facts(trial: Trial) -> dict[str, Any]:
    spec, reward = trial.spec, trial.reward
    goals = find_goals(reward, trial.terminated)
    unended = trial.reward.shape[1] if not len(trial.lengths) else None
    return {
        "observations": str(spec.spaces.observation),
        "the_policy_sees": f"{spec.features} numbers",
        "actions": _action_in_words(spec),
        "masks": spec.mask > 0,
        "time_limit": spec.time_limit,
        "steps_tried": int(reward.size),
        "falls": int(trial.terminated.sum() - goals.sum()),
        "goals": int(goals.sum()),
        "cuts_of_its_own": int((trial.truncated & ~trial.terminated).sum()),
        "mean_length": float(trial.lengths.mean()) if unended is None else None,
        "reward_mean": _finite(reward.mean()),
        "reward_deviation": _finite(reward.std()),
        "reward_min": _finite(reward.min()),
        "reward_max": _finite(reward.max()),
        "costs": None if trial.costs is None else list(trial.costs),
        "microseconds_per_step": round(1e6 * trial.seconds_per_step, 1),
        "minutes_per_million_steps": round(1e6 * trial.seconds_per_step / 60, 2),
        "repeats_from_the_seed": trial.repeats,
        "forgets_at_a_restart": trial.forgets if trial.repeats else None,
    }


def _problems(trial: Trial) -> Iterator[str]:
    if trial.unusable:
        yield f"It gave {trial.unusable}: mend that, or wrap it so that it ends the trajectory instead."


def _warnings(trial: Trial) -> Iterator[str]:
    if not trial.repeats:
        yield (
            "The same seed and actions did not show the same again, so a stopped run cannot be resumed exactly: draw "
            "random numbers from self.np_random, after super().reset(seed=seed)."
        )
    elif trial.forgets is False:
        yield (
            "After other trajectories the same seed and actions showed something else: some state outlives reset(). "
            "Set everything in reset(), or a resumed run will be refused."
        )
    if trial.outside:
        share = 100 * trial.outside / trial.looked_at
        yield f"{share:.2g} % of its observations are outside its observation_space: widen the space, or mend them."
    if not trial.varies.any():
        yield "Its observation never changed: a policy can only learn one best action from that."
    if trial.reward.size and trial.reward.min() == trial.reward.max() and not trial.terminated.any():
        yield f"Its reward was always {trial.reward.flat[0]:g}, and it never ended: there may be nothing to learn."


def _notes(trial: Trial) -> Iterator[str]:
    goals = find_goals(trial.reward, trial.terminated)
    falls = int(trial.terminated.sum() - goals.sum())
    if falls:
        yield (
            f"A fall costs --reset-cost and leads to a start state by an ordinary step: there were {falls} in "
            f"{trial.reward.size:,} steps."
        )
    if goals.any():
        yield (
            f"{int(goals.sum())} ends paid far more than other steps and count as goals, which cost nothing; with a "
            "--reset-cost of your own they would be charged like falls."
        )
    if (trial.truncated & ~trial.terminated).any():
        yield "It cuts trajectories itself: the value goes on there, and a new trajectory begins at no cost."
    if not len(trial.lengths):
        yield "It never ended under random actions: trajectories are cut after --cut steps and bootstrapped."
    elif trial.lengths.mean() < SHORT and not trial.truncated.any():
        yield (
            f"Its trajectories were {trial.lengths.mean():.3g} steps long on average. If its episodes are to end, and "
            "are not failures of a task that goes on: --algorithm trpo --episodic."
        )
    still = int((~trial.varies).sum())
    if 0 < still < len(trial.varies):
        yield f"{still} of the {len(trial.varies)} numbers that the policy sees never changed under random actions."
    if trial.costs is None:
        yield "Which keys of info can be costs was not looked for, as it is a vector environment."


def _suggestions(trial: Trial, backend: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if trial.unusable:
        return found
    goals = find_goals(trial.reward, trial.terminated)
    usual = np.abs(trial.reward[~trial.terminated])
    size = float(np.quantile(usual, 0.95)) if usual.size else 0.0
    low, high = ORDINARY_REWARDS
    if (trial.terminated & ~goals).any() and not goals.any() and size and not low <= size <= high:
        found["reset_cost"] = _one_digit(RESET_COST * size)
    limit = trial.spec.time_limit
    if limit is not None and limit < Task.cut:
        found["cut"] = limit
    if backend == "vector":
        found["num_envs"] = VECTOR_ENVS
    if backend == "gymnasium":  # evaluations of the default length would take as many steps as training
        found["eval_max_steps"] = min(HORIZONS)
    if backend == "gymnasium" and trial.seconds_per_step > SLOW and available_cores() > 1:
        found["workers"] = available_cores()
    return found


def _one_digit(number: float) -> float:
    """The nearest number with one digit."""
    unit = 10.0 ** math.floor(math.log10(number))
    return float(f"{round(number / unit) * unit:g}")


def _finite(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None


def _action_in_words(spec: Spec) -> str:
    if isinstance(spec.action, Continuous):
        return f"{spec.action.size} numbers from {spec.action.low.min():g} to {spec.action.high.max():g}"
    return str(spec.action)


def _in_words(value: Any) -> str:
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
