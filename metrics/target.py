"""What it takes to become as good as wanted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .reader import open_records


@dataclass(frozen=True, slots=True)
class Reached:
    """The first evaluated round that was good enough, the bytes sent up to and including it, and when it was over."""

    round: int
    payload_bytes: int
    message_bytes: int
    wire_bytes: int
    wall_s: float


def bytes_to_reach(run_folder: Path | str, target: float) -> Reached | None:
    """None: the mean test metric was never as good as ``target``. Accuracy must rise to it, mse must fall to it.

    Only rounds that every client has evaluated count. Raises RunFolderError.
    """
    with open_records(run_folder) as records:
        metric = records.execute("SELECT max(value) FROM meta WHERE key = 'metric'").fetchone()[0]
        good = "<=" if metric == "mse" else ">="
        row = records.execute(
            "SELECT round, payload_bytes, message_bytes, wire_bytes, wall_s FROM round_cumulative"
            f" WHERE mean_test_metric {good} ? AND evaluated = (SELECT count(*) FROM node WHERE role = 'client')"
            " ORDER BY round LIMIT 1",
            (target,),
        ).fetchone()
    return Reached(*row) if row else None
