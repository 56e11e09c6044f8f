"""How all our pictures look, and graphs as pictures: clients as dots, larger the more neighbours they have."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import UserError
from .graph import Graph, GraphSequence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FORMATS = (".svg", ".png", ".pdf")
# Okabe and Ito's colours, told apart with every common colour blindness; a marker is added when they run out.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
INK, SOFT, GRID, PAPER = "#2b2b2b", "#8a8d93", "#d9dadd", "#fdfdfe"
LOOK: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.labelsize": 9.5,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "mathtext.fontset": "dejavusans",
    "pdf.fonttype": 42,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "sheafgossip",
    **{f"{axis}tick.{key}": value for axis in "xy" for key, value in (("color", INK), ("labelsize", 8.5))},
    **{f"{axis}tick.major.size": 3 for axis in "xy"},
}
"""Parameters of matplotlib; a picture is made and written while they hold."""
RASTER_FROM = 20_000  # lines or bars; vector files of so many open slowly
_EDGE = "#5b6770"


def draw_picture(graphs: GraphSequence, path: Path, title: str) -> None:
    """Writes the first six graphs side by side. Raises UserError for another format, or where it cannot write."""
    check_format(path)
    import matplotlib

    shown = graphs.graphs[:6]
    columns = min(3, len(shown))
    with matplotlib.rc_context(LOOK):
        figure, panels = new_figure(7.0 * columns, 7.0 * math.ceil(len(shown) / columns), columns, len(shown))
        if graphs.changes:
            figure.suptitle(title, fontsize=18, color=INK)
        positions = layout(graphs.union)
        for period, (axes, graph) in enumerate(zip(panels, shown, strict=True)):
            first, last = period * graphs.rounds_each + 1, (period + 1) * graphs.rounds_each
            rounds = f"round {first}" if first == last else f"rounds {first} to {last}"
            axes.set_title(rounds if graphs.changes else literal(title), fontsize=13, pad=12)
            draw_graph(axes, graph, positions)
        save_picture(figure, path)


def check_format(path: Path) -> None:
    if path.suffix.lower() not in _FORMATS:
        raise UserError(f"--picture {path}: a picture's name ends in {', '.join(_FORMATS)}")


def save_picture(figure: Figure, path: Path) -> None:
    try:
        figure.savefig(path, dpi=160, facecolor="white")
    except OSError as error:
        raise UserError(f"--picture {path}: cannot be written: {error.strerror or error}") from error


def new_figure(
    width: float, height: float, columns: int = 1, panels: int | None = None, **options: Any
) -> tuple[Figure, list[Axes]]:
    """Sizes are inches; ``panels``, by default one a column, go row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    panels = panels or columns
    grid = list(figure.subplots(math.ceil(panels / columns), columns, squeeze=False, **options).flat)
    for axes in grid[panels:]:
        axes.remove()
    return figure, grid[:panels]


