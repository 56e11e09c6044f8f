"""Simple graphs of clients, undirected and directed, and what can be asked of them without any other library."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

from .errors import UserError


class TopologyError(UserError):
    """A graph that cannot be drawn, read or used; the message is one line for the user."""


@dataclass(frozen=True)
class Graph:
    """Clients 0 .. clients - 1 and the pairs of them that talk.

    Raises TopologyError unless the edges are pairs (i, j) with 0 <= i < j < clients, ascending, each once.
    ``Graph.of`` takes pairs in any order.
    """

    directed: ClassVar[bool] = False

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

    successors = predecessors = neighbours

    @property
    def undirected(self) -> Graph:
        return self

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
            unseen -= _reached(self._adjacency, next(iter(unseen)), unseen)
        return count

    @property
    def is_connected(self) -> bool:
        return self.components == 1


@dataclass(frozen=True)
class Digraph:
    """Clients 0 .. clients - 1 and the arcs (i, j) over which i sends to j and j hears from i.

    Raises TopologyError unless the arcs join different clients, ascending, each once.
    """

    directed: ClassVar[bool] = True

    clients: int
    arcs: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        for i, j in self.arcs:
            if min(i, j) < 0 or max(i, j) >= self.clients:
                raise TopologyError(f"arc {i}-{j}: clients are numbered 0 to {self.clients - 1}")
            if i == j:
                raise TopologyError(f"arc {i}-{j}: a client cannot be its own neighbour")
        if any(arc >= following for arc, following in pairwise(self.arcs)):
            raise TopologyError("arcs must be in ascending order, each once")

    @classmethod
    def of(cls, clients: int, arcs: Iterable[tuple[int, int]]) -> Digraph:
        """The graph of ``arcs``, each once, in any order."""
        return cls(clients, tuple(sorted(arcs)))

    @cached_property
    def _successors(self) -> tuple[tuple[int, ...], ...]:
        return _lists(self.clients, self.arcs)

    @cached_property
    def _predecessors(self) -> tuple[tuple[int, ...], ...]:
        return _lists(self.clients, ((j, i) for i, j in self.arcs))

    def successors(self, client: int) -> tuple[int, ...]:
        """Those it sends to, ascending."""
        return self._successors[client]

    def predecessors(self, client: int) -> tuple[int, ...]:
        """Those it hears from, ascending."""
        return self._predecessors[client]

    @cached_property
    def undirected(self) -> Graph:
        """Who talks at all, whichever way."""
        return Graph.of(self.clients, {(min(arc), max(arc)) for arc in self.arcs})

    @cached_property
    def is_regular(self) -> bool:
        """Whether all clients send to as many as they hear from, everyone to the same number."""
        return len({len(ends) for lists in (self._successors, self._predecessors) for ends in lists}) == 1

    @cached_property
    def components(self) -> int:
        """Number of strongly connected parts: sets of clients that all reach one another along arcs."""
        unseen = set(range(self.clients))
        count = 0
        while unseen:
            count += 1
            client = next(iter(unseen))
            unseen -= _reached(self._successors, client, unseen) & _reached(self._predecessors, client, unseen)
        return count

    @property
    def is_connected(self) -> bool:
        """Strongly: every client reaches every other along arcs."""
        return self.components == 1


def _lists(clients: int, arcs: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    lists: list[list[int]] = [[] for _ in range(clients)]
    for i, j in arcs:
        lists[i].append(j)
    return tuple(map(tuple, lists))


def _reached(adjacency: Sequence[Iterable[int]], start: int, within: set[int]) -> set[int]:
    """``start``, and what of ``within`` can be reached from it without leaving ``within``."""
    reached = {start}
    frontier = [start]
    while frontier:
        new = within.intersection(adjacency[frontier.pop()]) - reached
        reached |= new
        frontier.extend(new)
    return reached
