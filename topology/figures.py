"""Numbers that describe a graph: how many talk, how far apart they are, how fast they mix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from operator import or_
from typing import TYPE_CHECKING

import numpy as np

from .graph import Digraph, Graph, GraphSequence, TopologyError
from .weights import mixing_matrix, mixing_row

if TYPE_CHECKING:
    from scipy.sparse import csc_array

DENSE_UP_TO = 500  # clients; beyond, all eigenvalues of a dense matrix cost more than two of a sparse one


@dataclass(frozen=True)
class GraphFigures:
    clients: int
    edges: int
    degree_min: int
    degree_mean: float
    degree_max: int
    diameter: int
    clustering: float
    """Mean over clients of the share of pairs of their neighbours that are neighbours too (0 with fewer than two)."""
    spectral_gap: float
    """1 - the second largest eigenvalue modulus of the Metropolis-Hastings matrix; 1 mixes in one round, 0 never."""


def measure(graph: Graph) -> GraphFigures:
    """Raises TopologyError for a disconnected graph: it has no diameter."""
    if not graph.is_connected:
        raise TopologyError(f"a graph of {graph.components} components cannot be measured: it must be connected")
    degrees = [graph.degree(client) for client in range(graph.clients)]
    return GraphFigures(
        clients=graph.clients,
        edges=len(graph.edges),
        degree_min=min(degrees),
        degree_mean=2 * len(graph.edges) / graph.clients,
        degree_max=max(degrees),
        diameter=diameter(graph),
        clustering=clustering(graph),
        spectral_gap=spectral_gap(graph),
    )


@dataclass(frozen=True)
class Spread:
    least: int
    mean: float
    most: int

    @classmethod
    def of(cls, counts: Sequence[int]) -> Spread:
        return cls(min(counts), sum(counts) / len(counts), max(counts))

    def __str__(self) -> str:
        return f"{self.least} / {self.mean:.2f} / {self.most}"


@dataclass(frozen=True)
class SequenceFigures:
    """Describes graphs that change or are directed; the spreads are over periods, degrees over clients and periods."""

    links: Spread
    """Edges, or arcs where the graphs are directed."""
    out_degree: Spread
    in_degree: Spread
    connections: int
    """Pairs of clients that talk in any of the periods."""
    connected: bool
    """Whether each of the graphs is connected, strongly if directed; else only all of them together are."""
    doubly_stochastic: bool
    """Whether the mixing weights are, in each of the graphs."""


def measure_sequence(graphs: GraphSequence) -> SequenceFigures:
    clients = range(graphs.union.clients)
    return SequenceFigures(
        links=Spread.of([len(graph.arcs if isinstance(graph, Digraph) else graph.edges) for graph in graphs.graphs]),
        out_degree=Spread.of([len(graph.successors(client)) for graph in graphs.graphs for client in clients]),
        in_degree=Spread.of([len(graph.predecessors(client)) for graph in graphs.graphs for client in clients]),
        connections=len(graphs.union.edges),
        connected=all(graph.is_connected for graph in graphs.graphs),
        doubly_stochastic=all(graph.is_regular for graph in graphs.graphs if isinstance(graph, Digraph)),
    )


# Sets of clients are the bits of one Python integer: unions and intersections of thousands of clients cost a tenth of a
# microsecond, so that 3,000 clients take a second where a search from each client takes minutes.


def diameter(graph: Graph | Digraph) -> int:
    """Hops between the two clients that are farthest apart, of a connected graph; along arcs where it is directed."""
    everyone = (1 << graph.clients) - 1
    reached = [1 << client for client in range(graph.clients)]
    hops = 0
    while any(clients != everyone for clients in reached):
        reached = [
            reduce(or_, (reached[other] for other in graph.successors(client)), clients)
            for client, clients in enumerate(reached)
        ]
        hops += 1
    return hops


def clustering(graph: Graph) -> float:
    around = [sum(1 << neighbour for neighbour in graph.neighbours(client)) for client in range(graph.clients)]
    total = 0.0
    for client in range(graph.clients):
        degree = graph.degree(client)
        if degree >= 2:
            # Each pair of neighbours that talk is seen from both of its ends.
            closed = sum((around[client] & around[j]).bit_count() for j in graph.neighbours(client))
            total += closed / (degree * (degree - 1))
    return total / graph.clients


def spectral_gap(graph: Graph) -> float:
    if graph.clients == 1:
        return 1.0
    if graph.clients <= DENSE_UP_TO:
        eigenvalues = np.linalg.eigvalsh(mixing_matrix(graph, "metropolis-hastings"))
        return 1 - float(max(abs(eigenvalues[0]), abs(eigenvalues[-2])))
    return 1 - second_modulus(_sparse_mixing(graph))


def _sparse_mixing(graph: Graph) -> csc_array:
    from scipy.sparse import csc_array

    rows = [mixing_row(graph, client, "metropolis-hastings") for client in range(graph.clients)]
    ends = np.cumsum([0, *map(len, rows)])
    weights = np.fromiter(chain.from_iterable(row.values() for row in rows), float, count=ends[-1])
    partners = np.fromiter(chain.from_iterable(rows), np.intp, count=ends[-1])
    # W is symmetric: its rows are its columns.
    return csc_array((weights, partners, ends), shape=(graph.clients, graph.clients))


def second_modulus(mixing: csc_array) -> float:
    """Second largest eigenvalue modulus of a symmetric matrix with eigenvalues in (-1, 1], 1 among them."""
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    start = np.random.default_rng(0).random(mixing.shape[0])  # ARPACK's own start differs from call to call
    try:
        return float(min(abs(eigsh(mixing, k=2, v0=start, maxiter=50, return_eigenvectors=False))))
    except ArpackNoConvergence:
        # Slow mixing crowds the eigenvalues at the ends of (-1, 1], as on rings and grids; those graphs have cheap
        # factors, so look from just outside either end. At -1 nothing is singular: the diagonal of W is positive.
        upper = eigsh(mixing, k=2, sigma=1 + 1e-6, v0=start, return_eigenvectors=False)
        lower = eigsh(mixing, k=1, sigma=-1, v0=start, return_eigenvectors=False)
        return float(max(min(upper), abs(lower[0])))
