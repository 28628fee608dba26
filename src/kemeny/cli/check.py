"""`kemeny check`."""

import json as json_format
import math
from typing import Annotated

from tyro.conf import Positional, arg

from kemeny.errors import UserError


def check(
    env: Annotated[Positional[str], arg(metavar="ENV")],
    env_kwargs: Annotated[str, arg(metavar="JSON")] = "{}",
    steps: int = 4_000,
    seconds: float = 10.0,
    seed: int = 0,
    json: bool = False,
) -> None:
    """Step an environment by random actions, and say whether it can be trained on and what to set.

    Args:
        env: An environment, named as for train.
        env_kwargs: Arguments with which it is made, as JSON.
        steps: At most so many steps.
        seconds: At most about so long.
        seed: Of the environment and the actions.
        json: Print the findings as JSON instead of a page.
    """
    if steps < 1 or seed < 0 or not (seconds > 0 and math.isfinite(seconds)):
        raise UserError("--steps must be at least 1, --seconds above 0 and --seed at least 0.")
    from kemeny.envs.names import read_kwargs
    from kemeny.experience.check import check as look_at

    found = look_at(env, env_kwargs=read_kwargs(env_kwargs), steps=steps, seconds=seconds, seed=seed)
    print(json_format.dumps(found.record()) if json else found)
    if not found.trainable:
        raise UserError(f"{found.env} cannot be trained on: {found.problems[0]}")
