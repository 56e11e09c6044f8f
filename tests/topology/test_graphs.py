"""How graphs and sequences are drawn, who is whose neighbour, parts, weights, matchings, figures and pictures."""

import math
import subprocess
import sys
import time
from dataclasses import replace

import networkx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from matplotlib.figure import Figure
from scipy.sparse import diags_array

from sheafgossip.topology import Graph, GraphSequence, TopologyError, TopologySpec, draw, draw_sequence, figures
from sheafgossip.topology.figures import DENSE_UP_TO, describe, diameter, mixing_matrix, spectral_gap
from sheafgossip.topology.graph import matchings
from sheafgossip.topology.picture import draw_graph, draw_picture, layout
from sheafgossip.topology.randomness import generator

RANDOM = (
    TopologySpec("erdos-renyi", p=0.4),
    TopologySpec("watts-strogatz", k=4, p=0.2),
    TopologySpec("barabasi-albert", m=2),
    TopologySpec("random-regular", k=4),  # dense with few clients
    TopologySpec("erdos-renyi", p=0.4, directed=True, tries=1000),
)
FIXED = (*map(TopologySpec, ("ring", "torus", "star", "complete", "exponential")), TopologySpec("ring", directed=True))
ONE_PEER = TopologySpec("one-peer-exponential")
seeds = st.integers(0, 2**63 - 1)


@settings(deadline=None, max_examples=80)
@given(spec=st.sampled_from(RANDOM + FIXED), clients=st.integers(6, 40), seed=seeds)
def test_every_graph_is_connected_and_the_same_for_the_same_seed(spec, clients, seed):
    graph = draw(spec, clients, seed)
    drawn = networkx.DiGraph(graph.edges) if graph.directed else networkx.Graph(graph.edges)
    assert sorted(drawn) == list(range(clients))
    assert networkx.is_strongly_connected(drawn) if graph.directed else networkx.is_connected(drawn)
    assert diameter(graph) == networkx.diameter(drawn)
    assert draw(spec, clients, seed) == graph
    assert draw(spec, 1, seed) == Graph(1, ())
    edges = {"watts-strogatz": 2 * clients, "barabasi-albert": 2 * (clients - 2), "random-regular": 2 * clients}
    assert len(graph.undirected.edges) == edges.get(spec.kind, len(graph.undirected.edges))
    assert spec.kind != "random-regular" or graph.max_degree == 4


def test_disconnected_draws_are_drawn_again_and_one_peer_graphs_begin_again_after_a_cycle():
    # At p = ln(n)/n about a third of the graphs are connected: of 30 first draws some fail where many do not.
    with pytest.raises(TopologyError):
        [draw(TopologySpec(p=0.092, tries=1), 40, seed) for seed in range(30)]
    assert all(draw(TopologySpec(p=0.092), 40, seed).is_connected for seed in range(30))
    assert draw(ONE_PEER, 8, 0, period=5) == draw(ONE_PEER, 8, 0, period=2)


