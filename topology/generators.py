"""Drawing the graphs that a user asked for: one function a kind, redrawn until connected."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from .graph import Graph, GraphSequence, Pairs, TopologyError
from .section import Count, Fraction, Index, Needs, Section

# networkx and numpy are imported where they are used: every client process imports this package.
if TYPE_CHECKING:
    import numpy as np

_MOST_LINKS = 10_000_000  # of all graphs of a run together: no machine could run more


_Undirected = Literal[
    "erdos-renyi", "watts-strogatz", "barabasi-albert", "ring", "torus", "star", "complete", "random-regular"
]


@dataclass(frozen=True)
class TopologySpec(Section):
    """Who is whose neighbour."""

    kind: Literal[_Undirected, "exponential", "one-peer-exponential", "file"] = "erdos-renyi"
    """The family of graphs, or "file" to read one. exponential: client i sends to i + 1, i + 2, i + 4, ... (modulo the
    number of clients); one-peer-exponential: to one of these a round, in turn. Both are directed."""
    p: Annotated[Fraction, Needs("kind", "erdos-renyi", "watts-strogatz")] = 0.2
    """erdos-renyi: probability of an edge or arc; watts-strogatz: probability of rewiring one."""
    k: Annotated[Count, Needs("kind", "watts-strogatz", "random-regular")] = 4
    """watts-strogatz: neighbours of a client before rewiring (even); random-regular: neighbours of a client."""
    m: Annotated[Count, Needs("kind", "barabasi-albert"), "barabasi-albert: edges that a new client brings."] = 2
    rows: Annotated[Index, Needs("kind", "torus"), "torus: rows of the grid; 0 takes the most nearly square grid."] = 0
    path: Annotated[Path | None, Needs("kind", "file")] = None
    """file: an edge list (two client numbers a line) or GraphML; relative paths start at the configuration's folder."""
    connected: bool = True
    """false, with file and an undirected graph: it may fall into several parts, which know nothing of each other."""
    tries: Annotated[Count, Needs("kind", "erdos-renyi", "watts-strogatz", "barabasi-albert", "random-regular")] = 100
    """How many graphs may be drawn until one is connected, strongly so if it is directed."""
    directed: bool = False
    """erdos-renyi: each arc i -> j is drawn by itself; ring: i sends to i + 1; file: a line is an arc from the first
    client to the second, and in GraphML an edge that is not directed is an arc each way. Not every algorithm works on
    directed graphs, or on changing ones: docs/topologies.md."""
    redraw_every: Index = 0
    """Kinds that are drawn at random: after so many rounds another graph takes over; 0 keeps the first for the run."""
    weights: Literal["metropolis-hastings", "max-degree"] = "metropolis-hastings"
    """Mixing weights W of the algorithms that average: 1/(1 + max(deg_i, deg_j)), or 1/(1 + the largest degree). On
    directed graphs W_ij is 1/(1 + the number of clients that j sends to)."""


def draw(spec: TopologySpec, clients: int, seed: int, period: int = 0) -> Graph:
    """The graph of a period is connected, strongly if directed; of one-peer graphs all periods together are. Raises
    TopologyError for parameters that do not fit, a bad file, or no connected graph in ``spec.tries`` draws."""
    if spec.kind == "file":
        if spec.path is None:
            raise TopologyError('topology.path is missing: topology.kind = "file" needs an edge list or a GraphML file')
        from .files import read_graph

        return read_graph(spec.path, clients, directed=spec.directed, connected=spec.connected)
    if not spec.connected:
        raise TopologyError.of("topology.connected", False, "only graphs from files may be disconnected", "true")
    if spec.directed and spec.kind not in _DIRECTED:
        allowed = f"false, or the kinds {', '.join(_DIRECTED)}"
        raise TopologyError.of("topology.directed", True, f"{spec.kind} graphs are undirected", allowed)
    if clients == 1:
        return Graph(1, ())
    if spec.kind == _ONE_PEER:
        hops = _hops(clients)
        return Graph.of(clients, _hop(clients, hops[period % len(hops)]), directed=True)
    from .randomness import generator

    fewest = clients
    for attempt in range(spec.tries):
        # The first period is drawn as the one graph of a run is, whether others follow it or not.
        rng = generator(seed, "topology", *((period, attempt) if period else (attempt,)))
        pairs = _PAIRS[spec.kind](spec, clients, rng)
        graph = Graph.of(clients, pairs, directed=spec.directed or spec.kind == "exponential")
        if graph.is_connected:
            return graph
        fewest = min(fewest, graph.components)
    parameters, cure = _RANDOM[spec.kind]
    raise TopologyError(
        f'topology.kind = "{spec.kind}" with {", ".join(f"{name} = {getattr(spec, name)}" for name in parameters)}: '
        f"none of {spec.tries} graphs drawn for {clients} clients was {'strongly ' if spec.directed else ''}connected "
        f"(the best had {fewest} components); {cure.format(threshold=math.log(clients) / clients)}"
    )


