import numpy as np
import pytest
from matplotlib.figure import Figure

from sheafgossip.topology import Graph, GraphSequence, TopologySpec, draw, draw_sequence
from sheafgossip.topology.picture import draw_graph, draw_picture, layout


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
