"""What it takes to become as good as wanted."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from .conditions import completed_rounds, gone_clients
from .reader import metric_of, open_records


@dataclass(frozen=True, slots=True)
class Reached:
    """The first evaluated round that was good enough, the bytes sent up to and including it, and when it was over."""

    round: int
    payload_bytes: int
    message_bytes: int
    wire_bytes: int
    wall_s: float


@dataclass(frozen=True, slots=True)
class ReachedVirtually:
    """The first moment in virtual time at which the clients were good enough, and the bytes of all rounds that their
    senders had completed by then."""

    virtual_s: float
    payload_bytes: int
    message_bytes: int
    wire_bytes: int


def bytes_to_reach(run_folder: Path | str, target: float) -> Reached | None:
    """None: the mean test metric was never as good as ``target``. Accuracy must rise to it, mse must fall to it.

    Only rounds that every client has evaluated count; a client that was away in a round, or gone for good, is left out
    of that round's mean. Raises RunFolderError.
    """
    with open_records(run_folder) as records:
        completed = completed_rounds(records, gone_clients(records))
        row = records.execute(
            "SELECT round, payload_bytes, message_bytes, wire_bytes, wall_s"
            " FROM round_cumulative JOIN (SELECT round, clients FROM round_total) USING (round)"
            f" WHERE mean_test_metric {_good(records)} ? AND evaluated = clients AND round <= ? ORDER BY round LIMIT 1",
            (target, completed),
        ).fetchone()
    return Reached(*row) if row else None


def virtual_time_to_reach(run_folder: Path | str, target: float) -> ReachedVirtually | None:
    """Does the same with the mean that view virtual_progress has at each moment: over the clients, each
    with its latest evaluation so far. None also where the run has no virtual time. Raises RunFolderError.
    """
    with open_records(run_folder) as records:
        row = records.execute(
            f"SELECT virtual_s FROM virtual_progress WHERE mean_test_metric {_good(records)} ?"
            " AND evaluated >= (SELECT count(*) FROM round WHERE round = 0) ORDER BY virtual_s LIMIT 1",
            (target,),
        ).fetchone()
        if row is None:
            return None
        sent = records.execute(
            "SELECT total(payload_bytes), total(message_bytes), total(wire_bytes) FROM traffic"
            " JOIN round ON round.node = src AND round.round = traffic.round WHERE virtual_s <= ?",
            row,
        ).fetchone()
    return ReachedVirtually(row[0], *map(int, sent))


def _good(records: sqlite3.Connection) -> str:
    return "<=" if metric_of(records) == "mse" else ">="
