"""Ids of environments, and the messages about an id that does not exist or cannot be one."""

import difflib
from functools import cache

import gymnasium

from kemeny.errors import UserError


@cache
def envpool_ids() -> frozenset[str]:
    """Ids that EnvPool has; none where it is not installed."""
    try:
        import envpool
    except ImportError:
        return frozenset()
    return frozenset(envpool.list_all_envs())


def refuse_malformed(env: str) -> None:
    """Refuse what is neither an id nor `module:id`."""
    module, colon, name = env.partition(":")
    if colon and (not module or module.startswith(".") or not name or ":" in name):
        raise UserError(
            f"{env!r} cannot be the name of an environment: write an id, such as HalfCheetah-v3, "
            "or module:id for an id that a module registers when it is imported."
        )


def unknown(env: str) -> UserError:
    """The error for an id that neither EnvPool nor Gymnasium has, with the ids that may have been meant."""
    known = {name.lower(): name for name in (*gymnasium.registry, *envpool_ids())}
    other_versions = sorted(name for key, name in known.items() if key.split("-v")[0] == env.lower().split("-v")[0])
    close = other_versions or [known[key] for key in difflib.get_close_matches(env.lower(), known, n=5)]
    hint = f"did you mean {' or '.join(close)}?" if close else "is the package that registers it imported?"
    return UserError(f"There is no environment {env!r}: {hint} (An id from another package is written module:id.)")
