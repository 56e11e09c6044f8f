"""Simple graphs of clients, undirected and directed, and what can be asked of them without any other library."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, Self

from .errors import UserError

Lists = list[tuple[int, ...]]
"""A client's neighbours, by client."""


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
    def of(cls, clients: int, pairs: Iterable[tuple[int, int]]) -> Self:
        """The graph of ``pairs``, each edge once, its ends and the pairs in any order."""
        return cls(clients, tuple(sorted((i, j) if i < j else (j, i) for i, j in pairs)))

    @cached_property
    def _adjacency(self) -> list[tuple[int, ...]]:
        # Edges ascend, so each client's list receives first the smaller and then the larger neighbours, both in order.
        return _lists(self.clients, (arc for i, j in self.edges for arc in ((i, j), (j, i))))

    def neighbours(self, client: int) -> tuple[int, ...]:
        """Ascending."""
        return self._adjacency[client]

    successors = predecessors = neighbours

    @property
    def undirected(self) -> Self:
        return self

    def degree(self, client: int) -> int:
        return len(self._adjacency[client])

    @cached_property
    def max_degree(self) -> int:
        return max(map(len, self._adjacency))

    @cached_property
    def components(self) -> int:
        """Number of parts that cannot reach one another."""
        return _components(self.clients, self._adjacency, self._adjacency)

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
    def of(cls, clients: int, arcs: Iterable[tuple[int, int]]) -> Self:
        """The graph of ``arcs``, each once, in any order."""
        return cls(clients, tuple(sorted(arcs)))

    @cached_property
    def _successors(self) -> list[tuple[int, ...]]:
        return _lists(self.clients, self.arcs)

    @cached_property
    def _predecessors(self) -> list[tuple[int, ...]]:
        return _lists(self.clients, ((j, i) for i, j in self.arcs))

    def successors(self, client: int) -> tuple[int, ...]:
        """Those it sends to, ascending."""
        return self._successors[client]

    def predecessors(self, client: int) -> tuple[int, ...]:
        """Those it hears from, ascending."""
        return self._predecessors[client]

    @cached_property
    def undirected(self) -> Graph:
        """Who talks at all, in whichever direction."""
        return Graph.of(self.clients, {(min(arc), max(arc)) for arc in self.arcs})

    @cached_property
    def is_regular(self) -> bool:
        """Whether all clients send to as many as they hear from, everyone to the same number."""
        return len({len(ends) for lists in (self._successors, self._predecessors) for ends in lists}) == 1

    @cached_property
    def components(self) -> int:
        """Number of strongly connected parts: sets of clients that all reach one another along arcs."""
        return _components(self.clients, self._successors, self._predecessors)

    @property
    def is_connected(self) -> bool:
        """Strongly: every client reaches every other along arcs."""
        return self.components == 1


@dataclass(frozen=True)
class GraphSequence:
    """The graphs of a run: one, or several in turn, each for ``rounds_each`` rounds; after the last comes the first."""

    graphs: tuple[Graph | Digraph, ...]
    rounds_each: int = 1

    @property
    def changes(self) -> bool:
        return len(self.graphs) > 1

    @property
    def directed(self) -> bool:
        return self.graphs[0].directed

    def of(self, round: int) -> Graph | Digraph:
        """The graph of a round, from 1."""
        return self.graphs[(round - 1) // self.rounds_each % len(self.graphs)]

    @cached_property
    def union(self) -> Graph:
        """Everyone who ever talks: an edge for each pair that has one, or an arc, in one of the graphs."""
        if not self.changes:
            return self.graphs[0].undirected
        return Graph.of(self.graphs[0].clients, {edge for graph in self.graphs for edge in graph.undirected.edges})


def _lists(clients: int, arcs: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
    """By client i: each j of an arc (i, j), in the order of the arcs."""
    lists: list[list[int]] = [[] for _ in range(clients)]
    for i, j in arcs:
        lists[i].append(j)
    return list(map(tuple, lists))


def _components(clients: int, onwards: Lists, back: Lists) -> int:
    unseen = set(range(clients))
    count = 0
    while unseen:
        count += 1
        client = next(iter(unseen))
        reached = _reached(onwards, client, unseen)
        unseen -= reached if back is onwards else reached & _reached(back, client, unseen)
    return count


def _reached(adjacency: Lists, start: int, within: set[int]) -> set[int]:
    """``start``, and what of ``within`` can be reached from it without leaving ``within``."""
    reached = {start}
    frontier = [start]
    while frontier:
        new = within.intersection(adjacency[frontier.pop()]) - reached
        reached |= new
        frontier.extend(new)
    return reached


def matchings(graph: Graph) -> dict[tuple[int, int], int]:
    """{edge: number of its matching}, from 0: sets of edges in which no client has two.

    Each edge takes the first matching that is free at both of its ends.
    That makes at least as many matchings as the largest degree, and fewer than twice as many.
    """
    taken = [0] * graph.clients  # of each client, the matchings that have an edge of it, as bits
    numbers = {}
    for i, j in graph.edges:
        free = ~(taken[i] | taken[j])
        first = free & -free
        taken[i] |= first
        taken[j] |= first
        numbers[i, j] = first.bit_length() - 1
    return numbers