def legend_below(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        columns = max(1, min(len(labels), int(figure.get_figwidth() * 11 / (max(map(len, labels)) + 8))))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def literal(text: str) -> str:
    """Escapes dollars: matplotlib takes what stands between two for a formula, and fails where it is none."""
    return text.replace("$", r"\$")


def draw_graph(
    axes: Axes,
    graph: Graph,
    positions: np.ndarray,
    groups: Sequence[Hashable] | None = None,
    widths: np.ndarray | None = None,
) -> None:
    """Arcs have a head in their direction. ``groups``: a label a client, a colour each; ``widths``: points, by edge."""
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.margins(0.07)
    _draw_edges(axes, graph, positions, widths)
    degrees = np.array([graph.undirected.degree(client) for client in range(graph.clients)])
    width = axes.bbox.width / axes.figure.dpi
    sizes = width**2 / 36 * min(420.0, 22000 / graph.clients) * (0.45 + 0.9 * degrees / max(degrees.max(), 1))  # areas
    labels = list(groups or [""] * graph.clients)
    for number, label in enumerate(dict.fromkeys(labels)):
        own = [client for client, group in enumerate(labels) if group == label]
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number // len(COLOURS) % len(MARKERS)]
        x, y = positions[own].T
        look: dict[str, Any] = {"edgecolors": PAPER, "lw": 1.2 if graph.clients <= 300 else 0.4, "zorder": 2}
        axes.scatter(x, y, s=sizes[own], c=colour, marker=marker, label=literal(str(label)), **look)
        if graph.clients <= 60:  # more numbers cannot be read
            red, green, blue = bytes.fromhex(colour[1:])
            ink = PAPER if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else INK
            look = {"ha": "center", "va": "center_baseline", "color": ink, "zorder": 3}
            for client, x, y, size in zip(own, *positions[own].T, sizes[own], strict=True):
                axes.text(x, y, f"{client}", fontsize=min(9.0, 0.5 * math.sqrt(size)), **look)


@lru_cache(maxsize=8)  # methods that are compared stand on one graph
def layout(graph: Graph) -> np.ndarray:
    """Positions (n, 2), the same for the same graph; clients on a circle go clockwise from the top."""
    if graph.clients > 3 and len(graph.edges) == graph.clients - 1 == graph.degree(0):  # a star
        return np.vstack([[0.0, 0.0], _circle(graph.clients - 1)])
    # Rings, small worlds, complete graphs: most edges join clients that are near on the circle of numbers.
    reach = math.ceil(len(graph.edges) / graph.clients)  # half the mean degree
    near = sum(min(j - i, graph.clients - (j - i)) <= reach for i, j in graph.edges)
    if near >= 0.6 * len(graph.edges):
        return _circle(graph.clients)
    import networkx

    drawn = networkx.Graph()
    drawn.add_nodes_from(range(graph.clients))
    drawn.add_edges_from(graph.edges)
    if graph.clients <= 150 and graph.is_connected:  # looks best and costs n^3
        places = networkx.kamada_kawai_layout(drawn)
    else:
        # An iteration costs n^2: larger graphs get fewer, down to some seconds for 3,000 clients.
        iterations = min(50, max(5, 30_000 // graph.clients))
        places = networkx.spring_layout(drawn, seed=0, iterations=iterations, method="force")
    return np.array([places[client] for client in range(graph.clients)])


def _circle(clients: int) -> np.ndarray:
    angles = np.pi / 2 - 2 * np.pi * np.arange(clients) / clients
    return np.column_stack([np.cos(angles), np.sin(angles)])


def _draw_edges(axes: Axes, graph: Graph, positions: np.ndarray, widths: np.ndarray | None) -> None:
    from matplotlib.collections import LineCollection, PolyCollection

    # Straight, or on a circle bent off the rim that would hide them
    ends = np.array(graph.edges, dtype=int).reshape(-1, 2)
    start, end = positions[ends[:, 0], None], positions[ends[:, 1], None]
    middle = (start + end) / 2
    bend = np.zeros(len(ends))
    on_circle = np.allclose(np.linalg.norm(positions, axis=1), 1)
    if on_circle:
        hops = np.abs(ends[:, 1] - ends[:, 0])
        along_rim = np.minimum(hops, graph.clients - hops) == 1
        bend = np.where(along_rim, 0, 0.35 * np.linalg.norm(middle[:, 0], axis=1) ** 4)
    control = middle * (1 - bend)[:, None, None]
    t = np.linspace(0, 1, 16 if on_circle or graph.directed else 2)[None, :, None]
    curves = (1 - t) ** 2 * start + 2 * t * (1 - t) * control + t**2 * end  # (edges, 2 or 16, 2)
    crowding = 1 + len(curves) / 400
    alpha = max(0.04, 0.55 / crowding**0.6) if widths is None else 0.75
    look: dict[str, Any] = {"colors": _EDGE, "alpha": alpha, "zorder": 1, "rasterized": len(curves) > RASTER_FROM}
    widths = 1.1 / crowding**0.4 if widths is None else widths
    axes.add_collection(LineCollection(list(curves), linewidths=widths, **look))
    if not graph.directed:
        return
    # A triangle on each curve, beyond its middle, so that two that go opposite ways are told apart.
    tip = curves[:, 10]
    along = tip - curves[:, 8]
    along *= 0.05 / crowding**0.4 / np.linalg.norm(along, axis=1, keepdims=True)
    across = 0.4 * along[:, ::-1] * (-1, 1)
    triangles = np.stack([tip, tip - along + across, tip - along - across], axis=1)
    axes.add_collection(PolyCollection(list(triangles), facecolors=_EDGE, linewidths=0, zorder=1.5))
