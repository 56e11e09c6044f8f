"""The pictures of the figures, each as .svg and .png, with what they show as .csv."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ....topology.picture import COLOURS, INK, LOOK, MARKERS, legend_below, new_figure
from .parts import Part
from .results import Result, curves, map_norms

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

_ALONE = "Local"
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)))


def draw(part: Part, results: list[Result], out: Path) -> list[Path]:
    """The files written. Nothing where no run has finished."""
    there = [result for result in results if result.folders]
    if part.about.picture == "none" or not there:
        return []
    import matplotlib

    shown = map_norms(there[0]) if part.about.picture == "maps" else curves(there)
    table, svg, png = (out / f"{part.stem}.{ending}" for ending in ("csv", "svg", "png"))
    shown.to_csv(table, index=False, float_format="%.6g")
    with matplotlib.rc_context(LOOK):
        figure = _maps(shown) if part.about.picture == "maps" else _panels(shown, part)
        figure.suptitle(part.about.title, color=INK, fontsize=11)
        figure.savefig(svg, facecolor="white", metadata={"Date": None})
        figure.savefig(png, facecolor="white", dpi=160)
    return [table, svg, png]


def _panels(shown: DataFrame, part: Part) -> Figure:
    """The test metric against rounds, and where the figure has it also against bits."""
    from matplotlib.ticker import LogLocator

    with_bits = part.about.picture == "rounds and bits"
    figure, panels = new_figure(10 if with_bits else 7, 4.4, 2 if with_bits else 1, sharey=True)
    error = "mse" in part.about.columns
    for axes, x in zip(panels, ("round", "mbit"), strict=False):
        _lines(axes, shown, x, unit=1 if error else 100, flat=x == "mbit" or not with_bits)
        axes.set_xlabel({"round": "rounds", "mbit": "Mbit sent by all clients"}[x])
        axes.grid()
    panels[0].set_ylabel("test MSE, mean over clients" if error else "test accuracy %, mean over clients")
    if with_bits:
        panels[1].set_xscale("log")
        panels[1].xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panels[1].xaxis.set_major_formatter("{x:g}")
    legend_below(figure, panels[0])
    return figure


def _lines(axes: Axes, shown: DataFrame, x: str, *, unit: float, flat: bool) -> None:
    """With ``flat``, learning alone is a level line at what it ends with."""
    for number, (name, run) in enumerate(shown.groupby("run", sort=False)):
        colour, metric = COLOURS[number % len(COLOURS)], unit * run.metric
        look = {"color": colour, "ls": _DASHES[number % len(_DASHES)], "lw": 1.8, "label": name}
        if name == _ALONE and flat:
            axes.axhline(metric.iloc[-1], **look)
            continue
        sent = run[x] > 0 if x == "mbit" else run[x] >= 0
        place = run[x][sent]
        axes.plot(
            place, metric[sent], marker=MARKERS[number], ms=4.5, markevery=(number, max(1, len(place) // 8)), **look
        )
        if run.standard_error.notna().any():
            band = unit * run.standard_error[sent]
            axes.fill_between(place, metric[sent] - band, metric[sent] + band, color=colour, alpha=0.2, lw=0)


def _maps(norms: DataFrame) -> Figure:
    """Pixel (i, j) is of P_ij: its norm, and how much of it was learned. Pairs without an edge are white."""
    sizes = norms.groupby("client").parameters.first().sort_values(kind="stable")
    norms = norms.assign(change=100 * (norms.norm / norms.norm_after_round_1 - 1))
    figure, panels = new_figure(11, 5, 2)
    for axes, (what, label) in zip(panels, _PIXELS.items(), strict=True):
        pixels = norms.pivot(index="client", columns="neighbour", values=what)
        image = axes.imshow(pixels.reindex(index=sizes.index, columns=sizes.index), cmap="viridis")
        figure.colorbar(image, ax=axes, shrink=0.85, label=label).outline.set_visible(False)
        for place in np.flatnonzero(np.diff(sizes)) + 0.5:
            axes.axhline(place, color=INK, lw=0.6)
            axes.axvline(place, color=INK, lw=0.6)
        every = 1 + (len(sizes) - 1) // 20
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(range(0, len(sizes), every), [str(client) for client in sizes.index[::every]])
        axes.set(xlabel="client j, small models first", ylabel="client i, small models first")
    return figure


_PIXELS = {
    "norm": r"$\|P_{ij}\|_F$ after the last round",
    "change": r"change of $\|P_{ij}\|_F$ since the first round, %",
}
