"""The machine a run is on: its cores, processor and versions, and the compiled code that is kept on it."""

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# JAX is imported where it is used: environments import this module, and their processes never load JAX.

RECORDED_VERSIONS = ("kemeny", "jax", "jaxlib", "equinox", "optax", "numpy", "envpool", "gymnasium", "mujoco")
MOST_CORES = 2**12
"""A config.json that asks for more threads than this is not believed."""


def available_cores() -> int:
    """The number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def xla_cores() -> int:
    """The number of threads XLA divides its work among: NPROC if it is set, otherwise the available cores.

    The last digits of XLA's results depend on this number, and no flag of XLA's sets it.
    """
    asked = os.environ.get("NPROC", "")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else available_cores()


def keep_cores(cores: Any, report: Callable[[str], None]) -> int:
    """Give XLA as many threads as it had when the run began, because its last digits depend on their number.

    Returns the number XLA has now. Where it can no longer be changed, `report` gets a sentence that says so.
    """
    import jax
    from jax._src import xla_bridge

    if type(cores) is not int or not 0 < cores <= MOST_CORES or cores == xla_cores():
        return xla_cores()
    if xla_bridge.backends_are_initialized():
        report(
            f"The run began with {cores} threads for XLA, and this process has {xla_cores()} already: its last digits "
            "may differ from those of a run that was never stopped. In a new process they would not."
        )
        return xla_cores()
    before = os.environ.get("NPROC")
    os.environ["NPROC"] = str(cores)
    try:
        jax.devices()  # XLA reads NPROC here, once
    finally:
        del os.environ["NPROC"]
        if before is not None:
            os.environ["NPROC"] = before
    return cores


def surroundings() -> dict[str, Any]:
    """Versions, commit and machine, as config.json records them."""
    return {
        "versions": _versions(),
        "git_commit": _git_commit(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": xla_cores(),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def differences(config: Mapping[str, Any]) -> list[str]:
    """What has changed since the run with this config began and can change the last digits: a sentence for each."""
    sentences = []
    before, now = config.get("versions"), _versions()
    if not isinstance(before, dict):
        before = now
    changed = [f"{name} {before.get(name)} → {now[name]}" for name in now if before.get(name) != now[name]]
    if changed:
        sentences.append(f"Versions have changed since the run began: {', '.join(changed)}.")
    processor = config.get("processor")
    if processor != _processor():
        sentences.append(f"The processor is another than when the run began: {processor} → {_processor()}.")
    return sentences


def keep_compiled(cores: int) -> None:
    """Keep compiled code between processes, unless JAX's own cache was set up or switched off by the user.

    A second run then starts in about half the time of the first. Code for another processor or another number of cores
    (on which XLA's last digits depend) has a folder of its own, under $XDG_CACHE_HOME/kemeny or ~/.cache/kemeny; any of
    them may be deleted at any time. Where no folder can be written, nothing is kept.
    """
    import jax

    config: Any = jax.config
    if config.jax_compilation_cache_dir is not None or not config.jax_enable_compilation_cache:
        return
    folder = cache_folder() / f"xla-{_processor_hash()}-{cores}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return
    if os.access(folder, os.W_OK):
        config.update("jax_compilation_cache_dir", str(folder))
        config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        _replace_damaged(folder)


def cache_folder() -> Path:
    """Where Kemeny keeps what saves time and questions, between processes; it may be deleted at any time."""
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path(os.path.expanduser("~")) / ".cache") / "kemeny"


def _replace_damaged(folder: Path) -> None:
    """Let JAX compile again what it finds damaged in our folder, for example cut short by a crash, and write it anew.

    By itself JAX warns of such an entry and leaves it as it is, so that every later start warns too. The names used
    here are private to JAX: where they have changed, JAX does as it does by itself.
    """
    with contextlib.suppress(Exception):
        from jax._src import compilation_cache

        compilation_cache._initialize_cache()
        cache: Any = compilation_cache._cache
        cache.get = functools.partial(_sound_entry, folder, cache.get, compilation_cache.decompress_executable)


def _sound_entry(
    folder: Path, read: Callable[[str], bytes | None], decompress: Callable[[bytes], bytes], key: str
) -> bytes | None:
    """The entry of the cache under `key`; a damaged one is deleted and counts as missing."""
    entry = read(key)
    if entry is None:
        return None
    try:
        decompress(entry)
    except Exception:  # each compressor has errors of its own
        with contextlib.suppress(OSError):
            (folder / f"{key}-cache").unlink()
        return None
    return entry


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in RECORDED_VERSIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _git_commit() -> str | None:
    """The commit of Kemeny's own checkout, if it runs from one."""
    here = Path(__file__).parent
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=here, capture_output=True, text=True, timeout=5, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


def _cpuinfo() -> list[str]:
    """The lines that Linux has about the first core; none on another system."""
    try:
        return Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return []


def _processor() -> str:
    """The processor's name."""
    names = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _processor_hash() -> str:
    """A few letters that differ between kinds of processor: they stand for its name and all it can do."""
    kind = [line for line in _cpuinfo() if line.startswith(("model name", "flags", "Features", "CPU"))]
    about = "\n".join(kind) if kind else platform.processor()
    return hashlib.sha256(f"{platform.machine()} {about}".encode()).hexdigest()[:12]
