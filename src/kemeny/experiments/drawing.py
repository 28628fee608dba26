"""How pictures look: colours that everybody can tell apart, sizes, and the files they are written to."""

import contextlib
import io
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kemeny.errors import UserError
from kemeny.experience.picture import COLORS as NO_BLACK
from kemeny.experiments.curves import Curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = (*NO_BLACK, "#000000")
"""Okabe and Ito's, without yellow, which is too light for a line."""
MARKERS = (None, "o", "s", "^", "D")
"""Of the first curve with a colour, the second, and so on, where there are more curves than colours."""
STYLES = ("-", "--", "-.")
"""Of curves that differ only in their length, the first, the second and the third; dots are for limits."""
WIDEST_LABEL = 52
"""Characters of a line of a legend, which must not be wider than its column."""
DOTS_PER_INCH = 200
LOOK: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.fontsize": "small",
    "lines.linewidth": 1.6,
    "pdf.fonttype": 42,  # letters as letters, as publishers ask for
    "svg.hashsalt": "kemeny",  # the same picture is the same file
}
UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""What is left out of a file, so that the same picture is the same file."""


@contextlib.contextmanager
def in_style() -> Iterator[None]:
    """Draw with our look, and leave Matplotlib's own settings as they were."""
    import matplotlib as mpl

    with mpl.rc_context(LOOK):
        yield


def empty_figure(width: float, height: float) -> "Figure":
    """A figure that belongs to no window; Matplotlib's choice of windows is left as it is."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A figure that a notebook shows, whether or not pyplot is in use there."""

        def _repr_png_(self) -> bytes:
            content = io.BytesIO()
            self.savefig(content, format="png", dpi=DOTS_PER_INCH)
            return content.getvalue()

    return Picture(figsize=(width, height), layout="constrained")


def write(figure: "Figure", output: Path) -> None:
    """Write a picture; the ending chooses the format."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with in_style():
            figure.savefig(output, dpi=DOTS_PER_INCH, metadata=UNDATED.get(output.suffix.lower().removeprefix(".")))
    except (OSError, ValueError) as error:
        raise UserError(f"The picture {output} cannot be written: {error}.") from error


def kinds_of(curves: Sequence[Curve]) -> list[str]:
    """The kinds of run, each of which has one colour in all columns; columns are in alphabetical order."""
    return list(dict.fromkeys(curve.kind for curve in sorted(curves, key=lambda curve: curve.env)))


def looks(curves: Sequence[Curve], kinds: Sequence[str]) -> list[dict[str, Any]]:
    """How the curves of one environment are drawn: a colour per kind, a line style per length."""
    found = []
    for place, curve in enumerate(curves):
        number = kinds.index(curve.kind)
        before = sum(other.kind == curve.kind for other in curves[:place])
        found.append(
            {
                "color": COLORS[number % len(COLORS)],
                "marker": MARKERS[number // len(COLORS) % len(MARKERS)],
                "markevery": 0.1,
                "markersize": 4,
                "linestyle": STYLES[before % len(STYLES)],
            }
        )
    return found


def legend_below(column: Sequence[Any], lowest: int, order: Sequence[str]) -> None:
    """One legend for all panels of a column, under its lowest one, which may be followed by places that are empty."""
    entries: dict[str, Any] = {}
    for axis in column[: lowest + 1]:
        handles, labels = axis.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    labels = sorted(entries, key=list(order).index)
    is_free = lowest + 1 < len(column)
    column[lowest + is_free].legend(
        [entries[label] for label in labels],
        ["\n".join(_wrapped(label)) for label in labels],
        loc="upper center",
        bbox_to_anchor=(0.5, 1.0 if is_free else -0.17),
    )


def legend_height(labels: Sequence[str]) -> float:
    """Inches that a legend takes."""
    return 0.3 + 0.19 * sum(len(_wrapped(label)) for label in labels)


def _wrapped(label: str) -> list[str]:
    return textwrap.wrap(label, WIDEST_LABEL)


def in_thousands(axis: Any) -> None:
    """Steps as 200k and 1M."""
    from matplotlib.ticker import EngFormatter

    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
