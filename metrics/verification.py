"""The bytes that a run recorded as sent, held against the kernel's own counters at both ends of every connection."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from .reader import open_records

_BETWEEN_CLIENTS = "kind IN ('greeting', 'ready', 'handshake', 'hello', 'evaluation')"  # of overhead


@dataclass(frozen=True, slots=True)
class Direction:
    """One way of a connection: the wire bytes that ``src`` recorded as sent to ``dst``, and what the kernel counted.

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
class Comparison:
    """All directions of a run's connections, by src and dst, and the ends that could not be matched."""

    directions: tuple[Direction, ...]
    loose_ends: tuple[LooseEnd, ...]

    @property
    def differing(self) -> tuple[Direction, ...]:
        return tuple(direction for direction in self.directions if not direction.agrees)

    @property
    def connections(self) -> int:
        return len({frozenset((direction.src, direction.dst)) for direction in self.directions})


def compare_with_kernel(run_folder: Path | str) -> Comparison:
    """Of a run over tcp with ``measuring.kernel``. Raises RunFolderError."""
    with open_records(run_folder, check=("traffic", "overhead", "kernel")) as records:
        sums = records.execute(
            "SELECT src, dst, sum(wire_bytes) FROM (SELECT src, dst, wire_bytes FROM traffic"
            f" UNION ALL SELECT src, dst, wire_bytes FROM overhead WHERE {_BETWEEN_CLIENTS}) GROUP BY src, dst"
        ).fetchall()
        ends = records.execute("SELECT node, local, peer, bytes_sent, bytes_received FROM kernel").fetchall()
    counted = {(src, dst): size for src, dst, size in sums}
    node_at = {(local, peer): node for node, local, peer, _, _ in ends}
    sent: defaultdict[tuple[int, int], int] = defaultdict(int)
    received: defaultdict[tuple[int, int], int] = defaultdict(int)
    loose = []
    for node, local, peer, bytes_sent, bytes_received in ends:
        other = node_at.get((peer, local))
        if other is None:
            loose.append(LooseEnd(node, local, peer))
            continue
        sent[node, other] += bytes_sent
        received[other, node] += bytes_received
    directions = tuple(
        Direction(src, dst, counted.get((src, dst), 0), sent.get((src, dst)), received.get((src, dst)))
        for src, dst in sorted(counted.keys() | sent.keys())
    )
    return Comparison(directions, tuple(loose))


@dataclass(frozen=True, slots=True)
class Verified:
    """A run over tcp, held against the kernel and against the same run over ipc.

    ``differing_over_ipc`` are the directed edges on which the two runs recorded different bytes.
    """

    name: str
    comparison: Comparison
    differing_over_ipc: tuple[tuple[int, int], ...]

    @property
    def complaints(self) -> list[str]:
        """Texts for the user, each naming the connections at fault; none when all agrees."""
        comparison, found = self.comparison, []
        if not comparison.directions:
            found.append("no connection was recorded")
        if comparison.differing:
            found.append(f"the recorded bytes are not the kernel's on {', '.join(map(str, comparison.differing))}")
        if comparison.loose_ends:
            found.append(f"no client has the other end of {', '.join(map(str, comparison.loose_ends))}")
        if self.differing_over_ipc:
            edges = ", ".join(f"{src} -> {dst}" for src, dst in self.differing_over_ipc)
            found.append(f"the recorded bytes over ipc are not those over tcp on {edges}")
        return [f"{self.name}: {text}" for text in found]


def verify_run(name: str, over_tcp: Path | str, over_ipc: Path | str, *, keys: bool = False) -> Verified:
    """Two run folders of the same configuration, the first with ``measuring.kernel``. Raises RunFolderError.

    With ``keys`` over tcp, as there are none over ipc, the messages of both are the same but not their framing.
    """
    differing = _bytes_by_edge(over_tcp, wire=not keys) ^ _bytes_by_edge(over_ipc, wire=not keys)
    return Verified(
        name=name,
        comparison=compare_with_kernel(over_tcp),
        differing_over_ipc=tuple(sorted({row[:2] for row in differing})),
    )


def _bytes_by_edge(run_folder: Path | str, *, wire: bool) -> set[tuple]:
    """Every row of traffic; with ``wire`` its framing too, and what else went over the connections. The first two
    columns are the edge."""
    traffic = "SELECT src, dst, round, '', messages, payload_bytes, message_bytes, {} FROM traffic"
    overhead = f"SELECT src, dst, 0, kind, messages, 0, 0, wire_bytes FROM overhead WHERE {_BETWEEN_CLIENTS}"
    with open_records(run_folder) as records:
        if not wire:
            return set(records.execute(traffic.format(0)))
        return set(records.execute(f"{traffic.format('wire_bytes')} UNION ALL {overhead}"))
