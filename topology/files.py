"""Graphs from files of other people: their size is bounded, and no entity of GraphML is ever expanded."""

import codecs
import re
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from .graph import Graph, TopologyError

LARGEST_FILE = 64 * 2**20  # bytes

Link = tuple[int, int, int]  # the line of an edge or arc, and its two ends


def read_graph(path: Path, clients: int, *, directed: bool, connected: bool = True) -> Graph:
    """Reads GraphML where the name ends in .graphml, else edges or arcs: two client numbers a line, # starts a comment.
    Raises TopologyError, naming file and line, unless the file holds a simple graph of ``clients`` clients, which is
    strongly connected where it is ``directed``, else ``connected`` if that is asked for."""
    content = _content(path)
    links = _graphml(path, content, directed) if path.suffix.lower() == ".graphml" else _list(path, content)
    first_line: dict[tuple[int, int], int] = {}
    name = "arc" if directed else "edge"
    for line, i, j in links:
        link = (i, j) if directed or i < j else (j, i)
        if max(link) >= clients:
            raise _error(path, line, f"client {max(link)}: with {clients} clients the numbers are 0 to {clients - 1}")
        if i == j:
            raise _error(path, line, f"{name} {i}-{j}: a client cannot be its own neighbour")
        if earlier := first_line.get(link):
            raise _error(path, line, f"{name} {i}-{j} was already given on line {earlier}: give each {name} once")
        first_line[link] = line
    graph = Graph.of(clients, first_line, directed=directed)
    if graph.is_connected or not (directed or connected):
        return graph
    parts, needed = "components", "connected, or topology.connected = false"
    if directed:
        parts, needed = "parts that do not all reach one another along arcs", "strongly connected"
    lonely = [f" (client {client} has no edge)" for client in range(clients) if not graph.undirected.degree(client)]
    raise TopologyError(
        f"{path}: the graph of {clients} clients falls into {graph.components} {parts}{''.join(lonely[:1])}; it must "
        f"be {needed}"
    )


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


def _list(path: Path, content: bytes) -> Iterator[Link]:
    for line, raw in enumerate(content.removeprefix(codecs.BOM_UTF8).splitlines(), start=1):
        if not (words := raw.partition(b"#")[0].split()):
            continue
        # Nine digits are more clients than any machine holds, and keep int() cheap on hostile input.
        if len(words) != 2 or not all(re.fullmatch(rb"[0-9]{1,9}", word) for word in words):
            shown = raw[:40].decode(errors="replace").strip()
            raise _error(path, line, f'"{shown}" is not an edge: two client numbers are expected, such as "0 3"')
        yield line, int(words[0]), int(words[1])


def _graphml(path: Path, content: bytes, arcs: bool) -> list[Link]:
    """Nodes are named by client number, "3" or "n3"; attributes are ignored, but for the direction of edges: with
    ``arcs`` one that is not directed gives an arc each way, without them directed ones are refused."""
    # expat rather than networkx: errors get a line, and a DOCTYPE, the only place that can declare entities (which
    # networkx would expand), is refused before anything of it is used.
    parser, links = expat.ParserCreate(), list[Link]()
    defaults: list[str] = []  # the direction of its edges, of each graph

    def refuse(problem: str, *_: object) -> NoReturn:
        raise _error(path, parser.CurrentLineNumber, problem)

    def client(name: str) -> int:
        if (number := re.fullmatch(r"n?([0-9]{1,9})", name)) is None:
            refuse(f'"{name[:40]}" is not a client: nodes are named by number, such as "3" or "n3"')
        return int(number[1])

    def element(name: str, attributes: dict[str, str]) -> None:
        match name.rpartition(":")[2]:
            case "graph":
                defaults.append(attributes.get("edgedefault", "undirected"))
                if len(defaults) > 1:
                    refuse("a second <graph>: the file must hold one graph, not nested")
                if defaults[0] == "directed" and not arcs:
                    refuse('edgedefault="directed": the graph must be undirected, or topology.directed = true')
            case "node":
                client(attributes.get("id", ""))
            case "edge":
                directed = attributes.get("directed", str(defaults[:1] == ["directed"]).lower()) == "true"
                if directed and not arcs:
                    refuse('directed="true": edges must be undirected, or topology.directed = true')
                source, target = client(attributes.get("source", "")), client(attributes.get("target", ""))
                links.append((parser.CurrentLineNumber, source, target))
                if arcs and not directed:
                    links.append((parser.CurrentLineNumber, target, source))
            case "hyperedge":
                refuse("a <hyperedge>: edges must join two clients")

    doctype = "a DOCTYPE is not allowed: its entities could grow without bound; remove it"
    parser.StartDoctypeDeclHandler = partial(refuse, doctype)
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
