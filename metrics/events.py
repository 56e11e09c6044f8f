"""What happened in a run, told to people: events that differ only in a number or a client stand together."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .names import name_of
from .reader import metric_of, open_records
from .summary import divergence_of, status_of

_TOLD = ("warning", "drop", "lost-records", "death", "host-lost")
_COMPARED = 200
"""Characters of a detail: the search for numbers takes the square of them."""

PLANNED = {
    "crash": ("crash", "crashes"),
    "restart": ("restart", "restarts"),
    "join": ("client that joined late", "clients that joined late"),
    "leave": ("client that left", "clients that left"),
}


class Event(NamedTuple):
    wall_s: float
    node: int
    kind: str
    detail: str
    who: str
    """What that process is called."""

    @property
    def pattern(self) -> tuple[str, str]:
        """What events of the same cause share: all but client and numbers."""
        return self.kind, re.sub(r"[\d.e+-]*\d", "#", self.detail[:_COMPARED])


def who_of(events: Sequence[Event], shown: Event) -> str:
    """Names the client of the one that is shown, and how many others there are."""
    others = len({event.node for event in events} - {shown.node})
    return shown.who + (f" and {others} more" if others else "")


def remarks_on(run_folder: Path | str) -> list[str]:
    """Returns what a user should be told after a run beside its figures: one line for each thing that happened, with
    the first client it happened to and how many others there were, and one where a run has learned nothing.

    Raises RunFolderError.
    """
    with open_records(run_folder, check=("event",)) as records:
        marks = ", ".join("?" * len(_TOLD))
        rows = records.execute(
            f"SELECT wall_s, node, kind, detail FROM event WHERE kind IN ({marks}) ORDER BY wall_s, node", _TOLD
        ).fetchall()
        diverged = divergence_of(records, metric_of(records)) if status_of(records) == "finished" else None
        names = {node: name_of(node, records) for node in {node for _, node, *_ in rows}}
        planned = dict(records.execute("SELECT kind, count(*) FROM event WHERE node >= 0 GROUP BY kind"))
    lines = [f"finished, but {diverged}"] if diverged else []
    alike: dict[tuple[str, str], list[Event]] = {}
    for row in rows:
        event = Event._make((*row, names[row[1]]))
        alike.setdefault(event.pattern, []).append(event)
    lines += map(_line, alike.values())
    counts = {texts: planned[kind] for kind, texts in PLANNED.items() if kind in planned}
    if counts:
        lines.append("scenario: " + ", ".join(f"{count} {texts[count > 1]}" for texts, count in counts.items()))
    return lines


def _line(events: Sequence[Event]) -> str:
    first, who = events[0], who_of(events, events[0])
    if first.kind == "host-lost":
        return first.detail
    return f"{who} died: {first.detail}" if first.kind == "death" else f"{first.kind}: {who}: {first.detail}"
