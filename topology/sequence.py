"""The graphs of a run: one, or several that take turns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .graph import Digraph, Graph


@dataclass(frozen=True)
class GraphSequence:
    """Each graph holds for ``rounds_each`` rounds; after the last of them comes the first again."""

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