def draw_sequence(spec: TopologySpec, clients: int, seed: int, rounds: int) -> GraphSequence:
    """Raises TopologyError as ``draw`` does."""
    if spec.redraw_every and spec.kind not in _RANDOM:
        allowed = f"0, or the kinds {', '.join(_RANDOM)}"
        raise TopologyError.of("topology.redraw_every", spec.redraw_every, f"{spec.kind} is not random", allowed)
    periods, rounds_each = 1, 1
    if clients > 1 and spec.kind == _ONE_PEER:
        periods = len(_hops(clients))
    elif clients > 1 and spec.redraw_every:
        periods, rounds_each = math.ceil(rounds / spec.redraw_every), spec.redraw_every
    all_others = (clients - 1) / (1 if spec.directed else 2)
    sent_by_each = {"erdos-renyi": spec.p * all_others, "complete": all_others, "barabasi-albert": spec.m}
    sent_by_each |= dict.fromkeys(("watts-strogatz", "random-regular"), spec.k / 2)
    if (links := periods * clients * sent_by_each.get(spec.kind, 1)) > _MOST_LINKS:
        graphs = f"{periods:,} {spec.kind} graphs" if periods > 1 else f"the {spec.kind} graph"
        raise TopologyError(
            f"clients = {clients}: {graphs} would have about {links:,.0f} links, at most {_MOST_LINKS:,} are drawn; "
            f"use fewer clients or a sparser graph{', or a larger topology.redraw_every' if periods > 1 else ''}"
        )
    return GraphSequence(tuple(draw(spec, clients, seed, period) for period in range(periods)), rounds_each)


def _erdos_renyi(spec: TopologySpec, clients: int, rng: np.random.Generator) -> Pairs:
    # A row of the adjacency matrix at a time: networkx draws edge by edge, ten times slower at 3,000 clients.
    for i in range(clients):
        first = 0 if spec.directed else i + 1
        drawn = (first + (rng.random(clients - first) < spec.p).nonzero()[0]).tolist()
        yield from ((i, j) for j in drawn if j != i)


def _by_networkx(spec: TopologySpec, clients: int, rng: np.random.Generator) -> Pairs:
    import networkx

    seed = int(rng.integers(2**63))  # its generators are written for Python's random.Random
    key, value = ("m", spec.m) if spec.kind == "barabasi-albert" else ("k", spec.k)
    must_be_even = spec.kind == "watts-strogatz" or (spec.kind == "random-regular" and clients % 2 == 1)
    takes = range(2, clients, 2) if must_be_even else range(1, clients)
    if value not in takes:
        bounds = f"{'an even number from ' * must_be_even}{takes[0]} to {takes[-1]}" if takes else "3 clients or more"
        raise TopologyError.of(f"topology.{key}", value, f"{spec.kind} with {clients} clients", bounds)
    if spec.kind == "watts-strogatz":
        return networkx.watts_strogatz_graph(clients, value, spec.p, seed=seed).edges
    if spec.kind == "barabasi-albert":
        return networkx.barabasi_albert_graph(clients, value, seed=seed).edges
    # Pairing stubs at random hardly ever ends on dense graphs; leaving out a sparse regular graph is the same draw.
    is_dense = value > (clients - 1) // 2
    drawn = networkx.random_regular_graph(clients - 1 - value if is_dense else value, clients, seed=seed)
    return networkx.complement(drawn).edges if is_dense else drawn.edges


def _torus(spec: TopologySpec, clients: int, rng: np.random.Generator) -> Pairs:
    divisors = [rows for rows in range(1, clients + 1) if clients % rows == 0]
    rows = spec.rows or divisors[(len(divisors) - 1) // 2]
    if rows not in divisors:
        allowed = f"0 (the most nearly square grid), {', '.join(map(str, divisors))}"
        raise TopologyError.of("topology.rows", rows, f"torus with {clients} clients", allowed)
    return _grid(rows, clients // rows)


def _grid(rows: int, cols: int) -> Pairs:
    """The circle through each row and each column: no edge for one member, one for two."""
    beside = ((i, i - i % cols + (i + 1) % cols) for i in range(rows * cols))
    below = ((i, (i + cols) % (rows * cols)) for i in range(rows * cols))
    return {(min(pair), max(pair)) for pair in (*beside, *below) if pair[0] != pair[1]}


def _hops(clients: int) -> list[int]:
    return [1 << power for power in range((clients - 1).bit_length())]


def _hop(clients: int, hop: int) -> Pairs:
    return ((i, (i + hop) % clients) for i in range(clients))


_PAIRS: dict[str, Callable[[TopologySpec, int, np.random.Generator], Pairs]] = {
    "erdos-renyi": _erdos_renyi,
    **dict.fromkeys(("watts-strogatz", "barabasi-albert", "random-regular"), _by_networkx),
    "torus": _torus,
    "ring": lambda spec, clients, _: _hop(clients, 1) if spec.directed else _grid(1, clients),
    "star": lambda _, clients, __: ((0, leaf) for leaf in range(1, clients)),
    "complete": lambda _, clients, __: combinations(range(clients), 2),
    "exponential": lambda _, clients, __: (arc for hop in _hops(clients) for arc in _hop(clients, hop)),
}
"""Edges, or arcs, over two or more clients. Raises TopologyError where parameters do not fit their number."""
_ONE_PEER = "one-peer-exponential"  # the hops of the exponential graph, one a round: none needs to be connected
_RANDOM = {  # their parameters, and what helps when draws come out disconnected, where they may
    "erdos-renyi": (("p",), "raise topology.p (connected above about ln(n)/n = {threshold:.3f}) or topology.tries"),
    "watts-strogatz": (("k", "p"), "raise topology.k, lower topology.p or raise topology.tries"),
    "barabasi-albert": (("m",), ""),
    "random-regular": (("k",), "raise topology.k or topology.tries"),
}
_DIRECTED = ("erdos-renyi", "ring", "exponential", _ONE_PEER, "file")
