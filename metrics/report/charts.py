"""Figures of methods side by side: learning and cost; and of one method's first run: its graph, waiting, and memory."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter
from pandas import DataFrame, concat

from ...topology import Graph
from ...topology.picture import COLOURS, INK, SOFT, draw_graph, layout, legend_below, literal, new_figure
from ..events import GONE, THERE
from ..figures import OPENING, Values, overhead
from ..reader import RunReader, client_name, frame_of, open_records, read_owners
from ..text import short
from .drawn import Drawn, Method, colour, line_look, list_rows

_PIXELS_UP_TO = 5_000  # clients
_MOST_WAITING = 50_000_000  # clients times rounds
_THINNEST, _EVEN, _WIDEST = 0.4, 1.0, 3.2  # points
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


def own_curves(methods: Sequence[Method]) -> Iterator[Drawn]:
    for name in dict.fromkeys(name for method in methods for run in method.runs for name in run.metrics):
        yield from curves(methods, name)


def curves(methods: Sequence[Method], own: str = "") -> Iterator[Drawn]:
    """Draws methods of one test metric, as ``spread`` does; or a metric of the user's ``own``."""
    shown = [(method, curve) for method in methods if len(curve := _curve(method, own))]
    axes_of = [x for x in _AXES if any(curve[x].notna().any() for _, curve in shown)]
    if not axes_of:
        return
    silent = [not curve.payload_mb.any() for _, curve in shown]
    if all(silent):
        axes_of.remove("payload_mb")
    columns = 3 if len(axes_of) == 3 else 2
    figure, panels = new_figure(10.5, 3.9 if len(axes_of) < 4 else 7.4, columns, len(axes_of), sharey=True)
    factor, title = (1.0, literal(own)) if own else methods[0].scale
    for axes, x in zip(panels, axes_of, strict=True):
        _draw_curves(axes, x, shown, factor)
    for axes in panels[::columns]:
        axes.set_ylabel(f"{title}, mean over clients")
    legend_below(figure, panels[0])
    seeds = any(len(method.runs) > 1 for method, _ in shown)
    over = "runs with different seeds (over clients where there is one run)" if seeds else "clients"
    metric = own or f"test {methods[0].run.metric}"
    caption = f"Mean over clients of the {metric}, by rounds, bytes and time. Bands: standard error over {over}."
    if any(silent) and not all(silent):
        caption += " A method that sends nothing is a level line against bytes."
    name = re.sub(r"[^\w.-]+", "-", own) if own else methods[0].run.metric
    yield Drawn(f"learning-{name}", f"{metric[0].upper()}{metric[1:]}", caption, figure, _together(shown))


def _together(shown: Sequence[tuple[Method, DataFrame]]) -> DataFrame:
    return concat([frame.assign(method=method.name) for method, frame in shown])


def _curve(method: Method, own: str) -> DataFrame:
    """Returns means over seeds by round; standard_error is over seeds, or over clients where there is one seed."""
    frames = []
    for run in method.runs:
        reader = RunReader(run.folder)
        rounds, sent = (
            reader.rounds.rename(columns={"test_metric": "value"}),
            reader.round_cumulative.set_index("round"),
        )
        if own:
            values = reader.metrics
            values = values[values["name"] == own].drop(columns="name")
            rounds = rounds.drop(columns="value").merge(values, on=["node", "round"])
        evaluated = rounds[rounds.node.isin(method.clients)].dropna(subset="value").groupby("round")
        means = evaluated.agg(metric=("value", "mean"), error=("value", "sem"), virtual_s=("virtual_s", "max"))
        frames.append(means.assign(payload_mb=sent.payload_bytes / 1e6, wall_s=sent.wall_s))
    together = concat(frames).groupby("round")
    curve = together[["metric", "payload_mb", "wall_s", "virtual_s"]].mean()
    errors = together.metric.sem() if len(frames) > 1 else together.error.mean()
    return curve.assign(standard_error=errors).reset_index()


