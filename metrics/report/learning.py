"""How well the clients learn: test metric against rounds, bytes and time, and its spread over clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...topology.picture import INK, legend_below, literal, new_figure
from .. import open_run
from .drawn import Drawn, colour, line_look, list_rows
from .methods import Method

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

_MARKERS = 8
_AXES = {
    "round": "rounds",
    "payload_mb": "payload sent by all clients, MB",
    "wall_s": "wall time, s",
    "virtual_s": "virtual time, s",
}


def curves(methods: Sequence[Method]) -> Iterator[Drawn]:
    """One figure for each test metric that the runs have."""
    for metric in sorted({method.run.metric for method in methods}):
        same = [method for method in methods if method.run.metric == metric]
        shown = [(method, curve) for method in same if len(curve := _curve(method))]
        if shown:
            yield _draw_curves(shown, metric)


def _curve(method: Method) -> DataFrame:
    """round, metric, standard_error, payload_mb, wall_s, virtual_s: means over the seeds.

    The error is over seeds, or over clients where there is one.
    """
    import pandas

    frames = []
    for folder in method.folders:
        reader = open_run(folder)
        each = reader.rounds[reader.rounds.node.isin(method.clients)].dropna(subset="test_metric")
        of_round = each.groupby("round").agg(
            metric=("test_metric", "mean"), over_clients=("test_metric", "sem"), virtual_s=("virtual_s", "max")
        )
        sent = reader.round_cumulative.set_index("round")
        frames.append(of_round.assign(payload_mb=sent.payload_bytes / 1e6, wall_s=sent.wall_s))
    together = pandas.concat(frames).groupby("round")
    curve = together[["metric", "payload_mb", "wall_s", "virtual_s"]].mean()
    errors = together.metric.sem() if len(frames) > 1 else together.over_clients.mean()
    return curve.assign(standard_error=errors).reset_index()


def _draw_curves(shown: Sequence[tuple[Method, DataFrame]], metric: str) -> Drawn:
    import pandas
    from matplotlib.ticker import LogLocator, NullFormatter

    first, _ = shown[0]
    axes_of = [x for x in _AXES if any(curve[x].notna().any() for _, curve in shown)]
    silent = [(curve.payload_mb.fillna(0) == 0).all() for _, curve in shown]
    if all(silent):
        axes_of.remove("payload_mb")
    columns = 3 if len(axes_of) == 3 else 2
    figure, panels = new_figure(10.5, 3.9 if len(axes_of) < 4 else 7.4, columns, len(axes_of), sharey=True)
    for axes, x in zip(panels, axes_of, strict=True):
        for method, curve in shown:
            _line(axes, method, curve, x)
        if x == "payload_mb":  # ticks at 1, 2, 5 of each power of ten where there are few of these, no exponents
            axes.set_xscale("log")
            low, high = axes.get_xlim()
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
            axes.xaxis.set_major_formatter("{x:,.6g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(_AXES[x])
    for axes in panels[::columns]:
        axes.set_ylabel(f"{first.metric_label}, mean over clients")
    legend_below(figure, panels[0])
    seeds = any(len(method.folders) > 1 for method, _ in shown)
    over = "runs with different seeds (over clients where there is one run)" if seeds else "clients"
    level = " A method that sends nothing is a level line against bytes." if any(silent) and not all(silent) else ""
    return Drawn(
        f"learning-{metric}",
        f"Test {metric}",
        f"Mean over clients of the test {metric}, by rounds, bytes and time. Bands: standard error over {over}.{level}",
        figure,
        pandas.concat([curve.assign(method=method.name) for method, curve in shown]),
    )


def _line(axes: Axes, method: Method, curve: DataFrame, x: str) -> None:
    curve = curve.dropna(subset=x)
    look = line_look(method.number) | {"label": literal(method.name)}
    metric = method.unit * curve.metric
    if x == "payload_mb":
        curve = curve[curve.payload_mb > 0]
        if curve.empty:
            axes.axhline(metric.iloc[-1], **look | {"marker": None})
            return
    metric, error = metric[curve.index], method.unit * curve.standard_error.fillna(0)
    every = max(1, len(curve) // _MARKERS)
    axes.plot(curve[x], metric, markevery=(method.number % every, every), **look)
    axes.fill_between(curve[x], metric - error, metric + error, color=look["color"], alpha=0.18, lw=0)


def spread(methods: Sequence[Method]) -> Iterator[Drawn]:
    """The test metric of every client, a row of dots a method."""
    import numpy as np
    import pandas

    for metric in sorted({method.run.metric for method in methods}):
        shown = [(method, method.latest_metric()) for method in methods if method.run.metric == metric]
        shown = [(method, latest) for method, latest in shown if len(latest)]
        if not shown:
            continue
        figure, (axes,) = new_figure(10.5, 1.1 + 0.55 * len(shown))
        for row, (method, latest) in enumerate(shown):
            values = method.unit * latest.test_metric.to_numpy()
            lift = np.random.default_rng(0).uniform(-0.26, 0.26, len(values))  # only so that dots do not hide others
            axes.plot(values, row + lift, "o", ms=4, color=colour(method.number), alpha=0.6, mew=0)
            axes.plot(values.mean(), row, "|", ms=26, mew=2.2, color=INK)
        list_rows(axes, [method.name for method, _ in shown])
        axes.set_xlabel(shown[0][0].metric_label)
        axes.spines["left"].set_visible(False)
        seeds = ", of each seed" if any(len(method.folders) > 1 for method, _ in shown) else ""
        yield Drawn(
            f"clients-{metric}",
            "Every client",
            f"A dot is a client's last test {metric}{seeds}; the bar is the mean over these. Heights have no meaning.",
            figure,
            pandas.concat([latest.assign(method=method.name) for method, latest in shown]),
        )


def worst_clients(methods: Sequence[Method], count: int = 5) -> list[tuple[str, str]]:
    """(method, "client: metric, ..."), the worst first; with the seed where there are several."""
    lines = []
    for method in methods:
        accuracy = method.run.metric == "accuracy"
        latest = method.latest_metric().sort_values("test_metric", ascending=accuracy, kind="stable").head(count)
        texts = [
            f"{row.owner or row.client}{f' (seed {row.seed})' if len(method.folders) > 1 else ''}: "
            f"{method.unit * row.test_metric:{'.1f' if accuracy else '.4g'}}"
            for row in latest.itertuples(index=False)
        ]
        lines += [(method.name, ", ".join(texts))] if texts else []
    return lines
