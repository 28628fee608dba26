"""Names of environments, and what to answer to a name that does not exist."""

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


def unknown(env: str) -> UserError:
    """The answer to an id that neither EnvPool nor Gymnasium has: the ids it could have meant."""
    there = {name.lower(): name for name in (*gymnasium.registry, *envpool_ids())}
    other_versions = sorted(name for key, name in there.items() if key.split("-v")[0] == env.lower().split("-v")[0])
    close = other_versions or [there[key] for key in difflib.get_close_matches(env.lower(), there, n=5)]
    hint = f"did you mean {' or '.join(close)}?" if close else "is the package that registers it imported?"
    return UserError(f"there is no environment {env!r}: {hint} (Another package's id is written module:id.)")
