"""Graphs as such: who is whose neighbour, parts, weights, matchings."""

import subprocess
import sys

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafgossip.topology import Digraph, Graph, GraphSequence, TopologyError, TopologySpec, draw
from sheafgossip.topology.graph import matchings
from sheafgossip.topology.weights import WEIGHTS, mixing_matrix, mixing_row

graphs = st.builds(draw, st.just(TopologySpec(p=0.4, tries=1000)), st.integers(1, 25), st.integers(0, 2**32))
ends = st.tuples(st.integers(0, 8), st.integers(0, 8)).filter(lambda ends: ends[0] != ends[1])


@settings(deadline=None)
@given(arcs=st.sets(ends))
def test_neighbours_and_parts_are_those_of_networkx(arcs):
    directed, undirected = Digraph.of(9, arcs), Digraph.of(9, arcs).undirected
    assert undirected == Graph.of(9, {(max(arc), min(arc)) for arc in arcs})
    oracle = networkx.DiGraph(arcs)
    oracle.add_nodes_from(range(9))
    assert directed.components == networkx.number_strongly_connected_components(oracle)
    assert undirected.components == networkx.number_weakly_connected_components(oracle)
    for client in range(9):
        assert directed.successors(client) == tuple(sorted(oracle.successors(client)))
        assert directed.predecessors(client) == tuple(sorted(oracle.predecessors(client)))
        assert undirected.neighbours(client) == tuple(sorted({*networkx.all_neighbors(oracle, client)}))
        assert undirected.degree(client) == len(undirected.neighbours(client)) <= undirected.max_degree


@pytest.mark.parametrize(
    ("links", "complaint"),
    [
        (((0, 3),), "0-3: clients are numbered 0 to 2"),
        (((-1, 2),), "clients are numbered 0 to 2"),
        (((1, 1),), "1-1: a client cannot be its own neighbour"),
        (((0, 1), (0, 1)), "each once"),
        (((1, 2), (0, 1)), "ascending"),
    ],
)
def test_links_that_make_no_simple_graph_are_refused(links, complaint):
    for family in (Graph, Digraph):
        with pytest.raises(TopologyError, match=complaint):
            family(3, links)
        with pytest.raises(TopologyError, match="at least 1"):
            family(0, ())
    with pytest.raises(TopologyError, match=r"edge 1-0: .* the smaller number first"):
        Graph(3, ((1, 0),))


def test_everyone_who_ever_talks_is_in_the_union():
    graphs = GraphSequence((Graph(4, ((0, 1),)), Digraph(4, ((1, 0), (3, 2))), Graph(4, ((1, 3),))))
    assert graphs.union == Graph(4, ((0, 1), (1, 3), (2, 3)))


def test_importing_topology_loads_no_heavy_library():
    heavy = "{'numpy', 'networkx', 'scipy', 'matplotlib', 'torch'}"
    code = f"import sys, sheafgossip.topology; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@settings(deadline=None)
@given(graph=graphs, weights=st.sampled_from(sorted(WEIGHTS)))
def test_weights_are_doubly_stochastic_zero_but_for_neighbours_and_mix_to_the_mean(graph, weights):
    matrix = mixing_matrix(graph, weights)
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-14)
    assert (matrix >= 0).all()
    assert (np.diag(matrix) > 0).all()
    degrees = [graph.degree(client) for client in range(graph.clients)]
    for (i, j), weight in np.ndenumerate(np.triu(matrix, 1)):
        largest = max(degrees[i], degrees[j]) if weights == "metropolis-hastings" else max(degrees)
        assert weight == (1 / (1 + largest) if (i, j) in graph.edges else 0)
    start = np.arange(graph.clients, dtype=float)
    np.testing.assert_allclose(np.linalg.matrix_power(matrix, 100_000) @ start, start.mean(), atol=1e-6)


def test_columns_of_a_directed_graphs_weights_sum_to_one_and_rows_where_it_is_regular():
    random = TopologySpec(p=0.3, directed=True, tries=1000)
    for spec, regular in ((random, False), (TopologySpec("ring", directed=True), True)):
        graph = draw(spec, 12, 1)
        W = mixing_matrix(graph, "metropolis-hastings")
        assert {(int(j), int(i)) for i, j in np.argwhere(W) if i != j} == set(graph.arcs)
        np.testing.assert_allclose(W.sum(axis=0), 1)
        assert graph.is_regular == regular == bool(np.allclose(W.sum(axis=1), 1))


def test_unknown_weights_are_refused():
    with pytest.raises(TopologyError, match=r'topology.weights = "best" .* metropolis-hastings, max-degree'):
        mixing_row(Graph(1, ()), 0, "best")


@settings(deadline=None)
@given(graph=graphs)
def test_matchings_hold_every_edge_once_no_client_twice_and_are_fewer_than_twice_the_largest_degree(graph):
    numbers = matchings(graph)
    assert tuple(numbers) == graph.edges
    ends = [(client, number) for edge, number in numbers.items() for client in edge]
    assert len(set(ends)) == len(ends)
    used = set(numbers.values())
    assert used == set(range(len(used)))
    assert graph.max_degree <= len(used) <= max(0, 2 * graph.max_degree - 1)


def test_a_hypercube_pairs_its_clients_along_one_axis_after_the_other_and_even_rings_take_two():
    cube = Graph.of(8, [(i, i ^ bit) for i in range(8) for bit in (1, 2, 4) if not i & bit])
    assert {(i ^ j, number) for (i, j), number in matchings(cube).items()} == {(1, 0), (2, 1), (4, 2)}
    assert set(matchings(draw(TopologySpec("ring"), 6, 0)).values()) == {0, 1}
