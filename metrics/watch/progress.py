"""How a run in progress is told in words and numbers, in a line or on a screen. MB are 10^6 bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .snapshot import Event, Snapshot

UNKNOWN = "–"
_COMPARED = 200
"""Characters of a detail: the search for numbers takes the square of them."""

_COUNTED = {"crash": "crashes", "death": "deaths", "leave": "leaves", "restart": "restarts", "join": "joins"}


class Place(NamedTuple):
    """The ``number``-th of the ``total`` runs that go one after the other."""

    number: int = 1
    total: int = 1

    def __str__(self) -> str:
        return f"{self.number} of {self.total}" if self.total > 1 else ""


def line(snapshot: Snapshot, place: Place = Place()) -> str:
    """All in one line, for a log."""
    name = f"{snapshot.name} ({place})" if place.total > 1 and not snapshot.has_ended else snapshot.name
    return f"{name}: {', '.join(_parts(snapshot))}"


def _parts(snapshot: Snapshot) -> Iterable[str]:
    if snapshot.state == "starting":
        yield starting(snapshot)
        return
    if snapshot.has_ended:
        yield f"{snapshot.state} after {duration(snapshot.elapsed_s)}"
    if snapshot.state != "finished":
        yield f"round {rounds(snapshot)} of {snapshot.rounds}"
    if snapshot.metric is not None:
        yield f"{title(snapshot)} {metric(snapshot, snapshot.metric)}"
    if snapshot.payload_bytes:
        yield f"{size(snapshot.payload_bytes)} sent"
    if snapshot.memory_bytes is not None and snapshot.memory_of == len(snapshot.completed) and not snapshot.has_ended:
        yield f"{size(snapshot.memory_bytes)} of memory"
    yield from counts(snapshot)
    if not snapshot.has_ended:
        yield duration(snapshot.elapsed_s)
    if snapshot.left_s is not None:
        yield f"about {duration(snapshot.left_s)} left"


def starting(snapshot: Snapshot) -> str:
    return f"{snapshot.started} of {snapshot.clients} clients have started"


def rounds(snapshot: Snapshot) -> str:
    """Of the slowest and the fastest client that are there."""
    if not snapshot.completed:
        return UNKNOWN
    least, most = snapshot.completed[0], snapshot.completed[-1]
    return f"{least}" if least == most else f"{least} to {most}"


def counts(snapshot: Snapshot) -> list[str]:
    """Comings and goings, and warnings, where there were any."""
    words = _COUNTED | {"warning": "warnings"}
    number = snapshot.counts
    return [f"{number[kind]} {word if number[kind] > 1 else kind}" for kind, word in words.items() if number.get(kind)]


def title(snapshot: Snapshot) -> str:
    return "accuracy" if snapshot.metric_name == "accuracy" else "test MSE"


def metric(snapshot: Snapshot, value: float) -> str:
    return f"{100 * value:.1f} %" if snapshot.metric_name == "accuracy" else f"{value:.4g}"


def size(count: float) -> str:
    """Three digits: 1.23 MB, 12.3 MB, 123 MB."""
    unit, *larger = ("B", "kB", "MB", "GB", "TB")
    while count >= 999.5 and larger:
        count, unit = count / 1000, larger.pop(0)
    digits = 0 if unit == "B" or count >= 99.95 else 1 if count >= 9.995 else 2
    return f"{count:.{digits}f} {unit}"


def duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def virtual(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.1f} s"


class Told(NamedTuple):
    """Events of one kind that came one after the other; the time is that of the latest."""

    wall_s: float
    kind: str
    text: str


def told(events: Sequence[Event]) -> list[Told]:
    """What differs only in the client or in a number is told once, of the latest client, with how many others."""
    runs: list[list[Event]] = []
    for event in events:
        if runs and _kin(runs[-1][-1]) == _kin(event):
            runs[-1].append(event)
        else:
            runs.append([event])
    return [Told(alike[-1].wall_s, alike[-1].kind, _who(alike) + ": " + alike[-1].detail) for alike in runs]


def _kin(event: Event) -> tuple[str, str]:
    return event.kind, re.sub(r"[\d.e+-]*\d", "#", event.detail[:_COMPARED])


def _who(alike: Sequence[Event]) -> str:
    latest = alike[-1]
    others = len({event.node for event in alike} - {latest.node})
    return latest.who + (f" and {others} more" if others else "")
