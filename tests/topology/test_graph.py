import subprocess
import sys

import pytest

from sheafgossip.topology import Graph, TopologyError


def test_neighbours_are_listed_from_both_ends_in_ascending_order():
    graph = Graph(4, ((0, 2), (1, 2), (2, 3)))
    assert [graph.neighbours(client) for client in range(4)] == [(2,), (2,), (0, 1, 3), (2,)]
    assert [graph.degree(client) for client in range(4)] == [1, 1, 3, 1]
    assert graph.max_degree == 3
    assert Graph.of(4, [(3, 2), (2, 0), (2, 1)]) == graph
    assert (Graph(5, ((0, 1), (2, 3))).components, graph.is_connected) == (3, True)


@pytest.mark.parametrize(
    ("edges", "complaint"),
    [
        (((0, 3),), "edge 0-3: clients are numbered 0 to 2"),
        (((-1, 2),), "clients are numbered 0 to 2"),
        (((1, 1),), "edge 1-1: a client cannot be its own neighbour"),
        (((0, 1), (0, 1)), "edge 0-1 appears twice"),
        (((1, 0),), "ascending"),
        (((1, 2), (0, 1)), "ascending"),
    ],
)
def test_edges_that_make_no_simple_graph_are_refused(edges, complaint):
    with pytest.raises(TopologyError, match=complaint):
        Graph(3, edges)
    with pytest.raises(TopologyError, match="at least 1"):
        Graph(0, ())


def test_importing_topology_loads_no_heavy_library():
    heavy = "{'numpy', 'networkx', 'scipy', 'matplotlib', 'torch'}"
    code = f"import sys, sheafgossip.topology; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
