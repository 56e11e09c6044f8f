"""What learning costs: bytes by level, and memory over time, of all together and of each process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...topology.picture import INK, SOFT, legend_below, literal, new_figure
from ..figures import OPENING, Values, overhead
from ..text import short
from .drawn import Drawn, colour, line_look, list_rows
from .methods import Method, named

if TYPE_CHECKING:
    from pandas import DataFrame

_LEVELS: dict[str, tuple[str, Values]] = {
    "payload": ("payload: the vectors alone", lambda run: run.traffic.payload_bytes),
    "message": ("and message headers", lambda run: run.traffic.message_bytes - run.traffic.payload_bytes),
    "wire": ("and framing", lambda run: run.traffic.wire_bytes - run.traffic.message_bytes),
    "opening": ("and opening connections", OPENING),
    "confirmation": ("and confirmations of messages", overhead("confirmation")),
    "evaluation": ("and models for evaluation only", overhead("evaluation")),
    "records": ("records to the collector", overhead("records")),
}


def bytes_by_level(methods: Sequence[Method]) -> Iterator[Drawn]:
    """Bars of what each method sent."""
    import pandas

    shown = [method for method in methods if method.run.measured]
    if not shown:
        return
    data = pandas.DataFrame({"method": [method.name for method in shown]})
    for level, (_, sent) in _LEVELS.items():
        runs = [[sent(run) or 0 for run in method.group.runs] for method in shown]
        data[f"{level}_mb"] = [sum(values) / len(values) / 1e6 for values in runs]
    figure, (left, right) = new_figure(10.5, 1.5 + 0.42 * len(shown), 2, gridspec_kw={"width_ratios": [3, 2]})
    rows = range(len(shown))
    left.barh(rows, data.payload_mb, height=0.62, color=[colour(method.number) for method in shown])
    for row, value in zip(rows, data.payload_mb, strict=True):
        left.annotate(f" {short(value)} MB", (value, row), va="center", fontsize=8.5, color=INK)
    left.margins(x=0.2)
    left.set_xlabel("payload, MB (sum over all directed edges)")
    start = data.payload_mb * 0
    for number, (level, (label, _)) in enumerate(list(_LEVELS.items())[1:]):
        column = f"{level}_mb"
        if not data[column].any():
            continue
        right.barh(rows, data[column], left=start, height=0.62, color=colour(number), label=label)
        start = start + data[column]
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
    """Draws that of all clients together, and of the largest process."""
    import pandas

    shown = [(method, frame) for method in methods if len(frame := _memory(method))]
    if not shown:
        return
    figure, (left, right) = new_figure(10.5, 3.6, 2)
    for method, frame in shown:
        look = line_look(method.number) | {"label": literal(method.name)}
        look |= {"marker": None} if len(frame) > 1 else {}
        left.plot(frame.wall_s, frame.clients_pss_mb, **look)
        right.plot(frame.wall_s, frame.client_median_uss_mb, **look)
        right.fill_between(
            frame.wall_s, frame.client_min_uss_mb, frame.client_max_uss_mb, color=look["color"], alpha=0.15, lw=0
        )
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
    import pandas

    samples = method.reader.resources
    samples = samples[samples.node.isin(method.clients)]
    if samples.empty:
        return samples
    wide = samples.pivot_table(index="wall_s", columns="node", values=["pss", "uss"], aggfunc="last").ffill().dropna()
    pss, uss = wide["pss"] / 1e6, wide["uss"] / 1e6
    of_uss = {f"client_{which}_uss_mb": uss.agg(which, axis=1) for which in ("min", "median", "max")}
    frame = pandas.DataFrame({"clients_pss_mb": pss.sum(axis=1), **of_uss}).reset_index()
    steps = max(1, len(frame) // 300)
    return pandas.concat([frame.iloc[::steps], frame.tail(1)]).drop_duplicates("wall_s")


def memory_by_process(method: Method) -> Iterator[Drawn]:
    """A line for every client, and what the other processes said last."""
    samples = method.reader.resources
    nodes = method.reader.nodes.set_index("node")
    if not samples.node.isin(method.clients).any():
        return
    figure, (axes,) = new_figure(10.5, 3.6)
    for _, own in samples[samples.node.isin(method.clients)].groupby("node"):
        axes.plot(own.wall_s, own.uss / 1e6, color=SOFT, lw=0.7, alpha=0.55, marker="." if len(own) == 1 else None)
    others = nodes[nodes.role != "client"].sort_index(ascending=False)
    for place, (node, name) in enumerate(zip(others.index, named(others), strict=True)):
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
