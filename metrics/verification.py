"""The bytes that a run recorded as sent, held against the kernel's own counters at both ends of every connection."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .reader import open_records
from .terminal import new_table

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_BETWEEN_CLIENTS = "kind IN ('greeting', 'ready', 'handshake', 'hello', 'evaluation')"  # of overhead


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction of a connection: the wire bytes that ``src`` recorded as sent to ``dst``, and the kernel's count.

    ``sent`` is the kernel's count at src, ``received`` the one at dst; None: that end has no counter in the records.
    """

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


@dataclass(frozen=True, slots=True)
class LooseEnd:
    """A connection of client ``node`` whose other end is at none of the clients; addresses are "address:port"."""

    node: int
    local: str
    peer: str

    def __str__(self) -> str:
        return f"{self.node} -> ? ({self.local} to {self.peer})"


@dataclass(frozen=True, slots=True)
class ByteCheck:
    """All directions of a run's connections, by src and dst, and the ends that could not be matched."""

    directions: tuple[Direction, ...]
    loose_ends: tuple[LooseEnd, ...]

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
            loose.append(LooseEnd(node, local, peer))
            continue
        sent[node, other] += bytes_sent
        received[other, node] += bytes_received
    directions = tuple(
        Direction(edge[0], edge[1], counted.get(edge, 0), sent.get(edge), received.get(edge))
        for edge in sorted(counted.keys() | sent.keys())
    )
    return ByteCheck(directions, tuple(loose))


@dataclass(frozen=True, slots=True)
class Verified:
    """A run over tcp, held against the kernel and against the same run over ipc.

    ``differing_over_ipc`` are the directed edges on which the two runs recorded different bytes.
    """

    name: str
    comparison: ByteCheck
    differing_over_ipc: tuple[tuple[int, int], ...]

    @property
    def complaints(self) -> list[str]:
        """Texts for the user, each naming the connections at fault; none when all agrees."""
        check, found = self.comparison, []
        if not check.directions:
            found.append("no connection was recorded")
        if check.differing:
            found.append(f"the recorded bytes are not the kernel's on {', '.join(map(str, check.differing))}")
        if check.loose_ends:
            found.append(f"no client has the other end of {', '.join(map(str, check.loose_ends))}")
        if self.differing_over_ipc:
            edges = ", ".join(f"{src} -> {dst}" for src, dst in self.differing_over_ipc)
            found.append(f"the recorded bytes over ipc are not those over tcp on {edges}")
        return [f"{self.name}: {text}" for text in found]


def verify_run(name: str, over_tcp: Path | str, over_ipc: Path | str, *, keys: bool = False) -> Verified:
    """Checks two run folders of the same configuration, the first with ``measuring.kernel``. Raises RunFolderError.

    With ``keys`` over tcp, as there are none over ipc, the messages of both are the same but not their framing.
    """
    differing = _bytes_by_edge(over_tcp, wire=not keys) ^ _bytes_by_edge(over_ipc, wire=not keys)
    return Verified(name, compare_with_kernel(over_tcp), tuple(sorted({row[:2] for row in differing})))


def _bytes_by_edge(run_folder: Path | str, *, wire: bool) -> set[tuple]:
    """Returns every row of traffic; with ``wire`` its framing too, and what else went over the connections. The first
    two columns are the edge."""
    traffic = "SELECT src, dst, round, '', messages, payload_bytes, message_bytes, {} FROM traffic"
    overhead = f"SELECT src, dst, 0, kind, messages, 0, 0, wire_bytes FROM overhead WHERE {_BETWEEN_CLIENTS}"
    with open_records(run_folder) as records:
        if not wire:
            return set(records.execute(traffic.format(0)))
        return set(records.execute(f"{traffic.format('wire_bytes')} UNION ALL {overhead}"))


def render_runs(verified: Sequence[Verified]) -> "Table":
    """Shows a line a run, with the sums over its connections."""
    table = _table("connec-\ntions", "recorded\nbytes", "kernel:\nsent", "kernel:\nreceived", "same\nover ipc", "")
    for run in verified:
        directions = run.comparison.directions
        sums = (sum(getattr(each, count) or 0 for each in directions) for count in ("counted", "sent", "received"))
        same = "no" if run.differing_over_ipc else "yes"
        table.add_row(
            run.name, f"{run.comparison.connections}", *map("{:,}".format, sums), same, _mark(bool(run.complaints))
        )
    return table


def render_directions(verified: Sequence[Verified], *, every: bool) -> "Table | None":
    """Shows a line a direction of a connection: all of them, or those that differ; None when there are none."""
    table = _table("from -> to", "recorded\nbytes", "kernel:\nsent", "kernel:\nreceived", "")
    for run in verified:
        for direction in run.comparison.directions if every else run.comparison.differing:
            counts = (direction.counted, direction.sent, direction.received)
            texts = ("none" if count is None else f"{count:,}" for count in counts)
            table.add_row(run.name, str(direction), *texts, _mark(not direction.agrees))
        for end in run.comparison.loose_ends:
            table.add_row(run.name, str(end), "", "", "", _mark(True))
    return table if table.row_count else None


def _mark(bad: bool) -> "str | Text":
    from rich.text import Text

    return Text("✗", style="bold red") if bad else ""


def _table(*columns: str) -> "Table":
    table = new_table()
    table.add_column("vectors, exchange", vertical="bottom")
    for name in columns:
        table.add_column(name, justify="right", vertical="bottom", no_wrap=True)
    return table
