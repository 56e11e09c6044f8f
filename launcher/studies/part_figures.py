"""Figures of a part's runs: test metrics against rounds and bits, and the norms of learned maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...metrics import open_run
from ...topology.picture import COLOURS, INK, LOOK, MARKERS, legend_below, literal, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from .reproduction import Part, Result

ALONE = "Local"
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)))
_PIXELS = {
    "norm": r"$\|P_{ij}\|_F$ after the last round",
    "change": r"change of $\|P_{ij}\|_F$ since the first round, %",
}


def save(shown: DataFrame, draw: Callable[[], Figure], title: str, place: Path) -> list[Path]:
    """Returns the files: PLACE.csv of what is shown, and .svg and .png."""
    import matplotlib

    table, svg, png = (place.with_name(f"{place.name}.{ending}") for ending in ("csv", "svg", "png"))
    shown.to_csv(table, index=False, float_format="%.6g")
    with matplotlib.rc_context(LOOK):
        figure = draw()
        figure.suptitle(literal(title), color=INK, fontsize=11)
        figure.savefig(svg, facecolor="white", metadata={"Date": None})
        figure.savefig(png, facecolor="white", dpi=160)
    return [table, svg, png]


def curves(results: Sequence[Result]) -> DataFrame:
    """Returns run, round, metric, standard_error (over seeds; missing for one), mbit sent by all up to the round, train
    (the metric on training samples, where it was recorded)."""
    import pandas

    frames = []
    for result in results:
        for folder in result.folders:
            reader = open_run(folder)
            rounds, metrics = reader.round_cumulative.dropna(subset="mean_test_metric"), reader.metrics
            train = metrics[metrics.name.isin(["train_accuracy", "train_mse"])].groupby("round").value.mean()
            train = rounds["round"].map(train) if len(train) else np.nan
            frames.append(rounds.assign(run=result.name, mbit=rounds.payload_bytes * 8e-6, train=train))
    found = pandas.concat(frames).groupby(["run", "round"], sort=False)
    return found.agg(
        metric=("mean_test_metric", "mean"),
        standard_error=("mean_test_metric", "sem"),
        mbit=("mbit", "mean"),
        train=("train", "mean"),
    ).reset_index()


def map_norms(result: Result) -> DataFrame:
    """Returns client, neighbour, parameters of both, ||P_ij||_F after the first round and the last, of one seed."""
    reader = open_run(result.folders[0])
    edges, sizes = reader.edges, reader.nodes.set_index("node").parameters
    first, last = (
        edges[edges["round"] == at].set_index(["node", "neighbour"]).map_norm for at in (1, edges["round"].max())
    )
    norms = last.rename("norm").to_frame().assign(norm_after_round_1=first).reset_index()
    norms = norms.rename(columns={"node": "client"})
    return norms.assign(parameters=norms.client.map(sizes), neighbour_parameters=norms.neighbour.map(sizes))


def panels(shown: DataFrame, part: Part) -> Figure:
    from matplotlib.ticker import LogLocator

    with_bits = part.about.picture == "rounds and bits"
    figure, both = new_figure(10 if with_bits else 7, 4.4, 2 if with_bits else 1, sharey=True)
    error = "mse" in part.about.columns
    both[0].set_ylabel("test MSE, mean over clients" if error else "test accuracy %, mean over clients")
    axis_names = {"round": "rounds", "mbit": "Mbit sent by all clients"}
    for axes, (x, name) in zip(both, axis_names.items(), strict=False):
        _lines(axes, shown, x, unit=1 if error else 100, flat=x == "mbit" or not with_bits)
        axes.set_xlabel(name)
        axes.grid()
    if with_bits:
        both[1].set_xscale("log")
        both[1].xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        both[1].xaxis.set_major_formatter("{x:g}")
    legend_below(figure, both[0])
    return figure


def _lines(axes: Axes, shown: DataFrame, x: str, *, unit: float, flat: bool) -> None:
    """With ``flat``, learning alone is a level line at what it ends with."""
    for number, (name, run) in enumerate(shown.groupby("run", sort=False)):
        colour, metric = COLOURS[number % len(COLOURS)], unit * run.metric
        look = {"color": colour, "ls": _DASHES[number % len(_DASHES)], "lw": 1.8, "label": name}
        if name == ALONE and flat:
            axes.axhline(metric.iloc[-1], **look)
            continue
        sent = run[x] > 0 if x == "mbit" else run[x] >= 0
        place, every = run[x][sent], (number, max(1, sent.sum() // 8))
        axes.plot(place, metric[sent], marker=MARKERS[number % len(MARKERS)], ms=4.5, markevery=every, **look)
        if run.train.notna().any():
            axes.plot(place, unit * run.train[sent], color=colour, ls=":", lw=1)
        if run.standard_error.notna().any():
            band = unit * run.standard_error[sent]
            axes.fill_between(place, metric[sent] - band, metric[sent] + band, color=colour, alpha=0.2, lw=0)


def maps(norms: DataFrame) -> Figure:
    """Pixel (i, j) is of P_ij: its norm, and how much of it was learned. Pairs without an edge are white."""
    sizes = norms.groupby("client").parameters.first().sort_values(kind="stable")
    norms = norms.assign(change=100 * (norms.norm / norms.norm_after_round_1 - 1))
    figure, panels = new_figure(11, 5, 2)
    every = 1 + (len(sizes) - 1) // 20
    for axes, (what, label) in zip(panels, _PIXELS.items(), strict=True):
        pixels = norms.pivot(index="client", columns="neighbour", values=what)
        image = axes.imshow(pixels.reindex(index=sizes.index, columns=sizes.index), cmap="viridis")
        figure.colorbar(image, ax=axes, shrink=0.85, label=label).outline.set_visible(False)
        for place in np.flatnonzero(np.diff(sizes)) + 0.5:
            axes.axhline(place, color=INK, lw=0.6)
            axes.axvline(place, color=INK, lw=0.6)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(range(0, len(sizes), every), [str(client) for client in sizes.index[::every]])
        axes.set(xlabel="client j, small models first", ylabel="client i, small models first")
    return figure
