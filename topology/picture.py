"""Graphs as a picture: clients as dots, larger the more neighbours they have; arcs with a head in their direction."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .graph import Digraph, Graph, GraphSequence, TopologyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg", ".pdf")
# Okabe and Ito's colours, told apart with every common colour blindness; a marker is added when they run out.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
INK = "#2B2B2B"
NUMBERED_UP_TO = 60  # clients; more numbers than that cannot be read
PERIODS_SHOWN = 6
STRESS_UP_TO = 150  # clients; Kamada-Kawai looks best and costs n^3


def draw_picture(
    graph: Graph | Digraph | GraphSequence,
    path: Path,
    *,
    title: str | None = None,
    groups: Sequence[Hashable] | None = None,
) -> None:
    """Writes ``path`` as .png, .svg or .pdf, by its ending; ``groups`` holds one label a client (a colour each).

    Of a graph that changes, the first six stand side by side. Raises TopologyError for another ending or where
    ``groups`` does not fit.
    """
    graphs = graph if isinstance(graph, GraphSequence) else GraphSequence((graph,))
    clients = graphs.union.clients
    if path.suffix.lower() not in FORMATS:
        raise TopologyError(f"{path}: a picture's name ends in {', '.join(FORMATS)}")
    if groups is not None and len(groups) != clients:
        raise TopologyError(f"{len(groups)} group labels for {clients} clients: one each is needed")

    from matplotlib.figure import Figure

    shown = graphs.graphs[:PERIODS_SHOWN]
    columns = min(3, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure = Figure(figsize=(7 * columns, 7 * rows), layout="constrained", facecolor="white")
    if title and graphs.changes:
        figure.suptitle(title, fontsize=18, color=INK)
    positions = layout(graphs.union)
    for place, each in enumerate(shown):
        axes = figure.add_subplot(rows, columns, 1 + place)
        heading = _rounds_of(graphs, place) if graphs.changes else title
        if heading:
            axes.set_title(heading, fontsize=13, color=INK, pad=12)
        _draw_graph(axes, each, positions, groups)
    figure.savefig(path, dpi=160)


def _rounds_of(graphs: GraphSequence, period: int) -> str:
    first, last = period * graphs.rounds_each + 1, (period + 1) * graphs.rounds_each
    return f"round {first}" if first == last else f"rounds {first} to {last}"


def _draw_graph(axes: Axes, graph: Graph | Digraph, positions: np.ndarray, groups: Sequence[Hashable] | None) -> None:
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.margins(0.07)
    sizes = _sizes(graph.undirected)
    _draw_edges(axes, graph, positions)
    _draw_clients(axes, positions, sizes, groups)
    if graph.clients <= NUMBERED_UP_TO:
        _draw_numbers(axes, positions, sizes, groups)


@lru_cache(maxsize=8)  # methods that are compared stand on one graph
def layout(graph: Graph) -> np.ndarray:
    """Positions (n, 2), the same for the same graph; clients on a circle go clockwise from the top. Read-only."""
    positions = _layout(graph)
    positions.flags.writeable = False
    return positions


def _layout(graph: Graph) -> np.ndarray:
    if graph.clients > 3 and len(graph.edges) == graph.clients - 1 == graph.degree(0):  # a star
        return np.vstack([[0.0, 0.0], _circle(graph.clients - 1)])
    if _follows_circle(graph):
        return _circle(graph.clients)

    import networkx

    drawn = networkx.Graph()
    drawn.add_nodes_from(range(graph.clients))
    drawn.add_edges_from(graph.edges)
    if graph.clients <= STRESS_UP_TO and graph.is_connected:
        places = networkx.kamada_kawai_layout(drawn)
    else:
        # An iteration costs n^2: larger graphs get fewer, down to some seconds for 3,000 clients.
        iterations = min(50, max(5, 30_000 // graph.clients))
        places = networkx.spring_layout(drawn, seed=0, iterations=iterations, method="force")
    return np.array([places[client] for client in range(graph.clients)])


def _circle(clients: int) -> np.ndarray:
    angles = np.pi / 2 - 2 * np.pi * np.arange(clients) / clients
    return np.column_stack([np.cos(angles), np.sin(angles)])


def _follows_circle(graph: Graph) -> bool:
    """Whether most edges join clients that are near on the circle of numbers: rings, small worlds, complete graphs."""
    reach = math.ceil(len(graph.edges) / graph.clients)  # half the mean degree
    near = sum(min(j - i, graph.clients - (j - i)) <= reach for i, j in graph.edges)
    return near >= 0.6 * len(graph.edges)


def _curves(graph: Graph | Digraph, positions: np.ndarray) -> np.ndarray:
    """Each edge or arc as points (edges, points, 2): straight, or on a circle bent off the rim that would hide it."""
    ends = np.array(graph.arcs if isinstance(graph, Digraph) else graph.edges, dtype=int).reshape(-1, 2)
    start, end = positions[ends[:, 0], None], positions[ends[:, 1], None]
    if not np.allclose(np.linalg.norm(positions, axis=1), 1):
        return np.concatenate([start, end], axis=1)
    middle = (start + end) / 2
    hops = np.abs(ends[:, 1] - ends[:, 0])
    along_rim = np.minimum(hops, graph.clients - hops) == 1
    bend = np.where(along_rim, 0, 0.35 * np.linalg.norm(middle[:, 0], axis=1) ** 4)
    control = middle * (1 - bend)[:, None, None]
    t = np.linspace(0, 1, 16)[None, :, None]
    return (1 - t) ** 2 * start + 2 * t * (1 - t) * control + t**2 * end


def _sizes(graph: Graph) -> np.ndarray:
    """Areas in square points."""
    degrees = np.array([graph.degree(client) for client in range(graph.clients)])
    largest = min(420.0, 22000 / graph.clients)
    return largest * (0.45 + 0.9 * degrees / max(graph.max_degree, 1))


def _draw_edges(axes: Axes, graph: Graph | Digraph, positions: np.ndarray) -> None:
    from matplotlib.collections import LineCollection

    curves = _curves(graph, positions)
    crowding = len(curves) / 400
    lines = LineCollection(
        list(curves),
        colors="#5B6770",
        linewidths=1.1 / (1 + crowding) ** 0.4,
        alpha=max(0.04, 0.55 / (1 + crowding) ** 0.6),
        zorder=1,
        rasterized=len(curves) > 20_000,  # vector files of so many lines open slowly
    )
    axes.add_collection(lines)
    if graph.directed:
        _draw_heads(axes, curves, size=0.05 / (1 + crowding) ** 0.4)


def _draw_heads(axes: Axes, curves: np.ndarray, size: float) -> None:
    """A triangle on each curve, beyond its middle, so that two that go opposite ways are told apart."""
    from matplotlib.collections import PolyCollection

    if curves.shape[1] == 2:
        before, tip = curves[:, 0], 0.37 * curves[:, 0] + 0.63 * curves[:, 1]
    else:
        before, tip = curves[:, 8], curves[:, 10]
    along = tip - before
    along *= size / np.linalg.norm(along, axis=1, keepdims=True)
    across = 0.4 * along[:, ::-1] * (-1, 1)
    triangles = np.stack([tip, tip - along + across, tip - along - across], axis=1)
    axes.add_collection(PolyCollection(list(triangles), facecolors="#5B6770", linewidths=0, zorder=1.5))


def _draw_clients(axes: Axes, positions: np.ndarray, sizes: np.ndarray, groups: Sequence[Hashable] | None) -> None:
    from matplotlib.lines import Line2D

    outline = 1.2 if len(positions) <= 300 else 0.4
    x, y = positions.T
    if groups is None:
        axes.scatter(x, y, s=sizes, c=COLOURS[0], edgecolors="white", linewidths=outline, zorder=2)
        return
    keys = []
    for index, label in enumerate(dict.fromkeys(groups)):
        of = [client for client, group in enumerate(groups) if group == label]
        colour, marker = _look(index)
        axes.scatter(
            x[of], y[of], s=sizes[of], c=colour, marker=marker, edgecolors="white", linewidths=outline, zorder=2
        )
        keys.append(Line2D([], [], color=colour, marker=marker, markersize=8, linestyle="none", label=str(label)))
    axes.legend(
        handles=keys,
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        ncols=min(len(keys), 6),
        frameon=False,
        labelcolor=INK,
        handletextpad=0.2,
    )


def _draw_numbers(axes: Axes, positions: np.ndarray, sizes: np.ndarray, groups: Sequence[Hashable] | None) -> None:
    labels = list(dict.fromkeys(groups or ()))
    for client, (x, y) in enumerate(positions):
        colour = COLOURS[0] if groups is None else _look(labels.index(groups[client]))[0]
        axes.text(
            x,
            y,
            str(client),
            ha="center",
            va="center_baseline",
            fontsize=min(9.0, 0.5 * math.sqrt(sizes[client])),
            color=_readable_on(colour),
            zorder=3,
        )


def _look(group: int) -> tuple[str, str]:
    """Colour and marker of a group."""
    return COLOURS[group % len(COLOURS)], MARKERS[group // len(COLOURS) % len(MARKERS)]


def _readable_on(colour: str) -> str:
    red, green, blue = bytes.fromhex(colour[1:])
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else INK
