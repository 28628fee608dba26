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
MOST_LINES = len(COLORS)
"""In a panel; more could not be told apart."""
MOST_ENDS = 50
"""Marked; more would hide everything else."""
LAST = 100
"""Steps that are drawn a second time, larger."""
AVERAGE = "average so far"

NO_LIMITS: Mapping[str, float] = MappingProxyType({})


def draw(trajectory: Trajectory, path: str | Path, *, title: str = "", limits: Mapping[str, float] = NO_LIMITS) -> None:
    """Draw a trajectory into a file, whose ending chooses the format; `limits` are per step, by cost.

    Beside the whole of a long trajectory stand its last steps, where single steps can be seen.
    """
    pyplot = _pyplot()
    panels = _panels(trajectory)
    parts = [(0, len(trajectory))]
    if len(trajectory) > 3 * LAST:
        parts.append((len(trajectory) - LAST, len(trajectory)))
    figure, axes = pyplot.subplots(
        len(panels), len(parts), sharex="col", sharey="row", squeeze=False, layout="constrained",
        figsize=(3.5 + 5 * len(parts), 0.8 + 2 * len(panels)),
    )  # fmt: skip
    try:
        for row, (name, lines) in zip(axes, panels.items(), strict=True):
            for axis, part in zip(row, parts, strict=True):
                _draw_panel(axis, name, lines, trajectory, slice(*part))
                if name in limits:
                    axis.axhline(limits[name], color="black", lw=1.2, ls=":", label="limit")
            row[0].set_ylabel(_label(name, lines), fontsize="small")
            row[-1].legend(**LEGEND)
        for axis, (begin, end) in zip(axes[-1], parts, strict=True):
            axis.set_xlabel("step")
            axis.set_xlim(begin, max(end - 1, begin + 1))
        figure.suptitle(title, fontsize="medium")
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
    panels = {"reward": {"reward": trajectory.reward, AVERAGE: np.cumsum(trajectory.reward) / so_far}}
    for name, column in zip(trajectory.cost_names, trajectory.costs.T, strict=True):
        panels[name] = {name: column, AVERAGE: np.cumsum(column) / so_far}
    return {**panels, "actions": trajectory.action_columns, "observations": trajectory.observation_columns}


def _label(name: str, lines: Mapping[str, np.ndarray]) -> str:
    return name if len(lines) <= MOST_LINES else f"{name}\n(first {MOST_LINES} of {len(lines)})"


def _draw_panel(axis: Any, name: str, lines: Mapping[str, np.ndarray], trajectory: Trajectory, part: slice) -> None:
    """The lines of one panel over some of the steps, and where the trajectory ended."""
    steps = np.arange(len(trajectory))[part]
    averaged = AVERAGE in lines
    for number, (label, values) in enumerate(list(lines.items())[:MOST_LINES]):
        bold = label == AVERAGE
        (line,) = axis.plot(steps, values[part], color=COLORS[number], label=label.removeprefix(f"{name[:-1]}_"))
        line.set(linewidth=1.8 if bold else 0.9, alpha=0.7 if averaged and not bold else 1)
        if values.dtype.kind in "iu":
            line.set_drawstyle("steps-post")
    ends = steps[trajectory.terminated[part]]
    for number, end in enumerate(ends if len(ends) <= MOST_ENDS else ()):
        axis.axvline(end, color="0.3", lw=0.8, label="end" if number == 0 else None)
    axis.tick_params(labelsize="small")
    axis.grid(alpha=0.25)
