"""What a run begins with that takes over the policy, critics and normaliser of another run.

The state is written into the new run before it begins, as `checkpoints/init-000000000000`: nothing of the other run is
needed again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kemeny.errors import UserError
from kemeny.experience.acting import check_fits
from kemeny.learning.arrays import as_today, bounds, from_arrays, to_arrays
from kemeny.learning.learner import Learner
from kemeny.runs import checkpoint
from kemeny.runs.assembly import make_learner, make_state
from kemeny.runs.directory import run_of
from kemeny.runs.load import policy_of
from kemeny.runs.settings import Settings, cost_names, from_flat
from kemeny.spec import Spec
from kemeny.stored_spaces import read_spaces


class Initial(NamedTuple):
    """The state that a run begins with."""

    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]
    source: dict[str, Any]
    """Where it is from, as config.json says it."""


def take_over(
    source: str | Path, settings: Settings, spec: Spec, env: str, say: Callable[[str], None] = lambda message: None
) -> Initial:
    """The state of a new run, with the policy, critics and normaliser of a run (its newest checkpoint) or checkpoint.

    A critic is taken over if it is of the same criterion and signal. All else is as in any new run: the random key, the
    optimisers, the counters. A `UserError` says why the two do not fit.
    """
    saved = checkpoint.latest(Path(source), say)
    theirs = from_flat(run_of(source).config["settings"])
    _check(saved, theirs, settings, spec, env, source)
    learner = make_learner(settings)
    state = make_state(learner, settings, spec)
    arrays, critics = to_arrays(state), _critics(theirs, settings, learner)
    their_arrays = as_today(saved.arrays, list(arrays))
    for name in arrays:
        part, *rest = name.split("/")
        if part == "critics":
            place = critics[int(rest[0])]
            name_there = None if place is None else "/".join([part, str(place), *rest[1:]])
        else:
            there = name.removeprefix("behind/")  # who acts first is the policy that was taken over, too
            name_there = there if there.startswith(("policy/", "normalizer/")) else None
        if name_there in their_arrays:
            arrays[name] = their_arrays[name_there]
    state = from_arrays(state, arrays, f"The checkpoint {saved.path}")
    say(_described(saved, source, critics, settings))
    facts = {
        "iteration": 0, "seconds": 0.0, "log_sizes": {}, "best_score": None,
        "network": state.policy.network.description, "spaces": spec.spaces.description,
        "deploy": settings.deployment.deploy,
    }  # fmt: skip
    about = {"path": str(source), "steps": saved.facts["steps"], "arrays_sum": saved.arrays_sum}
    return Initial({**arrays, **bounds(spec)}, facts, about)


def _check(
    saved: checkpoint.Checkpoint, theirs: Settings, ours: Settings, spec: Spec, env: str, source: str | Path
) -> None:
    check_fits(policy_of(saved), spec, env)
    if "spaces" in saved.facts and read_spaces(saved.facts["spaces"], f"The checkpoint {saved.path}") != spec.spaces:
        raise UserError(f"{env} has other observations or actions than the environment of {source}: begin without it.")
    for name in ("hidden", "activation", "observation_clip"):
        their, our = getattr(theirs.networks, name), getattr(ours.networks, name)
        if their != our:
            shown = " ".join(map(str, their)) if isinstance(their, tuple) else their
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"The networks of {source} have {flag} {shown}, and so must a run that begins with them.")


def _critics(theirs: Settings, ours: Settings, learner: Learner) -> list[int | None]:
    """For each critic of the new run its place in the other; None where it is a new one.

    The weights of a critic mean something else under another criterion, or in a critic of another form.
    """
    signals = ["the reward", *cost_names(ours)]
    alike = theirs.criterion == learner.criterion and theirs.critic.critic_form == ours.critic.critic_form
    there = ["the reward", *cost_names(theirs)] if alike else []
    return [there.index(signal) if signal in there else None for signal in signals]


def _described(saved: checkpoint.Checkpoint, source: str | Path, critics: list[int | None], settings: Settings) -> str:
    signals = ["the reward", *cost_names(settings)]
    new = [signal for signal, place in zip(signals, critics, strict=True) if place is None]
    told = f"The run begins with the policy, critics and normaliser of {source} after {saved.facts['steps']:,} steps"
    if not new:
        return f"{told}."
    return (
        f"{told}, but with new critics of {' and '.join(new)}, which {source} does not have under this criterion and "
        "in this form."
    )
