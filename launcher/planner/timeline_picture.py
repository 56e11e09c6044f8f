"""A plan as a picture: who works, waits or is away when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..config.sections import ConfigError
from .timeline import Stretches, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".svg", ".png", ".pdf")
# Of Okabe and Ito's colours, told apart with every common colour blindness, and by their lightness too
_WORK, _WAIT, _AWAY = "#0072B2", "#F5C26B", "#E2E2E2"
_GONE, _BACK, _INK = "#B23A00", "#007A5A", "#2B2B2B"
_RASTER_FROM = 20_000  # stretches; vector files of so many open slowly


def check_format(path: Path) -> None:
    """Raises ConfigError."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"--picture {path}: a picture's name ends in {', '.join(FORMATS)}")


def draw(timeline: Timeline, stretches: Sequence[Stretches], path: Path, title: str) -> None:
    """Writes ``path`` in the format of its ending. Raises ConfigError where it cannot be written."""
    from matplotlib.figure import Figure

    count = len(stretches)
    figure = Figure(figsize=(11, min(2.2 + 0.22 * count, 22)), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    raster = sum(len(own.computing) + len(own.waiting) for own in stretches) > _RASTER_FROM
    for name, colour in (("away", _AWAY), ("waiting", _WAIT), ("computing", _WORK)):
        _bars(axes, [getattr(own, name) for own in stretches], colour, rasterized=raster)
    ends = [(when, number) for number, own in enumerate(stretches) for when, _ in own.ends]
    returns = [(when, number) for number, own in enumerate(stretches) for when in own.returns]
    size = float(np.clip(1400 / count, 20, 60))
    for points, marker, colour in ((ends, "X", _GONE), (returns, ">", _BACK)):
        if points:
            when, client = np.array(points).T
            axes.scatter(when, client, marker=marker, s=size, c=colour, edgecolors="white", lw=0.6, zorder=3)
    axes.set_xlim(0, timeline.end_s or 1)
    axes.set_ylim(count - 0.4, -0.6)
    axes.set_xlabel("virtual seconds", color=_INK)
    axes.set_ylabel("client", color=_INK)
    axes.set_yticks(range(0, count, 1 + (count - 1) // 40))
    axes.tick_params(colors=_INK, labelsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_title(title.replace("$", r"\$"), loc="left", color=_INK, fontsize=12)
    _legend(axes, ends=bool(ends), returns=bool(returns), away=any(len(own.away) for own in stretches))
    try:
        figure.savefig(path, dpi=160)
    except OSError as error:
        raise ConfigError(f"--picture {path}: cannot be written: {error.strerror or error}") from error


def _bars(axes: Axes, of_clients: Sequence[np.ndarray], colour: str, *, rasterized: bool) -> None:
    from matplotlib.collections import PolyCollection

    corners = []
    for client, stretches in enumerate(of_clients):
        if len(stretches):
            start, end = stretches.T
            low, high = np.full(len(start), client - 0.4), np.full(len(start), client + 0.4)
            corners.append(np.stack([[start, low], [end, low], [end, high], [start, high]]).transpose(2, 0, 1))
    if corners:
        bars = PolyCollection(list(np.concatenate(corners)), facecolors=colour, edgecolors="none", lw=0, zorder=2)
        bars.set_rasterized(rasterized)
        axes.add_collection(bars)


def _legend(axes: Axes, *, ends: bool, returns: bool, away: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    keys: list[Patch | Line2D] = [Patch(color=_WORK, label="local work"), Patch(color=_WAIT, label="waiting")]
    if away:
        keys.append(Patch(color=_AWAY, label="away"))
    for wanted, marker, colour, label in (
        (ends, "X", _GONE, "crashes, leaves"),
        (returns, ">", _BACK, "joins, is back"),
    ):
        if wanted:
            keys.append(Line2D([], [], color=colour, marker=marker, linestyle="none", label=label))
    axes.legend(
        handles=keys, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(keys), frameon=False, fontsize=9,
        handlelength=1.2, columnspacing=1.2, labelcolor=_INK, borderaxespad=0.2,
    )  # fmt: skip