@pytest.mark.parametrize("directed", [False, True])
def test_erdos_renyi_takes_each_edge_or_arc_with_probability_p(directed):
    def is_usual(found: int, places: float, p: float) -> bool:
        return abs(found - p * places) < 5 * (places * p * (1 - p)) ** 0.5

    pairs = 300 * 299 / 2
    for seed in range(5):
        links = set(draw(TopologySpec(p=0.3, directed=directed), 300, seed).edges)
        assert is_usual(len(links), (1 + directed) * pairs, 0.3)
        assert is_usual(sum((j, i) in links for i, j in links) // 2, pairs, 0.09) == directed


def test_three_thousand_clients_are_drawn_and_measured_within_seconds():
    start = time.process_time()
    graphs = draw_sequence(TopologySpec(p=0.005), 3000, 0, 1)
    assert (drawn := time.process_time()) - start < 1
    describe(graphs)
    assert time.process_time() - drawn < 4


@pytest.mark.parametrize(
    ("spec", "clients", "links"),
    [
        (TopologySpec("ring"), 4, ((0, 1), (0, 3), (1, 2), (2, 3))),
        (TopologySpec("ring"), 2, ((0, 1),)),
        (TopologySpec("ring", directed=True), 4, ((0, 1), (1, 2), (2, 3), (3, 0))),
        (TopologySpec("star"), 5, ((0, 1), (0, 2), (0, 3), (0, 4))),
        (TopologySpec("complete"), 3, ((0, 1), (0, 2), (1, 2))),
        (TopologySpec(p=1), 3, ((0, 1), (0, 2), (1, 2))),
        (TopologySpec("watts-strogatz", k=2, p=0), 4, ((0, 1), (0, 3), (1, 2), (2, 3))),
        (TopologySpec("exponential"), 6, tuple(sorted((i, (i + hop) % 6) for i in range(6) for hop in (1, 2, 4)))),
    ],
)
def test_the_links_of_small_graphs(spec, clients, links):
    assert draw(spec, clients, 0).edges == links


@pytest.mark.parametrize(("rows", "shape"), [(0, (3, 4)), (6, (6, 2)), (0, (1, 7)), (0, (4, 4))])
def test_a_torus_is_the_product_of_two_circles(rows, shape):
    oracle = networkx.grid_2d_graph(*shape, periodic=True)
    oracle.remove_edges_from(list(networkx.selfloop_edges(oracle)))
    numbered = {tuple(sorted(r * shape[1] + c for r, c in edge)) for edge in oracle.edges}
    assert set(draw(TopologySpec("torus", rows=rows), math.prod(shape), 0).edges) == numbered


@pytest.mark.parametrize(
    ("spec", "clients", "complaint"),
    [
        (TopologySpec("watts-strogatz", k=8), 8, "topology.k = 8: .* an even number from 2 to 6"),
        (TopologySpec("watts-strogatz", k=2), 2, "allowed: 3 clients or more"),
        (TopologySpec("ring"), 0, "at least 1"),
        (TopologySpec("star", directed=True), 9, "the kinds erdos-renyi, ring, exponential, one-peer-expon"),
        (TopologySpec(p=0, tries=3, directed=True), 9, r"was strongly connected \(the best had 9 components\)"),
        (TopologySpec(p=0, tries=7), 40, r"none of 7 .* raise topology.p \(connected above about ln\(n\)/n = 0.092\)"),
    ],
)
def test_parameters_that_do_not_fit_are_refused_by_key(spec, clients, complaint):
    """As are those of tests/bad_inputs.txt."""
    with pytest.raises(TopologyError, match=complaint):
        draw_sequence(spec, clients, 0, 20)


@pytest.mark.parametrize("spec", RANDOM, ids=lambda spec: spec.kind)
def test_each_period_has_a_connected_graph_of_its_own_and_the_first_is_that_of_a_run_with_one(spec):
    every_third = replace(spec, redraw_every=3)
    graphs = draw_sequence(every_third, 15, 7, rounds=20)
    assert graphs.graphs[:4] == draw_sequence(every_third, 15, 7, rounds=10).graphs
    assert draw_sequence(every_third, 1, 0, 10).graphs == (Graph(1, ()),)
    assert len(set(graphs.graphs)) == 7
    assert all(graph.is_connected for graph in graphs.graphs)
    assert [graphs.graphs.index(graphs.of(round)) for round in (1, 3, 4, 19, 20)] == [0, 0, 1, 6, 6]
    for every in (0, 50):
        alone = draw_sequence(replace(spec, redraw_every=every), 15, 7, rounds=50)
        assert alone.graphs == (draw(spec, 15, 7),) == graphs.graphs[:1]
        assert not alone.changes


def test_a_graph_follows_from_the_seed_the_period_and_the_attempt():
    def pairs(*key):
        rng = generator(4, "topology", *key)
        return tuple((i, i + 1 + int(hop)) for i in range(9) for hop in np.flatnonzero(rng.random(9 - i) < 0.6))

    graphs = draw_sequence(TopologySpec(p=0.6, redraw_every=1), 10, 4, rounds=3)
    assert [graph.edges for graph in graphs.graphs] == [pairs(0), pairs(1, 0), pairs(2, 0)]


@pytest.mark.parametrize("clients", [2, 3, 6, 8, 13, 16])
def test_one_peer_exponential_graphs_mix_with_half_a_permutation(clients):
    graphs = draw_sequence(ONE_PEER, clients, 0, rounds=40)
    period = int(np.ceil(np.log2(clients)))
    together = np.eye(clients)
    for t in range(2 * period):
        shift = np.roll(np.eye(clients), 2 ** (t % period), axis=0)  # i hears from i - 2^(t mod period)
        W = mixing_matrix(graphs.of(t + 1), "metropolis-hastings").toarray()
        np.testing.assert_array_equal(W, (np.eye(clients) + shift) / 2)
        if t < period:
            together = W @ together
    np.testing.assert_allclose([together.sum(axis=0), together.sum(axis=1)], 1)
    if clients == 2**period:
        np.testing.assert_allclose(together, 1 / clients)


def test_the_figures_of_a_one_peer_graph_and_of_a_star():
    assert describe(draw_sequence(TopologySpec("star"), 5, 0, 1)) == {
        "edges": "4",
        "degree (least / mean / most)": "1 / 1.60 / 4",
        "diameter": "2",
        "mean clustering": "0.000",
        "spectral gap": "0.2000",  # W has the eigenvalues 1, 4/5 (three times: the leaves keep 4/5) and 0
    }
    assert describe(draw_sequence(ONE_PEER, 6, 0, 9)) == {
        "periods": "3, each of 1 round",
        "arcs (least / mean / most)": "6 / 6.00 / 6",
        "outdegree": "1 / 1.00 / 1",
        "indegree": "1 / 1.00 / 1",
        "strongly connected": "all periods together",  # hops of two leave the odd clients alone
        "doubly stochastic weights": "yes",
        "connections": "12",
    }


any_graph = st.builds(draw, st.just(TopologySpec(p=0.4, tries=1000)), st.integers(1, 25), st.integers(0, 2**32))
ends = st.tuples(st.integers(0, 8), st.integers(0, 8)).filter(lambda ends: ends[0] != ends[1])


@given(arcs=st.sets(ends))
def test_neighbours_parts_and_clustering_are_those_of_networkx(arcs):
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
    assert figures.clustering(undirected) == pytest.approx(networkx.average_clustering(oracle.to_undirected()))


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
    arcs = [((0, 1),), ((1, 0), (3, 2)), ((1, 3),)]
    graphs = GraphSequence(tuple(Graph(4, each, directed=True) for each in arcs))
    assert graphs.union == Graph(4, ((0, 1), (1, 3), (2, 3)))
    for mixed in ((), (Graph(4, ()), Graph(3, ())), (Graph(4, ()), Graph(4, (), directed=True))):
        with pytest.raises(TopologyError, match="needs one or more"):
            GraphSequence(mixed)


def test_importing_topology_loads_no_heavy_library():
    heavy = "{'numpy', 'networkx', 'scipy', 'matplotlib', 'torch'}"
    code = f"import sys, sheafgossip.topology; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@given(graph=any_graph, weights=st.sampled_from(["metropolis-hastings", "max-degree"]))
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


@given(graph=any_graph)
def test_matchings_hold_every_edge_once_no_client_twice_and_are_fewer_than_twice_the_largest_degree(graph):
    dealt = matchings(graph)
    assert sorted(edge for each in dealt for edge in each.edges) == list(graph.edges)
    assert all(each.max_degree == 1 for each in dealt)
    assert graph.max_degree <= len(dealt) <= max(0, 2 * graph.max_degree - 1)


def test_a_hypercube_pairs_its_clients_along_one_axis_after_the_other_and_even_rings_take_two():
    cube = Graph.of(8, [(i, i ^ bit) for i in range(8) for bit in (1, 2, 4) if not i & bit])
    assert [{i ^ j for i, j in each.edges} for each in matchings(cube)] == [{1}, {2}, {4}]
    assert len(matchings(draw(TopologySpec("ring"), 6, 0))) == 2


@pytest.mark.parametrize("clients", [1, 2, 3, 4, 25, DENSE_UP_TO, DENSE_UP_TO + 1, 3000])
def test_the_spectral_gaps_of_rings_and_complete_graphs_have_closed_forms(clients):
    ring = 1 - abs(1 / 3 + 2 / 3 * math.cos(2 * math.pi / clients)) if clients > 2 else 1
    assert spectral_gap(draw(TopologySpec("ring"), clients, 0)) == pytest.approx(ring, rel=1e-6, abs=1e-12)
    if clients <= DENSE_UP_TO + 1:  # which mix in one round
        assert spectral_gap(draw(TopologySpec("complete"), clients, 0)) == pytest.approx(1)


def test_a_crowd_of_eigenvalues_near_minus_one_is_not_overlooked():
    crowd = -1 + np.geomspace(1e-3, 1, 3000)  # too dense at its end for plain Lanczos steps to tell apart
    assert figures.second_modulus(diags_array(np.append(crowd, 1.0), format="csc")) == pytest.approx(1 - 1e-3, abs=1e-9)


def test_the_spectral_gap_counts_the_moduli_of_all_eigenvalues():
    two_sides = Graph.of(40, ((i, 20 + j) for i in range(20) for j in range(20)))  # the second modulus is of -19 / 21
    for graph in (two_sides, draw(TopologySpec(p=0.03), DENSE_UP_TO + 50, 3)):
        moduli = np.sort(abs(np.linalg.eigvalsh(mixing_matrix(graph, "metropolis-hastings").toarray())))
        assert spectral_gap(graph) == pytest.approx(1 - moduli[-2])


def test_a_disconnected_graph_is_refused_and_a_client_alone_has_no_distance():
    with pytest.raises(TopologyError, match="2 components cannot be measured"):
        describe(GraphSequence((Graph(3, ((0, 1),)),)))
    assert describe(GraphSequence((Graph(1, ()),)))["diameter"] == "0"


def test_graphs_of_every_kind_are_written_in_every_format_those_that_take_turns_side_by_side(tmp_path):
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    disconnected = GraphSequence((Graph(5, ((0, 1), (2, 4))),))
    changing = draw_sequence(TopologySpec(p=0.4, redraw_every=5), 8, 0, rounds=50)
    for graphs, ending in ((disconnected, ".png"), (GraphSequence((Graph(1, ()),)), ".pdf"), (changing, ".svg")):
        draw_picture(graphs, tmp_path / f"graph{ending}", "$ clients")
        assert (tmp_path / f"graph{ending}").read_bytes().startswith(starts[ending])
    drawn = (tmp_path / "graph.svg").read_text()
    assert [f">rounds {first} to {first + 4}<" in drawn for first in range(1, 36, 5)] == 6 * [True] + [False]


@pytest.mark.parametrize("kind", ["ring", "complete", "watts-strogatz"])
def test_graphs_that_follow_a_circle_are_drawn_on_one(kind):
    positions = layout(draw(TopologySpec(kind, p=0.1), 20, 0))
    np.testing.assert_allclose(np.linalg.norm(positions, axis=1), 1)
    np.testing.assert_allclose(positions[0], (0, 1), atol=1e-12)
    star = layout(draw(TopologySpec("star"), 9, 0))
    np.testing.assert_allclose(np.linalg.norm(star, axis=1), [0] + 8 * [1])


@pytest.mark.parametrize("clients", [30, 200])
def test_the_same_graph_is_laid_out_the_same_way(clients):
    graph = draw(TopologySpec(p=0.2), clients, 0)
    np.testing.assert_array_equal(layout.__wrapped__(graph), layout.__wrapped__(graph))


@pytest.mark.parametrize("kind", ["exponential", "erdos-renyi"])
def test_each_arc_of_a_directed_graph_has_a_head_in_its_direction_and_each_group_a_name(kind):
    graph = draw(TopologySpec(kind, p=0.15, directed=True), 20, 0)
    positions = layout(graph.undirected)
    axes = Figure().add_subplot()
    draw_graph(axes, graph, positions, groups=[client % 12 for client in range(20)])
    lines, heads, *groups = axes.collections
    assert [group.get_label() for group in groups] == [str(group) for group in range(12)]
    assert len(lines.get_paths()) == len(heads.get_paths()) == len(graph.edges)
    for (i, j), head in zip(graph.edges, heads.get_paths(), strict=True):
        tip, left, right = head.vertices[:3]
        assert (tip - (left + right) / 2) @ (positions[j] - positions[i]) > 0
