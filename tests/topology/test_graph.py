"""Graphs as such: who is whose neighbour, parts, weights, matchings, and numbers that describe them."""

import math
import subprocess
import sys

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import diags_array

from sheafgossip.topology import Graph, GraphSequence, TopologyError, TopologySpec, draw, draw_sequence
from sheafgossip.topology.figures import DENSE_UP_TO, clustering, describe, mixing_matrix, second_modulus, spectral_gap
from sheafgossip.topology.graph import matchings

graphs = st.builds(draw, st.just(TopologySpec(p=0.4, tries=1000)), st.integers(1, 25), st.integers(0, 2**32))
ends = st.tuples(st.integers(0, 8), st.integers(0, 8)).filter(lambda ends: ends[0] != ends[1])


@settings(deadline=None)
@given(arcs=st.sets(ends))
def test_neighbours_and_parts_are_those_of_networkx(arcs):
    directed = Graph.of(9, arcs, directed=True)
    undirected = directed.undirected
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
    for directed in (False, True):
        with pytest.raises(TopologyError, match=complaint):
            Graph(3, links, directed)
    with pytest.raises(TopologyError, match=r"edge 1-0: .* the smaller number first"):
        Graph(3, ((1, 0),))


def test_everyone_who_ever_talks_is_in_the_union():
    graphs = GraphSequence((Graph(4, ((0, 1),)), Graph(4, ((1, 0), (3, 2)), directed=True), Graph(4, ((1, 3),))))
    assert graphs.union == Graph(4, ((0, 1), (1, 3), (2, 3)))


def test_importing_topology_loads_no_heavy_library():
    heavy = "{'numpy', 'networkx', 'scipy', 'matplotlib', 'torch'}"
    code = f"import sys, sheafgossip.topology; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@settings(deadline=None)
@given(graph=graphs, weights=st.sampled_from(["metropolis-hastings", "max-degree"]))
def test_weights_are_doubly_stochastic_zero_but_for_neighbours_and_mix_to_the_mean(graph, weights):
    matrix = mixing_matrix(graph, weights).toarray()
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
        W = mixing_matrix(graph, "metropolis-hastings").toarray()
        assert {(int(j), int(i)) for i, j in np.argwhere(W) if i != j} == set(graph.edges)
        np.testing.assert_allclose(W.sum(axis=0), 1)
        assert graph.is_regular == regular == bool(np.allclose(W.sum(axis=1), 1))


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


@settings(deadline=None, max_examples=50)
@given(graph=graphs)
def test_clustering_is_that_of_networkx(graph):
    drawn = networkx.complete_graph(graph.clients).edge_subgraph(graph.edges)
    assert clustering(graph) == pytest.approx(networkx.average_clustering(drawn) if graph.edges else 0)


def test_a_star_is_counted():
    assert describe(draw_sequence(TopologySpec("star"), 5, 0, 1)) == {
        "edges": "4",
        "degree (least / mean / most)": "1 / 1.60 / 4",
        "diameter": "2",
        "mean clustering": "0.000",
        "spectral gap": "0.2000",  # W has the eigenvalues 1, 4/5 (three times: the leaves keep 4/5) and 0
    }


@pytest.mark.parametrize("clients", [3, 4, 25, DENSE_UP_TO, DENSE_UP_TO + 1, 3000])
def test_the_spectral_gap_of_a_ring_has_a_closed_form(clients):
    expected = 1 - abs(1 / 3 + 2 / 3 * math.cos(2 * math.pi / clients))
    assert spectral_gap(draw(TopologySpec("ring"), clients, 0)) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("clients", [1, 2, 30, DENSE_UP_TO + 1])
def test_a_complete_graph_mixes_in_one_round(clients):
    assert spectral_gap(draw(TopologySpec("complete"), clients, 0)) == pytest.approx(1)


def test_negative_eigenvalues_count_by_their_modulus():
    # Two sets of clients, each joined with all of the other: W flips between them.
    side = 20
    graph = Graph.of(2 * side, ((i, side + j) for i in range(side) for j in range(side)))
    # On the vector (1, -1) W is (1 - side) / (1 + side), all else is 1 / (1 + side) or 1.
    assert spectral_gap(graph) == pytest.approx(1 - (side - 1) / (side + 1))


def test_a_crowd_of_eigenvalues_near_minus_one_is_not_overlooked():
    crowd = -1 + np.geomspace(1e-3, 1, 3000)  # too dense at its end for plain Lanczos steps to tell apart
    assert second_modulus(diags_array(np.append(crowd, 1.0), format="csc")) == pytest.approx(1 - 1e-3, abs=1e-9)


def test_sparse_and_dense_eigenvalues_agree_on_random_graphs():
    graph = draw(TopologySpec(p=0.03), DENSE_UP_TO + 50, 3)
    moduli = np.sort(abs(np.linalg.eigvalsh(mixing_matrix(graph, "metropolis-hastings").toarray())))
    assert spectral_gap(graph) == pytest.approx(1 - moduli[-2])


def test_a_disconnected_graph_is_refused_and_a_client_alone_has_no_distance():
    with pytest.raises(TopologyError, match="2 components cannot be measured"):
        describe(GraphSequence((Graph(3, ((0, 1),)),)))
    assert describe(GraphSequence((Graph(1, ()),)))["diameter"] == "0"
