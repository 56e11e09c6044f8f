"""Tables of recorded and kernel bytes for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .verification import Direction, Verified

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


def render_runs(verified: Sequence[Verified]) -> Table:
    """A line a run, with the sums over its connections."""
    columns = ("connec-\ntions", "recorded\nbytes", "kernel:\nsent", "kernel:\nreceived", "same\nover ipc")
    table = _table("vectors, exchange", *columns, "")
    for run in verified:
        directions = run.comparison.directions
        table.add_row(
            run.name,
            f"{run.comparison.connections}",
            f"{sum(direction.counted for direction in directions):,}",
            f"{sum(direction.sent or 0 for direction in directions):,}",
            f"{sum(direction.received or 0 for direction in directions):,}",
            "no" if run.differing_over_ipc else "yes",
            _bad() if run.complaints else "",
        )
    return table


def render_directions(verified: Sequence[Verified], *, every: bool) -> Table | None:
    """A line a direction of a connection: all of them, or those that differ; None when there are none."""
    table = _table("vectors, exchange", "from -> to", "recorded\nbytes", "kernel:\nsent", "kernel:\nreceived", "")
    for run in verified:
        for direction in run.comparison.directions if every else run.comparison.differing:
            table.add_row(run.name, str(direction), *_figures(direction))
        for end in run.comparison.loose_ends:
            table.add_row(run.name, str(end), "", "", "", _bad())
    return table if table.row_count else None


def _bad() -> Text:
    from rich.text import Text

    return Text("✗", style="bold red")


def _figures(direction: Direction) -> tuple[str | Text, ...]:
    kernel = (direction.sent, direction.received)
    return (
        f"{direction.counted:,}",
        *("none" if count is None else f"{count:,}" for count in kernel),
        "" if direction.agrees else _bad(),
    )


def _table(first: str, *others: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(first, vertical="bottom")
    for name in others:
        table.add_column(name, justify="right", vertical="bottom", no_wrap=True)
    return table
