"""Line plots in one house style, as PNG or SVG by the file's suffix.

Needs matplotlib, the `plots` extra; draws without a display. Knows lines and labels, nothing of
what they mean. A file appears whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
PANEL_INCHES = (6.4, 4.0)
# Okabe and Ito's colours, which colour-blind readers can tell apart; grey is for references.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY = "#888888"
STYLE: Any = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    # Else each run would name the parts of a picture anew.
    "svg.hashsalt": "specdec",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One curve. `x` and `y` have the same length; a reference is drawn grey and dashed, and a
    stepped line holds each value until the next x."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    reference: bool = False
    stepped: bool = False
    marker: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes. Labels carry the unit: "Goodput (tokens/s)"."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    log_x: bool = False
    y_limits: tuple[float, float] | None = None
    x_ticks: Sequence[float] = field(default_factory=tuple)


def check_path(path: Path) -> None:
    """Raise ConfigError if `save` could not write there: suffix, folder, or matplotlib missing.

    Commands call it before their work, so that nobody waits for a picture that cannot be drawn.
    """
    if path.suffix.lower() not in SUFFIXES:
        names = " or ".join(SUFFIXES)
        raise ConfigError(f"plot must end in {names}, not {path.name!r}", field="plot")
    if not path.parent.is_dir():
        raise ConfigError(f"plot: there is no folder {path.parent}", field="plot")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(
            "plot needs matplotlib, which is not installed: pip install 'specdec[plots]'",
            field="plot",
        ) from error


def save(path: Path, panels: Sequence[Panel], columns: int = 1) -> None:
    """Draw `panels` in rows of `columns` and write them to `path`. Raises ConfigError as
    `check_path` does, and where the disk refuses."""
    check_path(path)
    import matplotlib

    with matplotlib.rc_context(STYLE):
        _write(path, _figure(panels, columns))


def _figure(panels: Sequence[Panel], columns: int) -> Figure:
    from matplotlib.figure import Figure

    rows = -(-len(panels) // columns)
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * columns, height * rows), dpi=150, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    places = list(grid.flat)
    for axes, panel in zip(places, panels, strict=False):
        _draw(axes, panel)
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    return figure


def _draw(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    colours = iter(COLOURS * (1 + len(panel.lines) // len(COLOURS)))
    for line in panel.lines:
        axes.plot(
            line.x,
            line.y,
            label=line.label,
            color=GREY if line.reference else next(colours),
            linestyle="--" if line.reference else "-",
            drawstyle="steps-post" if line.stepped else "default",
            marker=line.marker,
            markersize=4,
        )
    if panel.log_x:
        axes.set_xscale("log", base=2)
    if panel.x_ticks:
        axes.set_xticks(panel.x_ticks, [f"{tick:g}" for tick in panel.x_ticks])
        axes.minorticks_off()
    if panel.y_limits is not None:
        axes.set_ylim(*panel.y_limits)
    if len(panel.lines) > 1:
        axes.legend()


def _write(path: Path, figure: Figure) -> None:
    suffix = path.suffix.lower()
    # Without a date the same picture is the same file.
    metadata = {"Date": None} if suffix == ".svg" else {}
    partial = path.with_name(f".{path.name}.partial")
    try:
        figure.savefig(partial, format=suffix[1:], metadata=metadata)
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"plot: cannot write {path}: {error.strerror}", field="plot") from error
    finally:
        partial.unlink(missing_ok=True)