def _draw_curves(axes: Axes, x: str, shown: Sequence[tuple[Method, DataFrame]], factor: float) -> None:
    for method, every_round in shown:
        curve = every_round.dropna(subset=x)
        look = line_look(method)
        if x == "payload_mb":
            curve = curve[curve.payload_mb > 0]
            if curve.empty:
                axes.axhline(factor * every_round.metric.iloc[-1], **look | {"marker": None})
                continue
        metric, error = factor * curve.metric, factor * curve.standard_error.fillna(0)
        every = max(1, len(curve) // 8)
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
    shown = [(method, latest) for method in methods if len(latest := method.latest_metric())]
    if not shown:
        return
    figure, (axes,) = new_figure(10.5, 1.1 + 0.55 * len(shown))
    for row, (method, latest) in enumerate(shown):
        values = method.scale[0] * latest.test_metric.to_numpy()
        lift = np.random.default_rng(0).uniform(-0.26, 0.26, len(values))  # only so that dots do not hide others
        axes.plot(values, row + lift, "o", ms=4, color=colour(method.number), alpha=0.6, mew=0)
        axes.plot(values.mean(), row, "|", ms=26, mew=2.2, color=INK)
    list_rows(axes, [method.name for method, _ in shown])
    axes.set_xlabel(methods[0].scale[1])
    axes.spines["left"].set_visible(False)
    seeds = ", of each seed" if any(len(method.runs) > 1 for method, _ in shown) else ""
    metric = methods[0].run.metric
    caption = f"A dot is a client's last test {metric}{seeds}; the bar is the mean over these. Heights have no meaning."
    yield Drawn(f"clients-{metric}", "Every client", caption, figure, _together(shown))


def bytes_by_level(methods: Sequence[Method]) -> Iterator[Drawn]:
    shown = [method for method in methods if method.run.measured]
    if not shown:
        return

    def mb(sent: Values) -> list[float]:
        return [float(np.mean([sent(run) or 0 for run in method.runs])) / 1e6 for method in shown]

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
    caption = (
        "Left: the vectors alone, which papers count. Right: what comes on top of them on the sockets, and what "
        "measuring itself sends. 1 MB = 10^6 bytes; means over the seeds."
    )
    yield Drawn("bytes", "Bytes by level", caption, figure, data)


def memory_over_time(methods: Sequence[Method]) -> Iterator[Drawn]:
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
    caption = (
        "Left: proportional set size, where memory shared by several processes counts once, summed over clients. "
        "Right: what a client alone holds; the line is the median client, the band goes from the smallest to the "
        "largest. The first run of each method."
    )
    yield Drawn("memory", "Memory over time", caption, figure, _together(shown))


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
    return concat([frame.iloc[:: max(1, len(frame) // 300)], frame.tail(1)]).drop_duplicates("wall_s")


def memory_by_process(method: Method) -> Iterator[Drawn]:
    samples = method.reader.resources
    of_clients = samples[samples.node.isin(method.clients)]
    if of_clients.empty:
        return
    figure, (axes,) = new_figure(10.5, 3.6)
    for _, own in of_clients.groupby("node"):
        axes.plot(own.wall_s, own.uss / 1e6, color=SOFT, lw=0.7, alpha=0.55, marker="." if len(own) == 1 else None)
    for place, (node, name) in enumerate(method.others.items()):
        own = samples[samples.node == node]
        if len(own):
            axes.plot(own.wall_s, own.uss / 1e6, color=colour(place), marker="o", ms=5, lw=1.4, label=literal(name))
    axes.set(xlabel="wall time, s", xlim=(0, 1.03 * axes.dataLim.x1))
    axes.set(ylabel="own memory (USS), MB", ylim=(0, 1.08 * axes.dataLim.y1))
    legend_below(figure, axes)
    caption = (
        f"Each grey line is one of {len(method.clients)} clients: what it alone holds. The libraries that all "
        "share are the fork server's; launcher, collector and fork server are sampled at the end."
    )
    data = samples[["node", "wall_s", "rss", "pss", "uss", "peak_rss"]]
    yield Drawn(f"processes-{method.number + 1}", "Memory by process", caption, figure, data)


def graph(method: Method) -> Iterator[Drawn]:
    """Draws edges as wide as what went over them; with restriction maps a second graph, by their norms."""
    nodes = method.reader.nodes.node
    edges = _edges(method)
    edges = edges[edges.i.isin(nodes) & edges.j.isin(nodes) & (edges.i >= 0) & (edges.i < edges.j)]
    if edges.empty:
        return
    widths = {"payload_mb": "payload, both directions, MB"}
    if "first_mb" in edges:
        widths = {"first_mb": "payload of the first round, both directions, MB"} | widths
    if edges.map_norm.nunique() > 1:
        widths["map_norm"] = r"$\|P_{ij}\|_F$ at the end, larger of both ends"
    drawn = Graph.of(int(nodes.max()) + 1, zip(edges.i.tolist(), edges.j.tolist(), strict=True))
    told = "".join(_ask(method, "SELECT value FROM meta WHERE key = 'groups'").value)
    names = told.split(",") if told else ["0"] * len(method.clients)
    groups = [f"group {name}" if len(set(names)) > 1 else "clients" for name in names]
    groups = [*groups, *["server"] * (drawn.clients - len(groups))][: drawn.clients]
    figure, panels = new_figure(5.2 * len(widths), 5.0, len(widths))
    for axes, (column, label) in zip(panels, widths.items(), strict=True):
        values = edges[column].to_numpy()  # in the order of the graph's edges
        low, top = np.nanmin(values), np.nanmax(values)
        scaled = np.nan_to_num(_THINNEST + (_WIDEST - _THINNEST) * (values - low) / (top - low or 1))
        draw_graph(axes, drawn, layout(drawn), groups, scaled if top > low else np.full(len(values), _EVEN))
        span = f"{low:.5g} to {top:.5g}" if top > low else f"{top:.3g} everywhere"
        axes.set_title(f"{label}: {span}", fontsize=9.5)
    legend_below(figure, panels[0])
    caption = f"{len(method.clients)} clients, {len(edges)} edges. Widths go from the least to the most that is named."
    yield Drawn(f"graph-{method.number + 1}", "The graph", caption, figure, edges)


def _edges(method: Method) -> DataFrame:
    """i < j, payload_mb of both directions, map_norm: the larger ||P_ij||_F of both ends after the last round; where
    clients have found other neighbours on the way also first_mb, the payload of the first round."""
    hello = method.reader.overhead
    pairs = np.unique(np.sort(hello[hello.kind == "hello"][["src", "dst"]].to_numpy(), axis=1), axis=0)
    edges = DataFrame(pairs, columns=["i", "j"], dtype=int)
    sent = _between(method.reader.edge_total, "src", "dst").payload_bytes.sum() / 1e6
    edges = edges.join(sent.rename("payload_mb"), on=["i", "j"]).fillna({"payload_mb": 0.0})
    talked, clients = edges.payload_mb > 0, len(method.clients)
    if len(pairs) == clients * (clients - 1) / 2 and talked.any() and not talked.all():  # whoever comes to talk can
        first = _ask(method, "SELECT src, dst, payload_bytes FROM traffic WHERE round = 1")
        sent = _between(first, "src", "dst").payload_bytes.sum() / 1e6
        edges = edges[talked].join(sent.rename("first_mb"), on=["i", "j"])
    return edges.join(_between(_norms(method), "node", "neighbour").map_norm.max(), on=["i", "j"])


def _between(rows: DataFrame, *ends: str) -> Any:
    both = rows[list(ends)]
    return rows.assign(i=both.min(axis=1), j=both.max(axis=1)).groupby(["i", "j"])


def _norms(method: Method) -> DataFrame:
    """node, neighbour, map_norm after the last round that was recorded."""
    last = "round = (SELECT max(round) FROM edge)"
    return _ask(method, f"SELECT node, neighbour, map_norm FROM edge WHERE {last} ORDER BY node, neighbour")


def _ask(method: Method, query: str) -> DataFrame:
    with open_records(method.run.folder, check=("edge",)) as records:
        return frame_of(records, query)


def map_norms(method: Method) -> Iterator[Drawn]:
    """Draws the heat map of the main paper's Figure 4."""
    norms = _norms(method)
    clients = sorted({*norms.node, *norms.neighbour})
    if norms.empty or norms.map_norm.nunique() < 2 or len(clients) > _PIXELS_UP_TO:
        return
    pixels = norms.pivot_table("map_norm", "node", "neighbour", "last").reindex(index=clients, columns=clients)
    figure, (axes,) = new_figure(6.4, 5.4)
    heat_map(axes, pixels, r"$\|P_{ij}\|_F$", shrink=0.8, cmap="viridis").ax.ticklabel_format(useOffset=False)
    every = 1 + (len(clients) - 1) // 20
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(range(0, len(clients), every), [str(client) for client in clients[::every]])
    axes.set(xlabel="neighbour j", ylabel="client i")
    caption = "Pixel (i, j) is the Frobenius norm of P_ij after the last round; pairs without an edge are empty."
    yield Drawn(f"maps-{method.number + 1}", "Restriction maps", caption, figure, norms)


def heat_map(axes: Axes, pixels: DataFrame, label: str, *, shrink: float = 1.0, **options: Any) -> Any:
    """Returns its colour bar."""
    image = axes.imshow(pixels.to_numpy(), interpolation="nearest", **options)
    axes.grid(visible=False)
    bar = image.get_figure().colorbar(image, ax=axes, pad=0.02, label=label, shrink=shrink)  # type: ignore[union-attr]
    bar.outline.set_visible(False)
    return bar


def presence(method: Method) -> Iterator[Drawn]:
    """Draws, where clients come and go, how many take part in each round and how many are there at each moment."""
    events, rounds = method.reader.events, method.reader.rounds
    moves = events[events.node.isin(method.clients) & events.kind.isin((*GONE, *THERE))]
    rounds = rounds[rounds.node.isin(method.clients) & (rounds["round"] > 0)]
    if moves.empty or rounds.empty:
        return
    clock = "virtual_s" if rounds.virtual_s.notna().any() else "wall_s"
    moves = moves.dropna(subset=clock).sort_values(clock, kind="stable")
    late = (moves.groupby("node").kind.first() == "join").sum()
    steps = [len(method.clients) - late, *np.where(moves.kind.isin(THERE), 1, -1)]
    by_time = DataFrame({"at": [0.0, *moves[clock]], "clients": np.cumsum(steps)})
    by_time.loc[len(by_time)] = [max(rounds[clock].max(), by_time["at"].max()), by_time.clients.iloc[-1]]
    by_round = rounds.groupby("round").size().rename("clients").rename_axis("at").reset_index()
    figure, panels = new_figure(10.5, 3.2, 2, sharey=True)
    titles = "round", _AXES[clock]
    for axes, frame, title in zip(panels, (by_round, by_time), titles, strict=True):
        axes.step(frame["at"], frame.clients, where="post", color=COLOURS[0], lw=1.3)
        axes.set(xlabel=title, ylim=(0, 1.05 * len(method.clients)))
    panels[0].set_ylabel("clients")
    caption = (
        f"Left: how many of {len(method.clients)} clients took part in each round. Right: how many were there. "
        f"On average {by_round.clients.mean():.1f} took part in a round; {by_round.clients.min()} did at least."
    )
    data = concat([by_round.assign(by="round"), by_time.assign(by=clock)])
    yield Drawn(f"presence-{method.number + 1}", "Who was there", caption, figure, data)


def planned(method: Method) -> Iterator[Drawn]:
    """Draws when the first and the last client complete each round, as planned and as it was."""
    if method.twin is None or not method.twin.rounds:
        return
    rows = [(each.round, each.ends.planned, each.ends.measured) for each in method.twin.rounds]
    ends = DataFrame(rows, columns=["round", "planned_s", "measured_s"]).groupby("round").agg(["min", "max"])
    figure, (axes,) = new_figure(10.5, 3.6)
    for number, name in enumerate(("planned", "measured")):
        first, last = ends[f"{name}_s", "min"], ends[f"{name}_s", "max"]
        axes.plot(ends.index, last, color=COLOURS[number], ls=("--", "-")[number], label=f"{name}, last client")
        axes.fill_between(ends.index, first, last, color=COLOURS[number], alpha=0.18, lw=0)
    axes.set(xlabel="round", ylabel="completed, s")
    legend_below(figure, axes)
    data = ends.set_axis([f"{name}_{which}" for name, which in ends.columns], axis=1).reset_index()
    caption = "When clients completed each round. Bands go from the first client to the last."
    yield Drawn(f"planned-{method.number + 1}", "Round by round, planned and measured", caption, figure, data)


def waiting(method: Method) -> Iterator[Drawn]:
    """Draws, where a scenario tells time, each client's waiting round by round, and whom it waited for."""
    rounds = method.reader.rounds
    rounds = rounds[rounds.node.isin(method.clients) & (rounds["round"] > 0)]
    if rounds.idle_s.isna().all() or rounds["round"].nunique() * len(method.clients) > _MOST_WAITING:
        return
    clock = "virtual" if rounds.virtual_s.notna().any() else "wall"
    pixels = rounds.pivot(index="node", columns="round", values="idle_s").reindex(method.clients)
    figure, (left, right) = new_figure(10.5, 4.6, 2, gridspec_kw={"width_ratios": [3, 2]})
    extent = pixels.columns[0] - 0.5, pixels.columns[-1] + 0.5, len(pixels) - 0.5, -0.5
    heat_map(left, pixels, f"waited, {clock} s", aspect="auto", cmap="cividis", extent=extent)
    left.set(xlabel="round", ylabel="client")

    total, owners = method.reader.waited_total, read_owners(method.run.folder)
    total = total[total.waited_for >= 0]
    caused = total.groupby("waited_for").idle_s.sum().sort_values(ascending=False).head(12)
    right.barh(range(len(caused)), caused, height=0.66, color=COLOURS[0])
    list_rows(right, [client_name(node, owners) for node in caused.index])
    right.set_xlabel(f"others waited for it, {clock} s")
    caption = (
        "Left: how long each client waited in each round (empty: it took no part), "
        f"{np.nansum(pixels.to_numpy()):,.3g} {clock} seconds in all. Right: the clients that others waited for "
        "longest; a round's waiting is put down to the neighbour that came last."
    )
    yield Drawn(f"waiting-{method.number + 1}", "Who waited for whom", caption, figure, total)
