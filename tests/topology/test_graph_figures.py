import math
import time

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import diags_array

from sheafgossip.topology import Graph, GraphSequence, TopologyError, TopologySpec, draw, draw_sequence
from sheafgossip.topology.figures import DENSE_UP_TO, clustering, describe, second_modulus, spectral_gap
from sheafgossip.topology.weights import mixing_matrix


@settings(deadline=None, max_examples=50)
@given(st.builds(draw, st.just(TopologySpec(p=0.3, tries=1000)), st.integers(2, 30), st.integers(0, 2**32)))
def test_clustering_is_that_of_networkx(graph):
    assert clustering(graph) == pytest.approx(networkx.average_clustering(networkx.Graph(graph.edges)))


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
    moduli = np.sort(abs(np.linalg.eigvalsh(mixing_matrix(graph, "metropolis-hastings"))))
    assert spectral_gap(graph) == pytest.approx(1 - moduli[-2])


def test_three_thousand_clients_are_measured_within_seconds():
    graphs = draw_sequence(TopologySpec(p=0.005), 3000, 0, 1)
    start = time.process_time()
    describe(graphs)
    assert time.process_time() - start < 4


def test_a_disconnected_graph_is_refused_and_a_client_alone_has_no_distance():
    with pytest.raises(TopologyError, match="2 components cannot be measured"):
        describe(GraphSequence((Graph(3, ((0, 1),)),)))
    assert describe(GraphSequence((Graph(1, ()),)))["diameter"] == "0"
