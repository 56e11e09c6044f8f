"""Mixing weights W of the algorithms that average: zero between clients that do not talk.

On an undirected graph W is symmetric and doubly stochastic: a rule gives the weight W_ij of an edge, and the diagonal
takes the rest of each row. On a directed one client j gives itself and each of those it sends to the same share,
W_ij = 1 / (1 + outdeg_j): the columns of W sum to 1, and its rows too where the graph is regular.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .graph import Digraph, Graph, TopologyError

if TYPE_CHECKING:
    import numpy as np

WEIGHTS: dict[str, Callable[[Graph, int, int], float]] = {
    # 1 / (1 + max(deg_i, deg_j)): needs only what the two ends know
    "metropolis-hastings": lambda graph, i, j: 1 / (1 + max(graph.degree(i), graph.degree(j))),
    # 1 / (1 + max_k deg_k): the same for every edge
    "max-degree": lambda graph, i, j: 1 / (1 + graph.max_degree),
}
"""W_ij of an edge."""


def mixing_row(graph: Graph | Digraph, client: int, weights: str) -> dict[int, float]:
    """{j: W_ij} of i = ``client``, itself first, then those it hears from; no n x n matrix is made.

    ``weights`` is a name of WEIGHTS; directed graphs have one rule of their own.
    """
    if weights not in WEIGHTS:
        raise TopologyError(f'topology.weights = "{weights}" is not allowed: one of {", ".join(WEIGHTS)}')
    if isinstance(graph, Digraph):
        return {j: 1 / (1 + len(graph.successors(j))) for j in (client, *graph.predecessors(client))}
    neighbours = {j: WEIGHTS[weights](graph, client, j) for j in graph.neighbours(client)}
    return {client: 1 - sum(neighbours.values())} | neighbours


def mixing_matrix(graph: Graph | Digraph, weights: str) -> np.ndarray:
    """W as a dense float64 (n, n) array. ``weights`` is a name of WEIGHTS."""
    import numpy as np

    matrix = np.zeros((graph.clients, graph.clients))
    for client in range(graph.clients):
        row = mixing_row(graph, client, weights)
        matrix[client, list(row)] = list(row.values())
    return matrix
