"""Simple graphs of clients, undirected and directed, and what can be asked of them without any other library."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

from .errors import UserError

Links = Iterable[tuple[int, int]]
Lists = list[tuple[int, ...]]  # by client


class TopologyError(UserError):
    """A graph that cannot be drawn, read or used; the message is one line for the user."""


class _Connected:
    """What is asked of undirected and of directed graphs; a list of neighbours is ascending."""

    clients: int
    directed: ClassVar[bool]

    def _arcs(self) -> Links:
        """Ascending; an edge counts in both directions, which follow each other."""
        raise NotImplementedError

    @cached_property
    def _successors(self) -> Lists:
        return _lists(self.clients, self._arcs())

    @cached_property
    def _predecessors(self) -> Lists:
        return _lists(self.clients, ((j, i) for i, j in self._arcs()))

    def successors(self, client: int) -> tuple[int, ...]:
        """Those it sends to."""
        return self._successors[client]

    def predecessors(self, client: int) -> tuple[int, ...]:
        """Those it hears from."""
        return self._predecessors[client]

    @cached_property
    def components(self) -> int:
        """Number of parts whose clients all reach one another, along arcs where the graph is directed."""
        unseen, count = set(range(self.clients)), 0
        while unseen:
            client = next(iter(unseen))
            part = _reached(self._successors, client, unseen)
            if self.directed:
                part &= _reached(self._predecessors, client, unseen)
            unseen -= part
            count += 1
        return count

    @property
    def is_connected(self) -> bool:
        """Strongly, where the graph is directed."""
        return self.components == 1


@dataclass(frozen=True)
class Graph(_Connected):
    """Clients 0 .. clients - 1 and the pairs of them that talk.

    Raises TopologyError unless the edges are pairs (i, j) with 0 <= i < j < clients, ascending, each once.
    """

    directed = False

    clients: int
    edges: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        _check("edge", self.clients, self.edges)

    @classmethod
    def of(cls, clients: int, pairs: Links) -> Self:
        """The graph of ``pairs``, each edge once, its ends and the pairs in any order."""
        return cls(clients, tuple(sorted((i, j) if i < j else (j, i) for i, j in pairs)))

    def _arcs(self) -> Links:
        # Edges ascend, so each client's list receives first the smaller and then the larger neighbours, both in order.
        return (arc for i, j in self.edges for arc in ((i, j), (j, i)))

    neighbours = predecessors = _Connected.successors

    @property
    def undirected(self) -> Self:
        return self

    def degree(self, client: int) -> int:
        return len(self._successors[client])

    @cached_property
    def max_degree(self) -> int:
        return max(map(len, self._successors))


@dataclass(frozen=True)
class Digraph(_Connected):
    """Clients 0 .. clients - 1 and the arcs (i, j) over which i sends to j and j hears from i.

    Raises TopologyError unless the arcs join different clients, ascending, each once.
    """

    directed = True

    clients: int
    arcs: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        _check("arc", self.clients, self.arcs)

    @classmethod
    def of(cls, clients: int, arcs: Links) -> Self:
        """The graph of ``arcs``, each once, in any order."""
        return cls(clients, tuple(sorted(arcs)))

    def _arcs(self) -> Links:
        return self.arcs

    @cached_property
    def undirected(self) -> Graph:
        """Who talks at all, in whichever direction."""
        return Graph.of(self.clients, {(min(arc), max(arc)) for arc in self.arcs})

    @cached_property
    def is_regular(self) -> bool:
        """Whether all clients send to as many as they hear from, everyone to the same number."""
        return len({len(ends) for lists in (self._successors, self._predecessors) for ends in lists}) == 1


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


def _check(name: str, clients: int, links: Links) -> None:
    if clients < 1:
        raise TopologyError(f"a graph of {clients} clients: at least 1 is needed")
    previous = (-1, -1)
    for link in links:
        i, j = link
        if min(i, j) < 0 or max(i, j) >= clients:
            problem = f"clients are numbered 0 to {clients - 1}"
        elif i == j:
            problem = "a client cannot be its own neighbour"
        elif link <= previous or (name == "edge" and i > j):
            problem = "must come in ascending order, each once, an edge with the smaller number first"
        else:
            previous = link
            continue
        raise TopologyError(f"{name} {i}-{j}: {problem}")


def _lists(clients: int, arcs: Links) -> Lists:
    """By client i: each j of an arc (i, j), in the order of the arcs."""
    lists: list[list[int]] = [[] for _ in range(clients)]
    for i, j in arcs:
        lists[i].append(j)
    return list(map(tuple, lists))


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

    Each edge takes the first that is free at both of its ends: at least as many as the largest degree, and fewer than
    twice as many.
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
