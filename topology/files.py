"""Graphs that a user wrote down: a list of edges or arcs, or GraphML.

Files come from other people: their size is bounded, and GraphML is read without ever expanding an entity.
"""

import codecs
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from .graph import Digraph, Graph, TopologyError

LARGEST_FILE = 64 * 2**20  # bytes

Line = int
Link = tuple[Line, int, int]
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
    first_line: dict[tuple[int, int], Line] = {}
    name = "arc" if directed else "edge"
    for line, i, j in links:
        if max(i, j) >= clients:
            raise _error(path, line, f"client {max(i, j)}: with {clients} clients the numbers are 0 to {clients - 1}")
        if i == j:
            raise _error(path, line, f"{name} {i}-{j}: a client cannot be its own neighbour")
        link = (i, j) if directed or i < j else (j, i)
        if link in first_line:
            given = f"was already given on line {first_line[link]}: give each {name} once"
            raise _error(path, line, f"{name} {i}-{j} {given}")
        first_line[link] = line
    return list(first_line)


def _loner(graph: Graph) -> str:
    lonely = next((client for client in range(graph.clients) if not graph.degree(client)), None)
    return "" if lonely is None else f" (client {lonely} has no edge)"


def _error(path: Path, line: Line, problem: str) -> TopologyError:
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

    parser = expat.ParserCreate()
    graph = _GraphML(path, arcs, lambda: parser.CurrentLineNumber)
    parser.StartDoctypeDeclHandler = graph.doctype
    parser.StartElementHandler = graph.element
    try:
        parser.Parse(content, True)
    except TopologyError:
        raise
    except (LookupError, ValueError) as error:  # of the encoding that the file names
        raise graph.refusal(f"its encoding is unknown or wrong ({error}); use UTF-8") from error
    except expat.ExpatError as error:
        raise _error(path, error.lineno, f"not well-formed XML ({expat.ErrorString(error.code)})") from error
    if not graph.count:
        raise TopologyError(f"{path}: holds no <graph> element; a .graphml file must be GraphML")
    return graph.links


class _GraphML:
    """What has been read of a file, element by element."""

    def __init__(self, path: Path, arcs: bool, line: Callable[[], Line]):
        self.links: list[Link] = []
        self.count = 0
        self._path = path
        self._arcs = arcs
        self._line = line
        self._default = "undirected"

    def refusal(self, problem: str) -> TopologyError:
        return _error(self._path, self._line(), problem)

    def doctype(self, *_: object) -> None:
        raise self.refusal("a DOCTYPE is not allowed: its entities could grow without bound; remove it")

    def element(self, name: str, attributes: dict[str, str]) -> None:
        match name.rpartition(":")[2]:
            case "graph":
                self.count += 1
                if self.count > 1:
                    raise self.refusal("a second <graph>: the file must hold one graph, not nested")
                self._default = attributes.get("edgedefault", self._default)
                self._check_direction(self._default == "directed", 'edgedefault="directed": the graph')
            case "node":
                self._client(attributes.get("id"))
            case "edge":
                directed = attributes.get("directed", str(self._default == "directed").lower()) == "true"
                self._check_direction(directed, 'directed="true": edges')
                source, target = (self._client(attributes.get(end)) for end in ("source", "target"))
                self.links.append((self._line(), source, target))
                if self._arcs and not directed:
                    self.links.append((self._line(), target, source))
            case "hyperedge":
                raise self.refusal("a <hyperedge>: edges must join two clients")

    def _check_direction(self, directed: bool, what: str) -> None:
        if directed and not self._arcs:
            raise self.refusal(f"{what} must be undirected, or topology.directed = true")

    def _client(self, name: str | None) -> int:
        number = re.fullmatch(r"n?([0-9]{1,9})", name or "")
        if number is None:
            raise self.refusal(f'"{(name or "")[:40]}" is not a client: nodes are named by number, such as "3" or "n3"')
        return int(number[1])
