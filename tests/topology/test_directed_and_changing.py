"""Graphs whose edges have a direction, and graphs that change."""

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafgossip.topology import Digraph, Graph, GraphSequence, TopologyError, TopologySpec, draw, draw_sequence
from sheafgossip.topology.figures import diameter, measure_sequence
from sheafgossip.topology.randomness import generator
from sheafgossip.topology.weights import mixing_matrix

DIRECTED = TopologySpec(p=0.3, directed=True, tries=1000)
GRAPHML = '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{}</graphml>'
seeds = st.integers(0, 2**63 - 1)
arcs_of_nine = st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8)).filter(lambda arc: arc[0] != arc[1]))


def oracle(graph: Digraph) -> networkx.DiGraph:
    drawn = networkx.DiGraph(graph.arcs)
    drawn.add_nodes_from(range(graph.clients))
    return drawn


# -- directed ----------------------------------------------------------------------------------------------------------


def test_an_arc_goes_from_the_one_who_sends_to_the_one_who_hears():
    graph = Digraph.of(4, [(2, 0), (0, 1), (1, 2), (0, 2), (2, 3)])
    assert [graph.successors(client) for client in range(4)] == [(1, 2), (2,), (0, 3), ()]
    assert [graph.predecessors(client) for client in range(4)] == [(2,), (0,), (0, 1), (2,)]
    assert graph.undirected == Graph(4, ((0, 1), (0, 2), (1, 2), (2, 3)))


@settings(deadline=None)
@given(arcs=arcs_of_nine)
def test_strongly_connected_parts_are_those_of_networkx(arcs):
    graph = Digraph.of(9, arcs)
    assert graph.components == networkx.number_strongly_connected_components(oracle(graph))


@pytest.mark.parametrize(
    ("arcs", "complaint"),
    [
        (((0, 3),), "arc 0-3: clients are numbered 0 to 2"),
        (((1, 1),), "arc 1-1: a client cannot be its own neighbour"),
        (((0, 1), (0, 1)), "each once"),
        (((1, 0), (0, 1)), "ascending"),
    ],
)
def test_arcs_that_make_no_simple_graph_are_refused(arcs, complaint):
    with pytest.raises(TopologyError, match=complaint):
        Digraph(3, arcs)


@settings(deadline=None, max_examples=30)
@given(clients=st.integers(5, 30), seed=seeds)
def test_a_directed_graph_is_drawn_until_it_is_strongly_connected(clients, seed):
    graph = draw(DIRECTED, clients, seed)
    assert networkx.is_strongly_connected(oracle(graph))
    assert graph == draw(DIRECTED, clients, seed)
    assert diameter(graph) == networkx.diameter(oracle(graph))


def test_directed_erdos_renyi_draws_each_arc_by_itself():
    arcs = set(draw(TopologySpec(p=0.3, directed=True), 300, 0).arcs)
    places, pairs = 300 * 299, 300 * 299 / 2
    both = sum((j, i) in arcs for i, j in arcs) / 2
    assert abs(len(arcs) - 0.3 * places) < 5 * (places * 0.3 * 0.7) ** 0.5
    assert abs(both - 0.09 * pairs) < 5 * (pairs * 0.09 * 0.91) ** 0.5


def test_arcs_of_a_ring_and_of_an_exponential_graph():
    assert draw(TopologySpec("ring", directed=True), 4, 0).arcs == ((0, 1), (1, 2), (2, 3), (3, 0))
    graph = draw(TopologySpec("exponential"), 6, 0)
    assert (graph.successors(0), graph.successors(5)) == ((1, 2, 4), (0, 1, 3))
    assert graph.is_regular


def test_columns_of_a_directed_graphs_weights_sum_to_one_and_rows_where_it_is_regular():
    for spec, regular in ((DIRECTED, False), (TopologySpec("ring", directed=True), True)):
        graph = draw(spec, 12, 1)
        W = mixing_matrix(graph, "metropolis-hastings")
        assert {(int(j), int(i)) for i, j in np.argwhere(W) if i != j} == set(graph.arcs)
        np.testing.assert_allclose(W.sum(axis=0), 1)
        assert graph.is_regular == regular == bool(np.allclose(W.sum(axis=1), 1))


@pytest.fixture
def read(tmp_path):
    def read(text, clients, name="arcs.txt"):
        (tmp_path / name).write_text(text)
        return draw(TopologySpec("file", path=tmp_path / name, directed=True), clients, 0)

    return read


