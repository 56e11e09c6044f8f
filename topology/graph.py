"""An undirected simple graph of clients, and what can be asked of it without any other library."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property


class TopologyError(ValueError):
    """A graph that cannot be drawn, read or used; the message is one line for the user."""


@dataclass(frozen=True)
class Graph:
    """Clients 0 .. clients - 1 and the pairs of them that talk.

    Raises TopologyError unless the edges are pairs (i, j) with 0 <= i < j < clients, ascending, each once.
    ``Graph.of`` takes pairs in any order.
    """

    clients: int
    edges: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise TopologyError(f"a graph of {self.clients} clients: at least 1 is needed")
        previous = (-1, -1)
        for edge in self.edges:
            i, j = edge
            if min(edge) < 0 or max(edge) >= self.clients:
                raise TopologyError(f"edge {i}-{j}: clients are numbered 0 to {self.clients - 1}")
            if i == j:
                raise TopologyError(f"edge {i}-{j}: a client cannot be its own neighbour")
            if i > j or edge < previous:
                raise TopologyError(f"edge {i}-{j}: edges must be pairs (i, j) with i < j, in ascending order")
            if edge == previous:
                raise TopologyError(f"edge {i}-{j} appears twice")
            previous = edge

    @classmethod
    def of(cls, clients: int, pairs: Iterable[tuple[int, int]]) -> Graph:
        """The graph of ``pairs``, each edge once, its ends and the pairs in any order."""
        return cls(clients, tuple(sorted((i, j) if i < j else (j, i) for i, j in pairs)))

    @cached_property
    def _adjacency(self) -> tuple[tuple[int, ...], ...]:
        # Edges ascend, so each list receives first the smaller and then the larger neighbours, both in order.
        lists: list[list[int]] = [[] for _ in range(self.clients)]
        for i, j in self.edges:
            lists[i].append(j)
            lists[j].append(i)
        return tuple(map(tuple, lists))

    def neighbours(self, client: int) -> tuple[int, ...]:
        """Ascending."""
        return self._adjacency[client]

    def degree(self, client: int) -> int:
        return len(self._adjacency[client])

    @cached_property
    def max_degree(self) -> int:
        return max(map(len, self._adjacency))

    @cached_property
    def components(self) -> int:
        """Number of parts that cannot reach one another."""
        unseen = set(range(self.clients))
        count = 0
        while unseen:
            count += 1
            frontier = [unseen.pop()]
            while frontier:
                reached = unseen.intersection(self._adjacency[frontier.pop()])
                unseen -= reached
                frontier.extend(reached)
        return count

    @property
    def is_connected(self) -> bool:
        return self.components == 1
