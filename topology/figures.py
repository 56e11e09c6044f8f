"""Numbers that describe a graph: how many talk, how far apart they are, how fast they mix."""

from __future__ import annotations

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


def describe(graphs: GraphSequence) -> dict[str, str]:
    """What there is to say of the graphs, by name; spreads are over clients and periods.

    Raises TopologyError for a disconnected graph that stays: it has no diameter.
    """
    graph, clients = graphs.graphs[0], range(graphs.union.clients)
    if not graphs.changes and isinstance(graph, Graph):
        if not graph.is_connected:
            raise TopologyError(f"a graph of {graph.components} components cannot be measured: it must be connected")
        return {
            "edges": f"{len(graph.edges)}",
            "degree (least / mean / most)": _spread([graph.degree(client) for client in clients]),
            "diameter": f"{diameter(graph)}",
            "mean clustering": f"{clustering(graph):.3f}",
            "spectral gap": f"{spectral_gap(graph):.4f}",
        }
    told: dict[str, str] = {}
    links = [len(each.arcs if isinstance(each, Digraph) else each.edges) for each in graphs.graphs]
    name = "arcs" if graphs.directed else "edges"
    if graphs.changes:
        rounds = f"{graphs.rounds_each} round{'s' if graphs.rounds_each > 1 else ''}"
        told |= {"periods": f"{len(links)}, each of {rounds}", f"{name} (least / mean / most)": _spread(links)}
    else:
        told |= {name: f"{links[0]}"}
    sent = _spread([len(each.successors(client)) for each in graphs.graphs for client in clients])
    heard = _spread([len(each.predecessors(client)) for each in graphs.graphs for client in clients])
    told |= {"outdegree": sent, "indegree": heard} if graphs.directed else {"degree": sent}
    if not graphs.changes:
        told |= {"diameter": f"{diameter(graph)}"}
    connected = all(each.is_connected for each in graphs.graphs)
    doubly_stochastic = all(each.is_regular for each in graphs.graphs if isinstance(each, Digraph))
    return told | {
        "strongly connected" if graphs.directed else "connected": "yes" if connected else "all periods together",
        "doubly stochastic weights": "yes" if doubly_stochastic else "no",
        "connections": f"{len(graphs.union.edges)}",
    }


def _spread(counts: list[int]) -> str:
    return f"{min(counts)} / {sum(counts) / len(counts):.2f} / {max(counts)}"


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
    """Mean over clients of the share of pairs of their neighbours that are neighbours too; 0 with fewer than two."""
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
    """1 - the second largest eigenvalue modulus of the Metropolis-Hastings matrix; 1 mixes in one round, 0 never."""
    if graph.clients == 1:
        return 1.0
    if graph.clients <= DENSE_UP_TO:
        eigenvalues = np.linalg.eigvalsh(mixing_matrix(graph, "metropolis-hastings"))
        return 1 - float(max(abs(eigenvalues[0]), abs(eigenvalues[-2])))
    from scipy.sparse import csc_array

    rows = [mixing_row(graph, client, "metropolis-hastings") for client in range(graph.clients)]
    ends = np.cumsum([0, *map(len, rows)])
    weights = np.fromiter(chain.from_iterable(row.values() for row in rows), float, count=ends[-1])
    partners = np.fromiter(chain.from_iterable(rows), np.intp, count=ends[-1])
    # W is symmetric: its rows are its columns.
    return 1 - second_modulus(csc_array((weights, partners, ends), shape=(graph.clients, graph.clients)))


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
