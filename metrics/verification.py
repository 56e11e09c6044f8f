"""The bytes that a run recorded as sent, held against the kernel's own counters at both ends of every connection."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .reader import open_records
from .text import new_table

if TYPE_CHECKING:
    from rich.table import Table

_BETWEEN_CLIENTS = "kind IN ('greeting', 'ready', 'handshake', 'hello', 'evaluation')"  # of overhead


class Direction(NamedTuple):
    """One direction of a connection: the wire bytes that ``src`` recorded as sent to ``dst``, and the kernel's counts
    at src (``sent``) and at dst (``received``); None: that end has no counter in the records."""

    src: int
    dst: int
    counted: int
    sent: int | None
    received: int | None

    @property
    def agrees(self) -> bool:
        return self.counted == self.sent == self.received

    def __str__(self) -> str:
        return f"{self.src} -> {self.dst}"


class ByteCheck(NamedTuple):
    """All directions of a run's connections, by src and dst, and the ends of which no client has the other, as text."""

    directions: tuple[Direction, ...]
    loose_ends: tuple[str, ...]

    @property
    def differing(self) -> tuple[Direction, ...]:
        return tuple(direction for direction in self.directions if not direction.agrees)

    @property
    def connections(self) -> int:
        return len({frozenset((direction.src, direction.dst)) for direction in self.directions})


def compare_with_kernel(run_folder: Path | str) -> ByteCheck:
    """Checks a run over tcp with ``measuring.kernel``. Raises RunFolderError."""
    with open_records(run_folder, check=("traffic", "overhead", "kernel")) as records:
        sums = records.execute(
            "SELECT src, dst, sum(wire_bytes) FROM (SELECT src, dst, wire_bytes FROM traffic"
            f" UNION ALL SELECT src, dst, wire_bytes FROM overhead WHERE {_BETWEEN_CLIENTS}) GROUP BY src, dst"
        ).fetchall()
        ends = records.execute("SELECT node, local, peer, bytes_sent, bytes_received FROM kernel").fetchall()
    counted = {(src, dst): size for src, dst, size in sums}
    node_at = {(local, peer): node for node, local, peer, _, _ in ends}
    sent: Counter[tuple[int, int]] = Counter()
    received: Counter[tuple[int, int]] = Counter()
    loose = []
    for node, local, peer, bytes_sent, bytes_received in ends:
        if (other := node_at.get((peer, local))) is None:
            loose.append(f"{node} -> ? ({local} to {peer})")
            continue
        sent[node, other] += bytes_sent
        received[other, node] += bytes_received
    edges = sorted(counted.keys() | sent.keys())
    directions = (
        Direction(src, dst, counted.get((src, dst), 0), sent.get((src, dst)), received.get((src, dst)))
        for src, dst in edges
    )
    return ByteCheck(tuple(directions), tuple(loose))


class Verified(NamedTuple):
    """A run over tcp, held against the kernel and against the same run over ipc: ``differing_over_ipc`` are the
    directed edges on which the two recorded different bytes, ``complaints`` texts for the user that name the
    connections."""

    name: str
    comparison: ByteCheck
    differing_over_ipc: list[str]
    complaints: list[str]


def verify_run(name: str, over_tcp: Path | str, over_ipc: Path | str, *, keys: bool = False) -> Verified:
    """Checks two run folders of the same configuration, the first with ``measuring.kernel``. With ``keys`` over tcp, as
    there are none over ipc, the messages of both are the same but not their framing. Raises RunFolderError."""
    framed = "0" if keys else "wire_bytes"
    query = f"SELECT src, dst, round, '', messages, payload_bytes, message_bytes, {framed} FROM traffic"
    if not keys:  # and what else went over the connections
        query += " UNION ALL SELECT src, dst, 0, kind, messages, 0, 0, wire_bytes FROM overhead"
        query += f" WHERE {_BETWEEN_CLIENTS}"
    rows = []
    for folder in (over_tcp, over_ipc):
        with open_records(folder) as records:
            rows.append(set(records.execute(query)))
    check = compare_with_kernel(over_tcp)
    differing = [f"{src} -> {dst}" for src, dst in sorted({row[:2] for row in rows[0] ^ rows[1]})]
    faults = {
        "the recorded bytes are not the kernel's on": list(map(str, check.differing)),
        "no client has the other end of": check.loose_ends,
        "the recorded bytes over ipc are not those over tcp on": differing,
    }
    complaints = [] if check.directions else [f"{name}: no connection was recorded"]
    complaints += [f"{name}: {text} {', '.join(which)}" for text, which in faults.items() if which]
    return Verified(name, check, differing, complaints)


def render_runs(verified: Sequence[Verified]) -> "Table":
    """Shows a line a run, with the sums over its connections."""
    table = _table("connec-\ntions", "recorded\nbytes", "kernel:\nsent", "kernel:\nreceived", "same\nover ipc", "")
    for run in verified:
        counts = list(zip(*run.comparison.directions, strict=True))[2:] or [()] * 3
        sums = (sum(filter(None, count)) for count in counts)
        same = "no" if run.differing_over_ipc else "yes"
        _row(table, run.name, run.comparison.connections, *sums, same, bad=bool(run.complaints))
    return table


def render_directions(verified: Sequence[Verified], *, every: bool) -> "Table | None":
    """Shows a line a direction of a connection: all of them, or those that differ; None when there are none."""
    table = _table("from -> to", "recorded\nbytes", "kernel:\nsent", "kernel:\nreceived", "")
    for run in verified:
        for direction in run.comparison.directions if every else run.comparison.differing:
            counts = ("none" if count is None else count for count in direction[2:])
            _row(table, run.name, str(direction), *counts, bad=not direction.agrees)
        for end in run.comparison.loose_ends:
            _row(table, run.name, end, "", "", "", bad=True)
    return table if table.row_count else None


def _table(*columns: str) -> "Table":
    table = new_table()
    table.add_column("vectors, exchange", vertical="bottom")
    for name in columns:
        table.add_column(name, justify="right", vertical="bottom", no_wrap=True)
    return table


def _row(table: "Table", *cells: Any, bad: bool) -> None:
    from rich.text import Text

    texts = (f"{cell:,}" if isinstance(cell, int) else cell for cell in cells)
    table.add_row(*texts, Text("✗", style="bold red") if bad else "")
