"""What is given for each edge {i, j}: its weight a_ij in the objective (8), and d_ij, the rows of its two maps."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from ..topology.errors import shown
from ..topology.section import Needs, Section
from . import own_code
from .number_file import NumberFile

_KEY = "algorithm.edges"
_SHOWN = 5

Pair = tuple[int, int]


@dataclass(frozen=True)
class EdgesTable(Section):
    """Where weights a_ij, and with Sheaf-FMTL sizes d_ij, of the edges come from."""

    path: Path | None = None
    """CSV file with the columns i, j, and a, d or both: a line for each edge of the graph, in either direction. Lines
    of other pairs have no effect. An empty a is 1, an empty d what gamma gives."""
    use: str = ""
    """Your own function instead, "FILE.py:NAME" or "package.module:NAME": called by the launcher as NAME(i, j, d_i,
    d_j, **options) for each edge i < j, with the parameters of both models, it returns a_ij, or (a_ij, d_ij)."""
    options: Annotated[dict[str, Any], Needs("use"), "Keyword arguments of that function."] = field(
        default_factory=dict, hash=False
    )

    def __post_init__(self) -> None:
        if self.use and self.path:
            raise ValueError("path and use exclude each other: give one of them")

    @property
    def is_given(self) -> bool:
        return bool(self.path or self.use)


class EdgeFacts(NamedTuple):
    """What both ends of an edge are told of it."""

    a: float = 1.0
    rows: int = 0  # d_ij; 0: as gamma says
    common: Sequence[int] = ()  # of selection maps: the coordinates of one's own theta that the other end has, too

    @classmethod
    def of(cls, facts: Any) -> "EdgeFacts":
        return cls(*(facts or ()))


def given_edges(
    table: EdgesTable, edges: Collection[Pair], sizes: Sequence[int], *, with_rows: bool = True
) -> dict[Pair, EdgeFacts]:
    """Returns {(i, j) with i < j: what is given}; ``sizes`` are the parameters that maps see of each client. Raises
    UserError in one line."""
    if table.path:
        found = _from_file(table.path, edges, sizes, with_rows)
    elif table.use:
        found = {edge: _from_function(table, edge, sizes, with_rows) for edge in edges}
    else:
        found = {edge: EdgeFacts() for edge in edges}
    return found


def both_ways(found: Mapping[Pair, EdgeFacts]) -> dict[Pair, EdgeFacts]:
    return {ends: facts for (i, j), facts in found.items() for ends in ((i, j), (j, i))}


def _from_file(path: Path, edges: Collection[Pair], sizes: Sequence[int], with_rows: bool) -> dict[Pair, EdgeFacts]:
    file = NumberFile(path, f"{_KEY}.path", ("i", "j"), ("a", "d") if with_rows else ("a",))
    wanted, found = set(edges), dict[Pair, EdgeFacts]()
    for line, row in file.rows():
        if row.keys() == {"i", "j"}:
            raise file.error("tells neither a nor d of the edges" if with_rows else "has no column 'a'")
        i, j = (file.whole(row, name, line, len(sizes)) for name in ("i", "j"))
        ends = min(i, j), max(i, j)
        if i == j:
            raise file.error(f"client {i} is no neighbour of itself", line)
        if ends not in wanted:
            continue
        a = 1.0 if (given := row.get("a")) is None else given
        if a < 0:
            raise file.error(f"a = {a:g}: must be at least 0", line)
        rows = 0
        if row.get("d") is not None:
            rows = file.whole(row, "d", line, min(sizes[i], sizes[j]) + 1, least=1)
        if found.setdefault(ends, EdgeFacts(a, rows)) != (a, rows, ()):
            raise file.error(f"says something else of the edge {ends[0]}-{ends[1]} than a line before", line)
    if lacking := sorted(wanted - found.keys()):
        named = ", ".join(f"{i}-{j}" for i, j in lacking[:_SHOWN]) + (", ..." if len(lacking) > _SHOWN else "")
        raise file.error(f"has no line for {len(lacking)} of the {len(wanted)} edges of the graph: {named}")
    return found


def _from_function(table: EdgesTable, edge: Pair, sizes: Sequence[int], with_rows: bool) -> EdgeFacts:
    key, (i, j) = f"{_KEY}.use", edge
    use, weigh = own_code.Use.of(table.use, key), own_code.load(table.use, key)
    if not callable(weigh):
        raise use.error("is no function")
    called = f"{use.name}({i}, {j}, {sizes[i]}, {sizes[j]})"
    try:
        with own_code.seeded():
            found = weigh(i, j, sizes[i], sizes[j], **table.options)
    except TypeError as error:
        if own_code.blamed(error):
            raise
        raise use.error(f"cannot be called as {called}: {error}") from error
    a, *rows = found if isinstance(found, tuple) else (found,)
    _require_number(use, called, found, a)
    if not rows:
        return EdgeFacts(float(a))
    most = min(sizes[i], sizes[j])
    if not with_rows or len(rows) > 1 or not _is_whole(rows[0]) or not 1 <= rows[0] <= most:
        allowed = f"(a_ij, d_ij) with 1 <= d_ij <= {most}" if with_rows else "a_ij alone: here d_ij is not free"
        raise use.error(f"{called} returned {shown(found)}; allowed is {allowed}")
    return EdgeFacts(float(a), int(rows[0]))


def _require_number(use: own_code.Use, called: str, found: Any, a: Any) -> None:
    try:
        is_right = not isinstance(a, str | bytes) and math.isfinite(float(a)) and float(a) >= 0
    except (TypeError, ValueError, OverflowError):
        is_right = False
    if not is_right:
        raise use.error(f"{called} returned {shown(found)}; allowed is a number a_ij from 0, or (a_ij, d_ij)")


def _is_whole(value: Any) -> bool:
    return not isinstance(value, bool) and hasattr(value, "__index__")
