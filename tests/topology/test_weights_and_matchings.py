import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafgossip.topology import Graph, TopologyError, TopologySpec, draw
from sheafgossip.topology.graph import matchings
from sheafgossip.topology.weights import WEIGHTS, mixing_matrix, mixing_row

graphs = st.builds(draw, st.just(TopologySpec(p=0.4, tries=1000)), st.integers(1, 25), st.integers(0, 2**32))
names = st.sampled_from(sorted(WEIGHTS))


@settings(deadline=None)
@given(graph=graphs, weights=names)
def test_weights_are_doubly_stochastic_zero_but_for_neighbours_and_mix_to_the_mean(graph, weights):
    matrix = mixing_matrix(graph, weights)
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-14)
    assert (matrix >= 0).all()
    pairs = np.argwhere(np.triu(matrix, 1))
    assert tuple(map(tuple, pairs.tolist())) == graph.edges
    assert (np.diag(matrix) > 0).all()
    start = np.arange(graph.clients, dtype=float)
    np.testing.assert_allclose(np.linalg.matrix_power(matrix, 100_000) @ start, start.mean(), atol=1e-6)


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


def test_an_even_ring_has_two_and_a_complete_graph_of_eight_has_seven():
    assert set(matchings(draw(TopologySpec("ring"), 6, 0)).values()) == {0, 1}
    assert set(matchings(draw(TopologySpec("complete"), 8, 0)).values()) == set(range(7))


def test_a_hypercube_pairs_its_clients_along_one_axis_after_the_other():
    cube = Graph.of(8, [(i, i ^ bit) for i in range(8) for bit in (1, 2, 4) if not i & bit])
    assert {(i ^ j, number) for (i, j), number in matchings(cube).items()} == {(1, 0), (2, 1), (4, 2)}
