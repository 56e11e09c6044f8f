"""Numbers that describe a graph: how many talk, how far apart they are, how fast they mix."""

from functools import reduce
from itertools import chain
from operator import or_

import numpy as np
from scipy.sparse import csc_array, csr_array
from scipy.sparse.linalg import ArpackNoConvergence, eigsh

from .graph import Graph, GraphSequence, TopologyError, mixing_row

DENSE_UP_TO = 500  # clients; beyond, all eigenvalues of a dense matrix cost more than two of a sparse one


def describe(graphs: GraphSequence) -> dict[str, str]:
    """Spreads are over clients and periods. Raises TopologyError for a disconnected graph that stays."""
    graph, clients = graphs.graphs[0], range(graphs.union.clients)
    if not graphs.changes and not graph.directed:
        if not graph.is_connected:
            raise TopologyError(f"a graph of {graph.components} components cannot be measured: it must be connected")
        return {
            "edges": f"{len(graph.edges)}",
            "degree (least / mean / most)": _spread([graph.degree(client) for client in clients]),
            "diameter": f"{diameter(graph)}",
            "mean clustering": f"{clustering(graph):.3f}",
            "spectral gap": f"{spectral_gap(graph):.4f}",
        }
    links, name = [len(each.edges) for each in graphs.graphs], "arcs" if graphs.directed else "edges"
    told = {name: f"{links[0]}"}
    if graphs.changes:
        rounds = f"{graphs.rounds_each} round{'s' if graphs.rounds_each > 1 else ''}"
        told = {"periods": f"{len(links)}, each of {rounds}", f"{name} (least / mean / most)": _spread(links)}
    sent = _spread([len(each.successors(client)) for each in graphs.graphs for client in clients])
    heard = _spread([len(each.predecessors(client)) for each in graphs.graphs for client in clients])
    told |= {"outdegree": sent, "indegree": heard} if graphs.directed else {"degree": sent}
    if not graphs.changes:
        told["diameter"] = f"{diameter(graph)}"
    connected = all(each.is_connected for each in graphs.graphs)
    doubly_stochastic = all(each.is_regular for each in graphs.graphs if each.directed)
    return told | {
        "strongly connected" if graphs.directed else "connected": "yes" if connected else "all periods together",
        "doubly stochastic weights": "yes" if doubly_stochastic else "no",
        "connections": f"{len(graphs.union.edges)}",
    }


def _spread(counts: list[int]) -> str:
    return f"{min(counts)} / {sum(counts) / len(counts):.2f} / {max(counts)}"


# Sets of clients are the bits of one Python integer: unions and intersections of thousands of clients cost a tenth of a
# microsecond, so that 3,000 clients take a second where a search from each client takes minutes.


def diameter(graph: Graph) -> int:
    """Hops between the two clients of a connected graph that are farthest apart; along arcs where it is directed."""
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
    lists = [graph.neighbours(client) for client in range(graph.clients)]
    around = [sum(1 << neighbour for neighbour in neighbours) for neighbours in lists]
    # Each pair of neighbours that talk is seen from both of its ends.
    closed = [sum((own & around[j]).bit_count() for j in lists[i]) for i, own in enumerate(around)]
    return sum(pairs / max(1, len(own) * (len(own) - 1)) for pairs, own in zip(closed, lists, strict=True)) / len(lists)


def mixing_matrix(graph: Graph, weights: str) -> csr_array:
    rows = [mixing_row(graph, client, weights) for client in range(graph.clients)]
    ends = np.cumsum([0, *map(len, rows)])
    values = np.fromiter(chain.from_iterable(row.values() for row in rows), float, count=ends[-1])
    partners = np.fromiter(chain.from_iterable(rows), np.intp, count=ends[-1])
    return csr_array((values, partners, ends), shape=(graph.clients, graph.clients))


def spectral_gap(graph: Graph) -> float:
    """1 - the second largest eigenvalue modulus of the Metropolis-Hastings matrix; 1 mixes in one round, 0 never."""
    if graph.clients == 1:
        return 1.0
    W = mixing_matrix(graph, "metropolis-hastings")
    if graph.clients > DENSE_UP_TO:
        return 1 - second_modulus(W.T)  # by columns, which are its rows
    eigenvalues = np.linalg.eigvalsh(W.toarray())
    return 1 - float(max(abs(eigenvalues[0]), abs(eigenvalues[-2])))


def second_modulus(mixing: csc_array) -> float:
    """Second largest eigenvalue modulus of a symmetric matrix with eigenvalues in (-1, 1], 1 among them."""
    start = np.random.default_rng(0).random(mixing.shape[0])  # ARPACK's own start differs from call to call
    try:
        return float(min(abs(eigsh(mixing, k=2, v0=start, maxiter=50, return_eigenvectors=False))))
    except ArpackNoConvergence:
        # Slow mixing crowds the eigenvalues at the ends of (-1, 1], as on rings and grids; those graphs have cheap
        # factors, so look from just outside either end. At -1 nothing is singular: the diagonal of W is positive.
        upper = eigsh(mixing, k=2, sigma=1 + 1e-6, v0=start, return_eigenvectors=False)
        lower = eigsh(mixing, k=1, sigma=-1, v0=start, return_eigenvectors=False)
        return float(max(min(upper), abs(lower[0])))
