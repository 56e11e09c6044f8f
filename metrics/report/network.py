"""Figures of one method's first run: who talks to whom, and how much, and who waits for whom."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.image import AxesImage
from pandas import DataFrame

from ...topology import Graph
from ...topology.picture import COLOURS, draw_graph, layout, legend_below, new_figure
from ..reader import client_name, frame_of, open_records, read_owners
from .drawn import Drawn, Method, list_rows

_PIXELS_UP_TO = 5_000  # clients
_MOST_WAITING = 50_000_000  # clients times rounds
_LONGEST_WAITED_FOR = 12
_THINNEST, _EVEN, _WIDEST = 0.4, 1.0, 3.2  # points


def graph(method: Method) -> Iterator[Drawn]:
    """Edges as wide as what went over them; with restriction maps a second graph, by their norms."""
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
    talked = edges.payload_mb > 0
    clients = len(method.clients)
    if len(pairs) == clients * (clients - 1) / 2 and talked.any() and not talked.all():  # whoever comes to talk can
        first = _ask(method, "SELECT src, dst, payload_bytes FROM traffic WHERE round = 1")
        sent = _between(first, "src", "dst").payload_bytes.sum() / 1e6
        edges = edges[talked].join(sent.rename("first_mb"), on=["i", "j"])
    return edges.join(_between(_norms(method), "node", "neighbour").map_norm.max(), on=["i", "j"])


def _between(rows: DataFrame, *ends: str) -> Any:
    """Groups both directions of an edge, by i < j."""
    both = rows[list(ends)]
    return rows.assign(i=both.min(axis=1), j=both.max(axis=1)).groupby(["i", "j"])


def _norms(method: Method) -> DataFrame:
    """node, neighbour, map_norm after the last round that was recorded."""
    last = "round = (SELECT max(round) FROM edge)"
    return _ask(method, f"SELECT node, neighbour, map_norm FROM edge WHERE {last} ORDER BY node, neighbour")


def _ask(method: Method, query: str) -> DataFrame:
    with open_records(method.folders[0], check=("edge",)) as records:
        return frame_of(records, query)


def map_norms(method: Method) -> Iterator[Drawn]:
    """The heat map of the main paper's Figure 4."""
    norms = _norms(method)
    clients = sorted({*norms.node, *norms.neighbour})
    if norms.empty or norms.map_norm.nunique() < 2 or len(clients) > _PIXELS_UP_TO:
        return
    pixels = norms.pivot_table("map_norm", "node", "neighbour", "last").reindex(index=clients, columns=clients)
    figure, (axes,) = new_figure(6.4, 5.4)
    image = axes.imshow(pixels.to_numpy(), cmap="viridis", interpolation="nearest")
    _colour_bar(image, axes, r"$\|P_{ij}\|_F$", shrink=0.8).ax.ticklabel_format(useOffset=False)
    every = 1 + (len(clients) - 1) // 20
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(range(0, len(clients), every), [str(client) for client in clients[::every]])
    axes.set(xlabel="neighbour j", ylabel="client i")
    yield Drawn(
        f"maps-{method.number + 1}",
        "Restriction maps",
        "Pixel (i, j) is the Frobenius norm of P_ij after the last round; pairs without an edge are empty.",
        figure,
        norms,
    )


def _colour_bar(image: AxesImage, axes: Axes, label: str, **options) -> Colorbar:
    axes.grid(visible=False)
    bar = axes.get_figure().colorbar(image, ax=axes, pad=0.02, label=label, **options)  # type: ignore[union-attr]
    bar.outline.set_visible(False)
    return bar


def waiting(method: Method) -> Iterator[Drawn]:
    """Draws, where a scenario tells time, each client's waiting round by round, and whom it waited for."""
    rounds = method.reader.rounds
    rounds = rounds[rounds.node.isin(method.clients) & (rounds["round"] > 0)]
    if rounds.idle_s.isna().all() or rounds["round"].nunique() * len(method.clients) > _MOST_WAITING:
        return
    clock = "virtual" if rounds.virtual_s.notna().any() else "wall"
    pixels = rounds.pivot(index="node", columns="round", values="idle_s").reindex(method.clients)
    figure, (left, right) = new_figure(10.5, 4.6, 2, gridspec_kw={"width_ratios": [3, 2]})
    look: dict[str, Any] = {"aspect": "auto", "cmap": "cividis", "interpolation": "nearest"}
    look["extent"] = pixels.columns[0] - 0.5, pixels.columns[-1] + 0.5, len(pixels) - 0.5, -0.5
    _colour_bar(left.imshow(pixels.to_numpy(), **look), left, f"waited, {clock} s")
    left.set(xlabel="round", ylabel="client")

    total, owners = method.reader.waited_total, read_owners(method.folders[0])
    total = total[total.waited_for >= 0]
    caused = total.groupby("waited_for").idle_s.sum().sort_values(ascending=False).head(_LONGEST_WAITED_FOR)
    right.barh(range(len(caused)), caused, height=0.66, color=COLOURS[0])
    list_rows(right, [client_name(node, owners) for node in caused.index])
    right.set_xlabel(f"others waited for it, {clock} s")
    yield Drawn(
        f"waiting-{method.number + 1}",
        "Who waited for whom",
        "Left: how long each client waited in each round (empty: it took no part), "
        f"{np.nansum(pixels.to_numpy()):,.3g} {clock} seconds in all. Right: the clients that others waited for "
        "longest; a round's waiting is put down to the neighbour that came last.",
        figure,
        total,
    )
