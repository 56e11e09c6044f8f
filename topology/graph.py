"""Simple graphs of clients, undirected and directed."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Self

from .errors import UserError

Pairs = Iterable[tuple[int, int]]


class TopologyError(UserError):
    """A graph that cannot be drawn, read or used; the message is one line for the user."""


@dataclass(frozen=True)
class Graph:
    """Clients 0 .. clients - 1 and edges between different ones, ascending, each once; an undirected edge (i, j) has
    i < j, a ``directed`` one is an arc: i sends to j. Raises TopologyError for anything else."""

    clients: int
    edges: tuple[tuple[int, int], ...]
    directed: bool = False

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise TopologyError(f"a graph of {self.clients} clients: at least 1 is needed")
        for previous, edge in pairwise(chain([(-1, -1)], self.edges)):
            i, j = edge
            if min(i, j) < 0 or max(i, j) >= self.clients:
                problem = f"clients are numbered 0 to {self.clients - 1}"
            elif i == j:
                problem = "a client cannot be its own neighbour"
            elif edge <= previous or (i > j and not self.directed):
                problem = "must come in ascending order, each once, an edge with the smaller number first"
            else:
                continue
            raise TopologyError(f"{'arc' if self.directed else 'edge'} {i}-{j}: {problem}")

    @classmethod
    def of(cls, clients: int, pairs: Pairs, *, directed: bool = False) -> Self:
        """Takes pairs, and the ends of undirected ones, in any order."""
        ordered = pairs if directed else ((i, j) if i < j else (j, i) for i, j in pairs)
        return cls(clients, tuple(sorted(ordered)), directed)

    @cached_property
    def _lists(self) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        after: list[list[int]] = [[] for _ in range(self.clients)]
        before: list[list[int]] = [[] for _ in range(self.clients)]
        for i, j in self.edges:
            after[i].append(j)
            before[j].append(i)
        if self.directed:
            return list(map(tuple, after)), list(map(tuple, before))
        both = [(*smaller, *larger) for smaller, larger in zip(before, after, strict=True)]
        return both, both

    def successors(self, client: int) -> tuple[int, ...]:
        """Returns those that a client sends to, ascending."""
        return self._lists[0][client]

    def predecessors(self, client: int) -> tuple[int, ...]:
        """Returns those that a client hears from, ascending; on an undirected graph the same ones."""
        return self._lists[1][client]

    neighbours = successors

    def degree(self, client: int) -> int:
        """Returns how many neighbours a client has, or how many it sends to."""
        return len(self._lists[0][client])

    @cached_property
    def max_degree(self) -> int:
        return max(map(len, self._lists[0]))

    @property
    def is_regular(self) -> bool:
        """Whether all clients send to as many as they hear from, everyone to the same number."""
        return len({len(ends) for lists in self._lists for ends in lists}) == 1

    @cached_property
    def undirected(self) -> "Graph":
        """The graph with an edge wherever there is a link."""
        return Graph.of(self.clients, {(min(edge), max(edge)) for edge in self.edges}) if self.directed else self

    @cached_property
    def components(self) -> int:
        """Number of parts whose clients all reach one another, along arcs where the graph is directed."""
        unseen, count = set(range(self.clients)), 0
        while unseen:
            client = next(iter(unseen))
            part = _reached(self._lists[0], client, unseen)
            if self.directed:
                part &= _reached(self._lists[1], client, unseen)
            unseen -= part
            count += 1
        return count

    @property
    def is_connected(self) -> bool:
        """Strongly, where the graph is directed."""
        return self.components == 1


@dataclass(frozen=True)
class GraphSequence:
    """Who sends to whom in each round of a run: along the edges, or arcs, of the round's graph. There is one graph; or
    several in turn, each for ``rounds_each`` rounds, after the last the first; or, with a ``seed``, one of them drawn
    for each round. All have the same clients, and are directed, or none is. Raises TopologyError."""

    graphs: tuple[Graph, ...]
    rounds_each: int = 1
    seed: int | None = None

    def __post_init__(self) -> None:
        if len({(graph.clients, graph.directed) for graph in self.graphs}) != 1 or self.rounds_each < 1:
            raise TopologyError("a sequence of graphs: needs one or more, of the same clients, all directed or none")

    @property
    def changes(self) -> bool:
        return len(self.graphs) > 1

    @property
    def directed(self) -> bool:
        return self.graphs[0].directed

    def of(self, round: int) -> Graph:
        """The graph of a round, from 1."""
        return self.graphs[period_of(round, len(self.graphs), self.rounds_each, self.seed)]

    @cached_property
    def union(self) -> Graph:
        """Everyone who ever talks: an edge for each pair that has one, or an arc, in one of the graphs."""
        if not self.changes:
            return self.graphs[0].undirected
        return Graph.of(self.graphs[0].clients, {edge for graph in self.graphs for edge in graph.undirected.edges})


def period_of(round: int, periods: int, rounds_each: int, seed: int | None) -> int:
    """Returns the place of a round's graph in its sequence, as GraphSequence tells."""
    if seed is None or periods == 1:
        return (round - 1) // rounds_each % periods
    from .randomness import generator

    return int(generator(seed, "pairwise", round).integers(periods))


def last_round(round: int, speaks: Callable[[int], bool]) -> int:
    """Returns the last round up to this one in which somebody speaks; 0: there is none."""
    return next((each for each in range(round, 0, -1) if speaks(each)), 0)


def _reached(adjacency: Sequence[tuple[int, ...]], start: int, within: set[int]) -> set[int]:
    reached, frontier = {start}, [start]
    while frontier:
        new = within.intersection(adjacency[frontier.pop()]) - reached
        reached |= new
        frontier.extend(new)
    return reached


def mixing_row(graph: Graph, client: int, weights: str) -> dict[int, float]:
    """{j: W_ij} of i = ``client``, itself first, then those it hears from. An undirected graph's W is symmetric, doubly
    stochastic; a directed one's has W_ij = 1 / (1 + outdeg_j): columns, on a regular graph also rows, sum to 1."""
    if graph.directed:
        return {j: 1 / (1 + len(graph.successors(j))) for j in (client, *graph.predecessors(client))}
    local = weights == "metropolis-hastings"  # needs only what the two ends know
    own, most = graph.degree(client), graph.max_degree
    row = {j: 1 / (1 + (max(own, graph.degree(j)) if local else most)) for j in graph.neighbours(client)}
    return {client: 1 - sum(row.values())} | row


def matchings(graph: Graph) -> tuple[Graph, ...]:
    """Deals the edges to graphs in which no client has two, to fewer than twice the largest degree."""
    taken = [0] * graph.clients  # of each client, the matchings that have an edge of it, as bits
    dealt = defaultdict[int, list[tuple[int, int]]](list)
    for i, j in graph.edges:
        free = ~(taken[i] | taken[j])
        first = free & -free
        taken[i] |= first
        taken[j] |= first
        dealt[first].append((i, j))
    return tuple(Graph(graph.clients, tuple(dealt[number])) for number in sorted(dealt))
