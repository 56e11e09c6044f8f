"""Graphs that a user wrote down: a list of edges or arcs, or GraphML.

Files come from other people: their size is bounded, and GraphML is read without ever expanding an entity.
"""

import codecs
import re
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn

from .graph import Digraph, Graph, TopologyError

LARGEST_FILE = 64 * 2**20  # bytes

_DOCTYPE = "a DOCTYPE is not allowed: its entities could grow without bound; remove it"
Link = tuple[int, int, int]
"""The line of an edge or arc, and its two ends."""


def read_graph(path: Path, clients: int, connected: bool = True) -> Graph:
    """GraphML where the name ends in .graphml, else an edge list: two client numbers a line, # starts a comment.

    Raises TopologyError, naming file and line, unless the file holds a simple graph of ``clients`` clients, which is
    ``connected`` if that is asked for.
    """
    graph = Graph.of(clients, _links(path, clients, directed=False))
    if connected and not graph.is_connected:
        raise TopologyError(
            f"{path}: the graph of {clients} clients falls into {graph.components} components{_loner(graph)}; "
            "it must be connected, or topology.connected = false"
        )
    return graph


def read_digraph(path: Path, clients: int) -> Digraph:
    """The same, where a line of a list is an arc, from the first client to the second.

    In GraphML an edge that is not directed stands for an arc each way.
    """
    graph = Digraph.of(clients, _links(path, clients, directed=True))
    if not graph.is_connected:
        raise TopologyError(
            f"{path}: the graph of {clients} clients falls into {graph.components} parts that do not all reach one "
            f"another along arcs{_loner(graph.undirected)}; it must be strongly connected"
        )
    return graph


def _links(path: Path, clients: int, *, directed: bool) -> list[tuple[int, int]]:
    content = _content(path)
    graphml = path.suffix.lower() == ".graphml"
    links = _graphml(path, content, directed) if graphml else _edge_list(path, content)
    first_line: dict[tuple[int, int], int] = {}
    name = "arc" if directed else "edge"
    for line, i, j in links:
        if max(i, j) >= clients:
            raise _error(path, line, f"client {max(i, j)}: with {clients} clients the numbers are 0 to {clients - 1}")
        if i == j:
            raise _error(path, line, f"{name} {i}-{j}: a client cannot be its own neighbour")
        link = (i, j) if directed or i < j else (j, i)
        if link in first_line:
            given = f"{name} {i}-{j} was already given on line {first_line[link]}: give each {name} once"
            raise _error(path, line, given)
        first_line[link] = line
    return list(first_line)


def _loner(graph: Graph) -> str:
    lonely = next((client for client in range(graph.clients) if not graph.degree(client)), None)
    return "" if lonely is None else f" (client {lonely} has no edge)"


def _error(path: Path, line: int, problem: str) -> TopologyError:
    return TopologyError(f"{path}, line {line}: {problem}")


def _content(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe may never end
            raise TopologyError(f"topology.path = {path}: is no plain file")
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise TopologyError(f"topology.path = {path}: cannot be read ({error.strerror or error})") from error
    if len(content) > LARGEST_FILE:
        raise TopologyError(f"topology.path = {path}: larger than {LARGEST_FILE // 2**20} MB, the most that is read")
    return content


def _edge_list(path: Path, content: bytes) -> Iterator[Link]:
    for line, raw in enumerate(content.removeprefix(codecs.BOM_UTF8).splitlines(), start=1):
        words = raw.partition(b"#")[0].split()
        if not words:
            continue
        # Nine digits are more clients than any machine holds, and keep int() cheap on hostile input.
        if len(words) != 2 or not all(re.fullmatch(rb"[0-9]{1,9}", word) for word in words):
            shown = raw[:40].decode(errors="replace").strip()
            raise _error(path, line, f'"{shown}" is not an edge: two client numbers are expected, such as "0 3"')
        yield line, int(words[0]), int(words[1])


def _graphml(path: Path, content: bytes, arcs: bool) -> list[Link]:
    """Nodes are named by client number, "3" or "n3"; attributes are ignored, but for the direction of edges.

    With ``arcs`` an edge that is not directed gives one each way. Raises TopologyError for a DOCTYPE, hyperedges and
    nested graphs, and without ``arcs`` for directed edges.
    """
    # expat rather than networkx: errors get a line, and a DOCTYPE, the only place that can declare entities (which
    # networkx would expand), is refused before anything of it is used.
    from xml.parsers import expat

    parser, links = expat.ParserCreate(), list[Link]()
    defaults: list[str] = []  # of each graph, the direction of its edges

    def refuse(problem: str, *_: object) -> NoReturn:
        raise _error(path, parser.CurrentLineNumber, problem)

    client = partial(_client, refuse)

    def element(name: str, attributes: dict[str, str]) -> None:
        match name.rpartition(":")[2]:
            case "graph":
                defaults.append(attributes.get("edgedefault", "undirected"))
                if len(defaults) > 1:
                    refuse("a second <graph>: the file must hold one graph, not nested")
                if defaults[0] == "directed" and not arcs:
                    refuse('edgedefault="directed": the graph must be undirected, or topology.directed = true')
            case "node":
                client(attributes.get("id"))
            case "edge":
                directed = attributes.get("directed", str(defaults[:1] == ["directed"]).lower()) == "true"
                if directed and not arcs:
                    refuse('directed="true": edges must be undirected, or topology.directed = true')
                source, target = client(attributes.get("source")), client(attributes.get("target"))
                links.append((parser.CurrentLineNumber, source, target))
                if arcs and not directed:
                    links.append((parser.CurrentLineNumber, target, source))
            case "hyperedge":
                refuse("a <hyperedge>: edges must join two clients")

    parser.StartDoctypeDeclHandler = partial(refuse, _DOCTYPE)
    parser.StartElementHandler = element
    try:
        parser.Parse(content, True)
    except (LookupError, ValueError) as error:  # of the encoding that the file names
        refuse(f"its encoding is unknown or wrong ({error}); use UTF-8")
    except expat.ExpatError as error:
        raise _error(path, error.lineno, f"not well-formed XML ({expat.ErrorString(error.code)})") from error
    if not defaults:
        raise TopologyError(f"{path}: holds no <graph> element; a .graphml file must be GraphML")
    return links


def _client(refuse: Callable[[str], NoReturn], name: str | None) -> int:
    number = re.fullmatch(r"n?([0-9]{1,9})", name or "")
    if number is None:
        refuse(f'"{(name or "")[:40]}" is not a client: nodes are named by number, such as "3" or "n3"')
    return int(number[1])
