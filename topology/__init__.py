"""Who is whose neighbour: graphs, where they come from, what they look like, and mixing weights over them."""

from .generators import TopologySpec, draw
from .graph import Graph, TopologyError

__all__ = ["Graph", "TopologyError", "TopologySpec", "draw"]
