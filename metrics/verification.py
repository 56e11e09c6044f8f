"""The bytes that a run recorded as sent, held against the kernel's own counters at both ends of every connection."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .reader import open_records
from .text import new_table

if TYPE_CHECKING:
    from rich.table import Table

_BETWEEN_CLIENTS = "overhead WHERE kind IN ('greeting', 'ready', 'handshake', 'hello', 'evaluation')"
_BAD = "✗"


class Direction(NamedTuple):
    src: int
    dst: int
    counted: int  # wire bytes as recorded by src
    sent: int | None  # as the kernel counted at src; None: that end has no counter in the records
    received: int | None  # at dst

    @property
    def agrees(self) -> bool:
        return self.counted == self.sent == self.received

    def __str__(self) -> str:
        return f"{self.src} -> {self.dst}"


class ByteCheck(NamedTuple):
    directions: tuple[Direction, ...]  # of all connections of a run, by src and dst
    loose_ends: tuple[str, ...]  # of which no client has the other

    @property
    def differing(self) -> tuple[Direction, ...]:
        return tuple(direction for direction in self.directions if not direction.agrees)

    @property
    def connections(self) -> int:
        return len({frozenset((direction.src, direction.dst)) for direction in self.directions})


def compare_with_kernel(run_folder: Path | str) -> ByteCheck:
    """Checks a run over tcp with ``measuring.kernel``. Raises RunFolderError."""
    both_ends = "one.local = other.peer AND one.peer = other.local"
    query = f"""
        WITH recorded AS (
            SELECT src, dst, sum(wire_bytes) AS counted
            FROM (SELECT src, dst, wire_bytes FROM traffic
                  UNION ALL SELECT src, dst, wire_bytes FROM {_BETWEEN_CLIENTS}) GROUP BY src, dst
        ), kernels AS (
            SELECT one.node AS src, other.node AS dst,
                   sum(one.bytes_sent) AS sent, sum(other.bytes_received) AS received
            FROM kernel AS one JOIN kernel AS other ON {both_ends} GROUP BY one.node, other.node
        )
        SELECT src, dst, coalesce(counted, 0), sent, received
        FROM (SELECT src, dst FROM recorded UNION SELECT src, dst FROM kernels)
             LEFT JOIN recorded USING (src, dst) LEFT JOIN kernels USING (src, dst) ORDER BY src, dst"""
    loose = f"SELECT * FROM kernel AS one WHERE NOT EXISTS (SELECT 1 FROM kernel AS other WHERE {both_ends})"
    with open_records(run_folder, check=("traffic", "overhead", "kernel")) as records:
        directions = tuple(Direction(*row) for row in records.execute(query))
        ends = tuple(f"{node} -> ? ({local} to {peer})" for node, local, peer, *_ in records.execute(loose))
    return ByteCheck(directions, ends)


class Verified(NamedTuple):
    """A run over tcp, held against the kernel and the same run over ipc."""

    name: str
    comparison: ByteCheck
    differing_over_ipc: list[str]  # directed edges on which the two recorded different bytes
    complaints: list[str]  # texts for the user


def verify_run(name: str, over_tcp: Path | str, over_ipc: Path | str, *, keys: bool = False) -> Verified:
    """Checks two run folders of the same configuration, the first with ``measuring.kernel``. With ``keys`` over tcp, as
    there are none over ipc, the messages of both are the same but not their framing. Raises RunFolderError."""
    framed = "0" if keys else "wire_bytes"
    query = f"SELECT src, dst, round, '', messages, payload_bytes, message_bytes, {framed} FROM traffic"
    if not keys:  # and what else went over the connections
        query += f" UNION ALL SELECT src, dst, 0, kind, messages, 0, 0, wire_bytes FROM {_BETWEEN_CLIENTS}"
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
    table = _table("connec-\ntions", "recorded\nbytes", "kernel:\nsent", "kernel:\nreceived", "same\nover ipc")
    for run in verified:
        counts = list(zip(*run.comparison.directions, strict=True))[2:] or [()] * 3
        sums = (f"{sum(filter(None, count)):,}" for count in counts)
        same = "no" if run.differing_over_ipc else "yes"
        table.add_row(run.name, f"{run.comparison.connections}", *sums, same, _BAD if run.complaints else "")
    return table


def render_directions(verified: Sequence[Verified], *, every: bool) -> "Table | None":
    """Shows a line a direction of a connection: all of them, or those that differ; None when there are none."""
    table = _table("from -> to", "recorded\nbytes", "kernel:\nsent", "kernel:\nreceived")
    for run in verified:
        for direction in run.comparison.directions if every else run.comparison.differing:
            counts = ("none" if count is None else f"{count:,}" for count in direction[2:])
            table.add_row(run.name, str(direction), *counts, "" if direction.agrees else _BAD)
        for end in run.comparison.loose_ends:
            table.add_row(run.name, end, "", "", "", _BAD)
    return table if table.row_count else None


def _table(*columns: str) -> "Table":
    table = new_table()
    table.add_column("vectors, exchange", vertical="bottom")
    for name in columns:
        table.add_column(name, justify="right", vertical="bottom", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True, style="bold red")
    return table
