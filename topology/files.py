"""Graphs that a user wrote down: an edge list, or GraphML.

Files come from other people: their size is bounded, and GraphML is read without ever expanding an entity.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import Path

from .graph import Graph, TopologyError

LARGEST_FILE = 64 * 2**20  # bytes

Line = int
Link = tuple[Line, int, int]


def read_graph(path: Path, clients: int) -> Graph:
    """GraphML where the name ends in .graphml, else an edge list: two client numbers a line, # starts a comment.

    Raises TopologyError, naming file and line, unless the file holds a connected simple graph of ``clients`` clients.
    """
    content = _content(path)
    links = _graphml(path, content) if path.suffix.lower() == ".graphml" else _edge_list(path, content)
    first_line: dict[tuple[int, int], Line] = {}
    for line, i, j in links:
        if max(i, j) >= clients:
            raise _error(path, line, f"client {max(i, j)}: with {clients} clients the numbers are 0 to {clients - 1}")
        if i == j:
            raise _error(path, line, f"edge {i}-{j}: a client cannot be its own neighbour")
        edge = (min(i, j), max(i, j))
        if edge in first_line:
            raise _error(path, line, f"edge {i}-{j} was already given on line {first_line[edge]}: give each edge once")
        first_line[edge] = line
    graph = Graph.of(clients, first_line)
    if not graph.is_connected:
        raise TopologyError(
            f"{path}: the graph of {clients} clients falls into {graph.components} components{_loner(graph)}; "
            "it must be connected"
        )
    return graph


def _loner(graph: Graph) -> str:
    lonely = next((client for client in range(graph.clients) if not graph.degree(client)), None)
    return "" if lonely is None else f" (client {lonely} has no edge)"


def _error(path: Path, line: Line, problem: str) -> TopologyError:
    return TopologyError(f"{path}, line {line}: {problem}")


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise TopologyError(f"topology.path = {path}: cannot be read ({error.strerror})") from error
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


def _graphml(path: Path, content: bytes) -> list[Link]:
    """Nodes are named by client number, "3" or "n3"; attributes are ignored.

    Raises TopologyError for a DOCTYPE, directed edges, hyperedges and nested graphs.
    """
    # expat rather than networkx: errors get a line, and a DOCTYPE, the only place that can declare entities (which
    # networkx would expand), is refused before anything of it is used.
    from xml.parsers import expat

    links: list[Link] = []
    graphs = 0
    parser = expat.ParserCreate()

    def refuse(problem: str) -> TopologyError:
        return _error(path, parser.CurrentLineNumber, problem)

    def client(name: str | None) -> int:
        number = re.fullmatch(r"n?([0-9]{1,9})", name or "")
        if number is None:
            raise refuse(f'"{(name or "")[:40]}" is not a client: nodes are named by number, such as "3" or "n3"')
        return int(number[1])

    def doctype(*_: object) -> None:
        raise refuse("a DOCTYPE is not allowed: its entities could grow without bound; remove it")

    def element(name: str, attributes: dict[str, str]) -> None:
        nonlocal graphs
        match name.rpartition(":")[2]:
            case "graph":
                graphs += 1
                if graphs > 1:
                    raise refuse("a second <graph>: the file must hold one graph, not nested")
                if attributes.get("edgedefault") == "directed":
                    raise refuse('edgedefault="directed": the graph must be undirected')
            case "node":
                client(attributes.get("id"))
            case "edge":
                if attributes.get("directed") == "true":
                    raise refuse('directed="true": edges must be undirected')
                ends = client(attributes.get("source")), client(attributes.get("target"))
                links.append((parser.CurrentLineNumber, *ends))
            case "hyperedge":
                raise refuse("a <hyperedge>: edges must join two clients")

    parser.StartDoctypeDeclHandler = doctype
    parser.StartElementHandler = element
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise _error(path, error.lineno, f"not well-formed XML ({expat.ErrorString(error.code)})") from error
    if not graphs:
        raise TopologyError(f"{path}: holds no <graph> element; a .graphml file must be GraphML")
    return links