def test_graphml_says_itself_which_edges_are_arcs(read):
    edges = '<edge source="0" target="1"/><edge source="1" target="2"/>'
    back = '<edge source="2" target="0" directed="{}"/>'
    circle = (0, 1), (1, 2), (2, 0)
    both_ways = tuple(sorted((*circle, *((j, i) for i, j in circle))))
    directed = GRAPHML.format(f'<graph edgedefault="directed">{edges}{back.format("true")}</graph>')
    mixed = GRAPHML.format(f'<graph edgedefault="directed">{edges}{back.format("false")}</graph>')
    undirected = GRAPHML.format(f'<graph edgedefault="undirected">{edges}{back.format("false")}</graph>')
    assert read(directed, 3, "g.graphml").arcs == circle
    assert read(mixed, 3, "g.graphml").arcs == ((0, 1), (0, 2), (1, 2), (2, 0))
    assert read(undirected, 3, "g.graphml").arcs == both_ways


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0 1\n1 2\n", r"falls into 3 parts that do not all reach one another along arcs; it must be strongly"),
        ("0 1\n1 0\n", r"falls into 2 parts .* \(client 2 has no edge\)"),
        ("0 1\n1 2\n2 0\n0 1\n", "line 4: arc 0-1 was already given on line 1: give each arc once"),
    ],
)
def test_a_bad_list_of_arcs_is_refused(read, text, complaint):
    with pytest.raises(TopologyError, match=complaint):
        read(text, 3)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (
            TopologySpec("star", directed=True),
            "topology.directed = true is not allowed: star graphs are undirected; directed ones are erdos-renyi, ring, "
            "exponential, one-peer-exponential and file",
        ),
        (
            TopologySpec("torus", redraw_every=5),
            "topology.redraw_every = 5 is not allowed: torus graphs are not random; those that are: erdos-renyi, "
            "watts-strogatz, barabasi-albert and random-regular",
        ),
        (TopologySpec(p=0, tries=3, directed=True), r"was strongly connected \(the best had 9 components\)"),
    ],
)
def test_graphs_that_there_are_not_are_refused_by_key(spec, complaint):
    with pytest.raises(TopologyError, match=complaint):
        draw_sequence(spec, 9, 0, 20)


# -- changing ----------------------------------------------------------------------------------------------------------

RANDOM = (
    TopologySpec("erdos-renyi", p=0.4, redraw_every=3),
    TopologySpec("watts-strogatz", k=4, p=0.2, redraw_every=3),
    TopologySpec("barabasi-albert", m=2, redraw_every=3),
    TopologySpec("random-regular", k=4, redraw_every=3),
    TopologySpec("erdos-renyi", p=0.4, directed=True, redraw_every=3),
)


@pytest.mark.parametrize("spec", RANDOM, ids=lambda spec: spec.kind)
def test_each_period_has_a_connected_graph_of_its_own_and_the_first_is_that_of_a_run_with_one(spec):
    graphs = draw_sequence(spec, 15, 7, rounds=20)
    assert graphs == draw_sequence(spec, 15, 7, rounds=20)
    assert graphs.graphs[:4] == draw_sequence(spec, 15, 7, rounds=10).graphs
    assert draw_sequence(spec, 1, 0, 10).graphs == (Graph(1, ()),)
    assert len(set(graphs.graphs)) == 7
    assert all(graph.is_connected for graph in graphs.graphs)
    assert graphs.graphs[0] == draw(spec, 15, 7)
    assert [graphs.graphs.index(graphs.of(round)) for round in (1, 3, 4, 19, 20)] == [0, 0, 1, 6, 6]


def test_a_graph_follows_from_the_seed_the_period_and_the_attempt():
    def pairs(*key):
        rng = generator(4, "topology", *key)
        return tuple(
            (i, j) for i in range(9) for j, x in zip(range(i + 1, 10), rng.random(9 - i), strict=True) if x < 0.6
        )

    graphs = draw_sequence(TopologySpec(p=0.6, redraw_every=1), 10, 4, rounds=3)
    assert [graph.edges for graph in graphs.graphs] == [pairs(0), pairs(1, 0), pairs(2, 0)]


@pytest.mark.parametrize("spec", [TopologySpec(p=0.4), TopologySpec("star"), TopologySpec(p=0.4, redraw_every=50)])
def test_one_graph_for_all_rounds_is_a_sequence_of_one(spec):
    graphs = draw_sequence(spec, 10, 0, rounds=50)
    assert graphs.graphs == (draw(spec, 10, 0),)
    assert not graphs.changes
    assert graphs.union is graphs.graphs[0]


def test_everyone_who_ever_talks_is_in_the_union():
    graphs = GraphSequence((Graph(4, ((0, 1),)), Graph(4, ((0, 1), (2, 3))), Graph(4, ((1, 3),))))
    assert graphs.union == Graph(4, ((0, 1), (1, 3), (2, 3)))
    assert draw_sequence(TopologySpec("one-peer-exponential"), 4, 0, 9).union == draw(TopologySpec("complete"), 4, 0)


@pytest.mark.parametrize("clients", [2, 3, 6, 8, 13, 16])
def test_one_peer_exponential_graphs_mix_with_half_a_permutation(clients):
    graphs = draw_sequence(TopologySpec("one-peer-exponential"), clients, 0, rounds=40)
    period = int(np.ceil(np.log2(clients)))
    together = np.eye(clients)
    for t in range(2 * period):
        shift = np.roll(np.eye(clients), 2 ** (t % period), axis=0)  # i hears from i - 2^(t mod period)
        W = mixing_matrix(graphs.of(t + 1), "metropolis-hastings")
        np.testing.assert_array_equal(W, (np.eye(clients) + shift) / 2)
        if t < period:
            together = W @ together
    np.testing.assert_allclose([together.sum(axis=0), together.sum(axis=1)], 1)
    if clients == 2**period:
        np.testing.assert_allclose(together, 1 / clients)


def test_the_figures_of_a_one_peer_graph():
    figures = measure_sequence(draw_sequence(TopologySpec("one-peer-exponential"), 6, 0, 9))
    assert (str(figures.links), str(figures.out_degree), figures.connections) == ("6 / 6.00 / 6", "1 / 1.00 / 1", 12)
    assert figures.doubly_stochastic
    assert not figures.connected  # hops of two leave the odd clients alone
