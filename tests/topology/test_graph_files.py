import os
from contextlib import suppress

import networkx
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from sheafgossip.topology import Graph, TopologyError, TopologySpec, draw, files

GRAPHML = '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{}</graphml>'


@pytest.fixture
def write(tmp_path):
    def write(text, name="edges.txt"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def read(path, clients, **options):
    return draw(TopologySpec("file", path=path, **options), clients, seed=0)


def graphml(body, default="undirected"):
    return GRAPHML.format(f'<graph edgedefault="{default}">{body}</graph>')


def test_an_edge_list_may_hold_comments_and_blank_lines_and_fall_into_parts_where_that_is_asked_for(write):
    path = write("# my graph\n\n2 1   # the bridge\n\t0 1\n")
    assert read(path, 3) == Graph(3, ((0, 1), (1, 2)))
    path.write_bytes(b"\xef\xbb\xbf0 1\r\n1 2\r\n")  # saved on Windows
    assert read(path, 3) == Graph(3, ((0, 1), (1, 2)))
    assert read(path, 4, connected=False) == Graph(4, ((0, 1), (1, 2)))


def test_graphml_of_networkx_is_read_back_and_nodes_may_be_named_n_and_the_number(tmp_path, write):
    oracle = networkx.petersen_graph()
    networkx.write_graphml(oracle, tmp_path / "petersen.graphml")
    assert read(tmp_path / "petersen.graphml", 10).edges == tuple(sorted(tuple(sorted(e)) for e in oracle.edges))
    text = graphml('<node id="n0"/><node id="n1"/><edge source="n1" target="n0"/>')
    assert read(write(text, "g.graphml"), 2) == Graph(2, ((0, 1),))


def test_graphml_says_itself_which_edges_are_arcs(write):
    edges = '<edge source="0" target="1"/><edge source="1" target="2"/><edge source="2" target="0" directed="{}"/>'
    circle = (0, 1), (1, 2), (2, 0)
    both_directions = tuple(sorted((*circle, *((j, i) for i, j in circle))))
    for default, last, arcs in (
        ("directed", "true", circle),
        ("directed", "false", ((0, 1), (0, 2), (1, 2), (2, 0))),
        ("undirected", "false", both_directions),
    ):
        assert read(write(graphml(edges.format(last), default), "g.graphml"), 3, directed=True).edges == arcs


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("-> 0 1\n1 2\n", r"falls into 3 parts that do not all reach one another along arcs; it must be strongly"),
        ("-> 0 1\n1 0\n", r"falls into 2 parts .* \(client 2 has no edge\)"),
        ("-> 0 1\n1 2\n2 0\n0 1\n", "line 4: arc 0-1 was already given on line 1: give each arc once"),
        ("0 1\n\none two\n", 'edges.txt, line 3: "one two" is not an edge'),
        ("0 1\n" + "9" * 5000 + " 1\n", "line 2: .* is not an edge"),
        (graphml("", "directed"), 'line 1: edgedefault="directed"'),
        (graphml('<edge directed="true" source="0" target="1"/>'), 'directed="true"'),
        (graphml('\n<node id="alice"/>'), 'line 2: "alice" is not a client'),
        (graphml('<edge source="0"/>'), '"" is not a client'),
        (GRAPHML.format("<graph/><graph/>"), "a second <graph>"),
        (graphml("<hyperedge/>"), "hyperedge"),
        ("<graphml>\n<graph>", r"line 2: not well-formed XML \(no element found\)"),
    ],
)
def test_a_bad_file_is_refused_by_name_and_line(write, text, complaint):
    """As are those of tests/bad_inputs.txt."""
    path = write(text.removeprefix("-> "), "edges.graphml" if text.startswith("<") else "edges.txt")
    with pytest.raises(TopologyError, match=complaint) as refusal:
        read(path, 3, directed=text.startswith("->"))
    assert str(refusal.value).startswith(f"{path}")
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_graphml_that_declares_entities_is_refused(tmp_path, encoding):
    declared = '<!ENTITY a "0"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">'
    (tmp_path / "g.graphml").write_text(f"<!DOCTYPE graphml [{declared}]>{graphml('&b;')}", encoding=encoding)
    with pytest.raises(TopologyError, match="DOCTYPE is not allowed"):
        read(tmp_path / "g.graphml", 2)


ENCODINGS = "nonsense", "hex", "utf-7", "idna", "gb2312", "big5", "utf-32", "x" * 900
declared = st.sampled_from(ENCODINGS).map(lambda name: f"{name}'?>\n{graphml('')}".encode()) | st.binary(max_size=60)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(declared.map(b"<?xml version='1.0' encoding='".__add__) | st.binary(max_size=60), st.booleans())
def test_any_bytes_of_any_encoding_are_a_graph_or_refused(tmp_path, content, xml):
    path = tmp_path / ("g.graphml" if xml else "g.txt")
    path.write_bytes(content)
    with suppress(TopologyError):
        read(path, 2)


def test_what_is_no_plain_file_of_bounded_size_is_refused(tmp_path, write, monkeypatch):
    with pytest.raises(TopologyError, match=r"topology.path = .*gone.txt: cannot be read \(No such file"):
        read(tmp_path / "gone.txt", 2)
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(TopologyError, match=r"pipe\.txt: is no plain file"):
        read(tmp_path / "pipe.txt", 2)
    monkeypatch.setattr(files, "LARGEST_FILE", 2**20)
    with pytest.raises(TopologyError, match="larger than 1 MB"):
        read(write("0 1\n" * 2**18 + "\n"), 2)
