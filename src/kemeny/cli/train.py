"""`kemeny train`: every flag is a field of the settings that the library itself uses."""

import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from kemeny.cli.ending import say_finished
from kemeny.cli.parsing import call
from kemeny.runs.presets import Preset, described
from kemeny.runs.presets import preset as preset_settings
from kemeny.runs.settings import Settings

DEFAULTS = Settings()
EnvName = Annotated[Positional[str], arg(metavar="ENV")]


def train(env: EnvName, settings: Settings = DEFAULTS, out: Path | None = None, preset: Preset = "default") -> None:
    """Train a policy and leave a run directory.

    Args:
        env: Id of an environment of EnvPool or Gymnasium, such as HalfCheetah-v3.
        settings: What to learn and how.
        out: The run directory to make [runs/ENV-ALGORITHM-seedSEED].
        preset: Where a setting is not given: the default, or the paper's (Appendix H).
    """
    from kemeny.runs.progress import Terminal
    from kemeny.runs.train import start

    if preset != "default":
        settings = _given(preset_settings(preset))
        print(f"The paper's settings: {described(preset, settings)}")
    say_finished(start(env, settings, out, [Terminal()]))


def _given(defaults: Settings) -> Settings:
    """The settings of this command line, with other defaults."""

    def train(
        env: EnvName, settings: Settings = defaults, out: Path | None = None, preset: Preset = "default"
    ) -> Settings:
        del env, out, preset
        return settings

    return call(train, "train", sys.argv[2:])
