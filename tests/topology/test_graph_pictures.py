import numpy as np
import pytest

from sheafgossip.topology import Graph, TopologyError, TopologySpec, draw, draw_sequence, picture
from sheafgossip.topology.picture import draw_picture, layout

STARTS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize("ending", STARTS)
def test_the_ending_chooses_the_format(tmp_path, ending):
    path = tmp_path / f"graph{ending}"
    draw_picture(draw(TopologySpec("ring"), 6, 0), path, title="Six clients")
    assert path.read_bytes().startswith(STARTS[ending])


def test_the_legend_names_every_group(tmp_path, monkeypatch):
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
    draw_picture(draw(TopologySpec("star"), 12, 0), tmp_path / "g.svg", groups=[f"city {c}" for c in range(12)])
    drawn = (tmp_path / "g.svg").read_text()
    assert all(f">city {c}<" in drawn for c in range(12))


@pytest.mark.parametrize("kind", ["ring", "complete", "watts-strogatz"])
def test_graphs_that_follow_a_circle_are_drawn_on_one(kind):
    positions = layout(draw(TopologySpec(kind, p=0.1), 20, 0))
    np.testing.assert_allclose(np.linalg.norm(positions, axis=1), 1)
    np.testing.assert_allclose(positions[0], (0, 1), atol=1e-12)
    star = layout(draw(TopologySpec("star"), 9, 0))
    np.testing.assert_allclose(np.linalg.norm(star, axis=1), [0] + 8 * [1])


def test_what_cannot_be_drawn_is_refused(tmp_path):
    with pytest.raises(TopologyError, match=r"graph.bmp: a picture's name ends in .png, .svg, .pdf"):
        draw_picture(Graph(1, ()), tmp_path / "graph.bmp")
    with pytest.raises(TopologyError, match="1 group labels for 2 clients"):
        draw_picture(Graph(2, ((0, 1),)), tmp_path / "g.png", groups=["a"])


@pytest.mark.parametrize("clients", [30, 200])
def test_the_same_graph_is_laid_out_the_same_way(clients):
    graph = draw(TopologySpec(p=0.2), clients, 0)
    np.testing.assert_array_equal(layout.__wrapped__(graph), layout.__wrapped__(graph))


def test_one_client_and_a_disconnected_graph_can_be_drawn(tmp_path):
    for graph in (Graph(1, ()), Graph(5, ((0, 1), (2, 4)))):
        draw_picture(graph, tmp_path / "g.png")
        assert (tmp_path / "g.png").stat().st_size > 1000


@pytest.mark.parametrize("kind", ["exponential", "erdos-renyi"])
def test_each_arc_of_a_directed_graph_has_a_head_in_its_direction(kind):
    from matplotlib.figure import Figure

    graph = draw(TopologySpec(kind, p=0.15, directed=True), 20, 0)
    positions = layout(graph.undirected)
    axes = Figure().add_subplot()
    picture._draw_edges(axes, graph, positions)
    lines, heads = axes.collections
    assert len(lines.get_paths()) == len(heads.get_paths()) == len(graph.arcs)
    for (i, j), head in zip(graph.arcs, heads.get_paths(), strict=True):
        tip, left, right = head.vertices[:3]
        assert (tip - (left + right) / 2) @ (positions[j] - positions[i]) > 0


def test_graphs_that_take_turns_stand_side_by_side(tmp_path, monkeypatch):
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
    graphs = draw_sequence(TopologySpec(p=0.4, redraw_every=5), 8, 0, rounds=50)
    draw_picture(graphs, tmp_path / "g.svg", title="Eight clients")
    drawn = (tmp_path / "g.svg").read_text()
    assert [f">rounds {first} to {first + 4}<" in drawn for first in range(1, 36, 5)] == 6 * [True] + [False]
