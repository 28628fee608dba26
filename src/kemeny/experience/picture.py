"""A trajectory as a picture: reward, costs, actions and observations against time."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from kemeny.errors import UserError
from kemeny.experience.trajectory import Trajectory

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, which people who see few colours can tell apart."""
STYLES = ("-", "--", "-.", ":")
"""Of lines that share a colour."""
MOST_LINES = 6
"""In a panel; more could not be told apart."""
MOST_FALLS = 100
"""Marked; more would hide everything else."""

NO_LIMITS: Mapping[str, float] = MappingProxyType({})


def draw(trajectory: Trajectory, path: str | Path, *, title: str = "", limits: Mapping[str, float] = NO_LIMITS) -> None:
    """Draw a trajectory into a file, whose ending chooses the format; `limits` are per step, by cost."""
    pyplot = _pyplot()
    panels = _panels(trajectory)
    heights = [1.4 if name in ("reward", "observations") else 1.0 for name in panels]
    figure, axes = pyplot.subplots(
        len(panels), 1, sharex=True, squeeze=False, figsize=(9, 0.8 + 1.7 * sum(heights)), layout="constrained",
        height_ratios=heights,
    )  # fmt: skip
    try:
        for axis, (name, lines) in zip(axes[:, 0], panels.items(), strict=True):
            _draw_panel(axis, name, lines, trajectory)
            limit = limits.get(name)
            if limit is not None:
                axis.axhline(limit, color="black", lw=1.2, ls=":", label="limit")
                axis.legend(**LEGEND)
        axes[0, 0].set_title(title, fontsize="medium", loc="left")
        axes[-1, 0].set_xlabel("step")
        axes[-1, 0].set_xlim(0, max(len(trajectory) - 1, 1))
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise UserError(f"The picture {path} cannot be written: {error}.") from error
    finally:
        pyplot.close(figure)


def refuse_unknown_ending(path: str | Path) -> None:
    """Refuse a file whose ending names no format of pictures."""
    known = sorted(_pyplot().figure().canvas.get_supported_filetypes())
    _pyplot().close()
    if Path(path).suffix.removeprefix(".").lower() not in known:
        raise UserError(f"{path} names no format of pictures: its ending must be one of {', '.join(known)}.")


LEGEND = {
    "loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "frameon": False, "fontsize": "x-small", "handlelength": 1.6,
}  # fmt: skip
"""Beside the panel, so that it hides nothing."""


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot

    return pyplot


def _panels(trajectory: Trajectory) -> dict[str, dict[str, np.ndarray]]:
    """The lines of each panel."""
    so_far = np.arange(1, len(trajectory) + 1)
    panels = {"reward": {"reward": trajectory.reward, "average so far": np.cumsum(trajectory.reward) / so_far}}
    for name, column in zip(trajectory.cost_names, trajectory.costs.T, strict=True):
        panels[name] = {name: column, "average so far": np.cumsum(column) / so_far}
    return {**panels, "actions": trajectory.action_columns, "observations": trajectory.observation_columns}


def _draw_panel(axis: Any, name: str, lines: Mapping[str, np.ndarray], trajectory: Trajectory) -> None:
    steps = np.arange(len(trajectory))
    averaged = "average so far" in lines
    shown = list(lines.items())[:MOST_LINES]
    for number, (label, values) in enumerate(shown):
        color, style = COLORS[number % len(COLORS)], STYLES[number // len(COLORS) % len(STYLES)]
        bold = averaged and number == 1
        is_discrete = name == "actions" and values.dtype.kind in "iu"
        axis.plot(
            steps, values, color=color, ls=style, lw=1.8 if bold else 0.8, alpha=1.0 if bold or not averaged else 0.6,
            label=label.removeprefix(name[:-1] + "_"), drawstyle="steps-post" if is_discrete else "default",
        )  # fmt: skip
    ends = np.flatnonzero(trajectory.terminated)
    for number, end in enumerate(ends if len(ends) <= MOST_FALLS else ()):
        axis.axvline(end, color="0.4", lw=0.7, label="end (fall or goal)" if number == 0 and name == "reward" else None)
    more = len(lines) - len(shown)
    axis.set_ylabel(name if not more else f"{name}\n(first {MOST_LINES} of {len(lines)})", fontsize="small")
    axis.tick_params(labelsize="small")
    axis.grid(alpha=0.25)
    axis.legend(**LEGEND)
