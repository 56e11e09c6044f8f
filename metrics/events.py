"""What happened in a run, told to people: events that differ only in a number or a client stand together."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .reader import metric_of, name_of, open_records
from .summary import divergence_of, status_of

_COMPARED = 200  # characters of a detail: the search for numbers takes the square of them
_PLANNED = {
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
    who: str  # what that process is called

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
        rows = records.execute(
            "SELECT wall_s, node, kind, detail FROM event"
            " WHERE kind IN ('warning', 'drop', 'lost-records', 'death', 'host-lost') ORDER BY wall_s, node"
        ).fetchall()
        diverged = divergence_of(records, metric_of(records)) if status_of(records) == "finished" else None
        names = {node: name_of(node, records) for node in {node for _, node, *_ in rows}}
        counts = dict(records.execute("SELECT kind, count(*) FROM event WHERE node >= 0 GROUP BY kind"))
    lines = [f"finished, but {diverged}"] if diverged else []
    alike: dict[tuple[str, str], list[Event]] = {}
    for row in rows:
        event = Event._make((*row, names[row[1]]))
        alike.setdefault(event.pattern, []).append(event)
    for events in alike.values():
        first, who = events[0], who_of(events, events[0])
        told = {"host-lost": first.detail, "death": f"{who} died: {first.detail}"}
        lines.append(told.get(first.kind, f"{first.kind}: {who}: {first.detail}"))
    planned = [f"{counts[kind]} {texts[counts[kind] > 1]}" for kind, texts in _PLANNED.items() if kind in counts]
    return lines + ([f"scenario: {', '.join(planned)}"] if planned else [])
