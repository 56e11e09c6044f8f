from hypothesis import given, settings
from hypothesis import strategies as st

from sheafgossip.topology import Graph, TopologySpec, draw
from sheafgossip.topology.matchings import matchings

graphs = st.builds(draw, st.just(TopologySpec(p=0.4, tries=1000)), st.integers(1, 25), st.integers(0, 2**32))


@settings(deadline=None)
@given(graph=graphs)
def test_every_edge_is_in_one_matching_and_no_client_twice_in_the_same(graph):
    numbers = matchings(graph)
    assert tuple(numbers) == graph.edges
    ends = [(client, number) for edge, number in numbers.items() for client in edge]
    assert len(set(ends)) == len(ends)


@settings(deadline=None)
@given(graph=graphs)
def test_there_are_at_least_the_largest_degree_and_fewer_than_twice_as_many(graph):
    used = set(matchings(graph).values())
    assert used == set(range(len(used)))
    assert graph.max_degree <= len(used) <= max(0, 2 * graph.max_degree - 1)


def test_an_even_ring_has_two_and_a_complete_graph_of_eight_has_seven():
    assert set(matchings(draw(TopologySpec("ring"), 6, 0)).values()) == {0, 1}
    assert set(matchings(draw(TopologySpec("complete"), 8, 0)).values()) == set(range(7))


def test_a_hypercube_pairs_its_clients_along_one_axis_after_the_other():
    cube = Graph.of(8, [(i, i ^ bit) for i in range(8) for bit in (1, 2, 4) if not i & bit])
    assert {(i ^ j, number) for (i, j), number in matchings(cube).items()} == {(1, 0), (2, 1), (4, 2)}
