import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafgossip.topology import Graph, TopologyError, TopologySpec, draw
from sheafgossip.topology.weights import WEIGHTS, mixing_matrix, mixing_row

graphs = st.builds(draw, st.just(TopologySpec(p=0.4, tries=1000)), st.integers(1, 25), st.integers(0, 2**32))
names = st.sampled_from(sorted(WEIGHTS))


@settings(deadline=None)
@given(graph=graphs, weights=names)
def test_weights_are_symmetric_and_doubly_stochastic(graph, weights):
    matrix = mixing_matrix(graph, weights)
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-14)
    assert (matrix >= 0).all()


@settings(deadline=None)
@given(graph=graphs, weights=names)
def test_only_neighbours_weigh_anything(graph, weights):
    matrix = mixing_matrix(graph, weights)
    pairs = np.argwhere(np.triu(matrix, 1))
    assert tuple(map(tuple, pairs.tolist())) == graph.edges
    assert (np.diag(matrix) > 0).all()


@settings(deadline=None)
@given(graph=graphs, weights=names)
def test_repeated_averaging_reaches_the_mean(graph, weights):
    start = np.arange(graph.clients, dtype=float)
    mixed = np.linalg.matrix_power(mixing_matrix(graph, weights), 100_000) @ start
    np.testing.assert_allclose(mixed, start.mean(), atol=1e-6)


def test_metropolis_hastings_of_a_path_with_a_branch():
    # Client 1 has three neighbours, 3 has two.
    graph = Graph(5, ((0, 1), (1, 2), (1, 3), (3, 4)))
    expected = np.array(
        [
            [3 / 4, 1 / 4, 0, 0, 0],
            [1 / 4, 1 / 4, 1 / 4, 1 / 4, 0],
            [0, 1 / 4, 3 / 4, 0, 0],
            [0, 1 / 4, 0, 5 / 12, 1 / 3],
            [0, 0, 0, 1 / 3, 2 / 3],
        ]
    )
    np.testing.assert_allclose(mixing_matrix(graph, "metropolis-hastings"), expected, atol=1e-15)


def test_max_degree_gives_every_edge_the_same_weight():
    graph = Graph(5, ((0, 1), (1, 2), (1, 3), (3, 4)))
    assert mixing_row(graph, 3, "max-degree") == {3: 1 / 2, 1: 1 / 4, 4: 1 / 4}


def test_a_row_of_a_large_graph_holds_the_client_and_its_neighbours():
    graph = draw(TopologySpec("ring"), 3000, 0)
    row = mixing_row(graph, 0, "metropolis-hastings")
    assert row == pytest.approx({0: 1 / 3, 1: 1 / 3, 2999: 1 / 3})


def test_unknown_weights_are_refused():
    with pytest.raises(TopologyError, match=r'topology.weights = "best" .* metropolis-hastings, max-degree'):
        mixing_row(Graph(1, ()), 0, "best")
