"""Who is whose neighbour: graphs, where they come from, what they look like, and mixing weights over them."""

from .generators import TopologySpec, draw, draw_sequence
from .graph import Digraph, Graph, GraphSequence, TopologyError

__all__ = ["Digraph", "Graph", "GraphSequence", "TopologyError", "TopologySpec", "draw", "draw_sequence"]
