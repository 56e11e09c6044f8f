"""``sheafgossip trace``: published traces as files for [trace]."""

from pathlib import Path

from ...metrics.text import show
from ..planner.foreign_traces import convert


def trace(file: Path, source: str, out: Path, clients: int) -> None:
    count, rows = convert(file, source, out, clients)
    show(f"{count:,} clients, {rows:,} rows: {out}")
