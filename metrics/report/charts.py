"""Charts of methods side by side: how well their clients learn, and what it costs; and the memory of each process."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter
from pandas import DataFrame

from ...topology.picture import INK, SOFT, legend_below, literal, new_figure
from .. import open_run
from ..figures import OPENING, Values, overhead
from ..text import short
from .drawn import Drawn, Method, colour, line_look, list_rows, named

_MARKERS = 8
_AXES = {
    "round": "rounds",
    "payload_mb": "payload sent by all clients, MB",
    "wall_s": "wall time, s",
    "virtual_s": "virtual time, s",
}
_ON_TOP: dict[str, tuple[str, Values]] = {
    "message": ("and message headers", lambda run: run.traffic.message_bytes - run.traffic.payload_bytes),
    "wire": ("and framing", lambda run: run.traffic.wire_bytes - run.traffic.message_bytes),
    "opening": ("and opening connections", OPENING),
    "confirmation": ("and confirmations of messages", overhead("confirmation")),
    "evaluation": ("and models for evaluation only", overhead("evaluation")),
    "records": ("records to the collector", overhead("records")),
}
"""What is sent beside the payload."""


def _by_metric(methods: Sequence[Method]) -> Iterator[tuple[str, list[Method]]]:
    for metric in sorted({method.run.metric for method in methods}):
        yield metric, [method for method in methods if method.run.metric == metric]


def curves(methods: Sequence[Method]) -> Iterator[Drawn]:
    """The mean test metric against rounds, bytes and time: one figure for each metric that the runs have."""
    for metric, same in _by_metric(methods):
        shown = [(method, curve) for method in same if len(curve := _curve(method))]
        axes_of = [x for x in _AXES if any(curve[x].notna().any() for _, curve in shown)]
        if not axes_of:
            continue
        silent = [not curve.payload_mb.any() for _, curve in shown]
        if all(silent):
            axes_of.remove("payload_mb")
        columns = 3 if len(axes_of) == 3 else 2
        figure, panels = new_figure(10.5, 3.9 if len(axes_of) < 4 else 7.4, columns, len(axes_of), sharey=True)
        for axes, x in zip(panels, axes_of, strict=True):
            _draw_curves(axes, x, shown)
        for axes in panels[::columns]:
            axes.set_ylabel(f"{same[0].scale[1]}, mean over clients")
        legend_below(figure, panels[0])
        seeds = any(len(method.folders) > 1 for method, _ in shown)
        over = "runs with different seeds (over clients where there is one run)" if seeds else "clients"
        level = " A method that sends nothing is a level line against bytes." if any(silent) and not all(silent) else ""
        yield Drawn(
            f"learning-{metric}",
            f"Test {metric}",
            f"Mean over clients of the test {metric}, by rounds, bytes and time. Bands: standard error over {over}."
            f"{level}",
            figure,
            pandas.concat([curve.assign(method=method.name) for method, curve in shown]),
        )


def _curve(method: Method) -> DataFrame:
    """round, metric, payload_mb, wall_s, virtual_s, standard_error: means over the seeds; the error is over seeds, or
    over clients where there is one."""
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


def _draw_curves(axes: Axes, x: str, shown: Sequence[tuple[Method, DataFrame]]) -> None:
    for method, every_round in shown:
        curve = every_round.dropna(subset=x)
        look = line_look(method)
        if x == "payload_mb":
            curve = curve[curve.payload_mb > 0]
            if curve.empty:
                axes.axhline(method.scale[0] * every_round.metric.iloc[-1], **look | {"marker": None})
                continue
        metric, error = method.scale[0] * curve.metric, method.scale[0] * curve.standard_error.fillna(0)
        every = max(1, len(curve) // _MARKERS)
        axes.plot(curve[x], metric, markevery=(method.number % every, every), **look)
        axes.fill_between(curve[x], metric - error, metric + error, color=look["color"], alpha=0.18, lw=0)
    if x == "payload_mb":  # ticks at 1, 2, 5 of each power of ten where there are few of these, no exponents
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
        axes.xaxis.set_major_formatter("{x:,.6g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(_AXES[x])


def spread(methods: Sequence[Method]) -> Iterator[Drawn]:
    """The test metric of every client, a row of dots a method."""
    for metric, same in _by_metric(methods):
        shown = [(method, latest) for method in same if len(latest := method.latest_metric())]
        if not shown:
            continue
        figure, (axes,) = new_figure(10.5, 1.1 + 0.55 * len(shown))
        for row, (method, latest) in enumerate(shown):
            values = method.scale[0] * latest.test_metric.to_numpy()
            lift = np.random.default_rng(0).uniform(-0.26, 0.26, len(values))  # only so that dots do not hide others
            axes.plot(values, row + lift, "o", ms=4, color=colour(method.number), alpha=0.6, mew=0)
            axes.plot(values.mean(), row, "|", ms=26, mew=2.2, color=INK)
        list_rows(axes, [method.name for method, _ in shown])
        axes.set_xlabel(same[0].scale[1])
        axes.spines["left"].set_visible(False)
        seeds = ", of each seed" if any(len(method.folders) > 1 for method, _ in shown) else ""
        yield Drawn(
            f"clients-{metric}",
            "Every client",
            f"A dot is a client's last test {metric}{seeds}; the bar is the mean over these. Heights have no meaning.",
            figure,
            pandas.concat([latest.assign(method=method.name) for method, latest in shown]),
        )


def bytes_by_level(methods: Sequence[Method]) -> Iterator[Drawn]:
    """Bars of what each method sent."""
    shown = [method for method in methods if method.run.measured]
    if not shown:
        return

    def mb(sent: Values) -> list[float]:
        return [float(np.mean([sent(run) or 0 for run in method.group.runs])) / 1e6 for method in shown]

    payload, rows = np.array(mb(lambda run: run.traffic.payload_bytes)), range(len(shown))
    data = DataFrame({"method": [method.name for method in shown], "payload_mb": payload})
    figure, (left, right) = new_figure(10.5, 1.5 + 0.42 * len(shown), 2, gridspec_kw={"width_ratios": [3, 2]})
    left.barh(rows, payload, height=0.62, color=[colour(method.number) for method in shown])
    for row, value in zip(rows, payload, strict=True):
        left.annotate(f" {short(value)} MB", (value, row), va="center", fontsize=8.5, color=INK)
    left.margins(x=0.2)
    left.set_xlabel("payload, MB (sum over all directed edges)")
    start = 0 * payload
    for number, (level, (label, sent)) in enumerate(_ON_TOP.items()):
        data[f"{level}_mb"] = values = np.array(mb(sent))
        if values.any():
            right.barh(rows, values, left=start, height=0.62, color=colour(number), label=label)
            start = start + values
    right.set_xlabel("on top of the payload, MB")
    right.margins(x=0.05)
    list_rows(left, [method.name for method in shown])
    list_rows(right, [""] * len(shown))
    legend_below(figure, right)
    yield Drawn(
        "bytes",
        "Bytes by level",
        "Left: the vectors alone, which papers count. Right: what comes on top of them on the sockets, and what "
        "measuring itself sends. 1 MB = 10^6 bytes; means over the seeds.",
        figure,
        data,
    )


def memory_over_time(methods: Sequence[Method]) -> Iterator[Drawn]:
    """Draws that of all clients together, and of each client."""
    shown = [(method, frame) for method in methods if len(frame := _memory(method))]
    if not shown:
        return
    figure, (left, right) = new_figure(10.5, 3.6, 2)
    for method, frame in shown:
        look = line_look(method) | ({"marker": None} if len(frame) > 1 else {})
        left.plot(frame.wall_s, frame.clients_pss_mb, **look)
        right.plot(frame.wall_s, frame.client_median_uss_mb, **look)
        band = frame.client_min_uss_mb, frame.client_max_uss_mb
        right.fill_between(frame.wall_s, *band, color=look["color"], alpha=0.15, lw=0)
    left.set_ylabel("memory of all clients (PSS), MB")
    right.set_ylabel("a client's own memory (USS), MB")
    for axes in (left, right):
        axes.set(xlabel="wall time, s", ylim=(0, 1.08 * axes.dataLim.y1))
    legend_below(figure, left)
    yield Drawn(
        "memory",
        "Memory over time",
        "Left: proportional set size, where memory shared by several processes counts once, summed over clients. "
        "Right: what a client alone holds; the line is the median client, the band goes from the smallest to the "
        "largest. The first run of each method.",
        figure,
        pandas.concat([frame.assign(method=method.name) for method, frame in shown]),
    )


def _memory(method: Method) -> DataFrame:
    """wall_s, clients_pss_mb, client_{min,median,max}_uss_mb: each client counts with its latest sample."""
    samples = method.reader.resources
    samples = samples[samples.node.isin(method.clients)]
    if samples.empty:
        return samples
    wide = samples.pivot_table(index="wall_s", columns="node", values=["pss", "uss"], aggfunc="last").ffill().dropna()
    pss, uss = wide["pss"] / 1e6, wide["uss"] / 1e6
    of_uss = {f"client_{which}_uss_mb": uss.agg(which, axis=1) for which in ("min", "median", "max")}
    frame = DataFrame({"clients_pss_mb": pss.sum(axis=1), **of_uss}).reset_index()
    steps = max(1, len(frame) // 300)
    return pandas.concat([frame.iloc[::steps], frame.tail(1)]).drop_duplicates("wall_s")


def memory_by_process(method: Method) -> Iterator[Drawn]:
    """A line for every client of the first run, and what the other processes said last."""
    samples, nodes = method.reader.resources, method.reader.nodes
    of_clients = samples[samples.node.isin(method.clients)]
    if of_clients.empty:
        return
    figure, (axes,) = new_figure(10.5, 3.6)
    for _, own in of_clients.groupby("node"):
        axes.plot(own.wall_s, own.uss / 1e6, color=SOFT, lw=0.7, alpha=0.55, marker="." if len(own) == 1 else None)
    others = nodes[nodes.role != "client"].sort_values("node", ascending=False)
    for place, (node, name) in enumerate(zip(others.node, named(others), strict=True)):
        own = samples[samples.node == node]
        if len(own):
            axes.plot(own.wall_s, own.uss / 1e6, color=colour(place), marker="o", ms=5, lw=1.4, label=literal(name))
    axes.set(xlabel="wall time, s", xlim=(0, 1.03 * axes.dataLim.x1))
    axes.set(ylabel="own memory (USS), MB", ylim=(0, 1.08 * axes.dataLim.y1))
    legend_below(figure, axes)
    yield Drawn(
        f"processes-{method.number + 1}",
        "Memory by process",
        f"Each grey line is one of {len(method.clients)} clients: what it alone holds. The libraries that all "
        "share are the fork server's; launcher, collector and fork server are sampled at the end.",
        figure,
        samples[["node", "wall_s", "rss", "pss", "uss", "peak_rss"]],
    )
