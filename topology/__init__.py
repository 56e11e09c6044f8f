"""Who is whose neighbour: graphs, where they come from, what they look like, and mixing weights over them."""

from .generators import TopologySpec, draw, draw_sequence
from .graph import Graph, GraphSequence, TopologyError, mixing_row

__all__ = ["Graph", "GraphSequence", "TopologyError", "TopologySpec", "draw", "draw_sequence", "mixing_row"]
