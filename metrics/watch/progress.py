"""How a run in progress is told in words and numbers, in a line or on a screen. MB are 10^6 bytes."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from ..events import Event, who_of
from ..text import UNKNOWN, clock, metric_text, size
from .snapshot import Snapshot

_COUNTED = {
    **{"crash": "crashes", "death": "deaths", "leave": "leaves", "restart": "restarts", "join": "joins"},
    "warning": "warnings",
}


class Place(NamedTuple):
    """The ``number``-th of the ``total`` runs that go one after the other."""

    number: int = 1
    total: int = 1

    def __str__(self) -> str:
        return f"{self.number} of {self.total}" if self.total > 1 else ""


def line(snapshot: Snapshot, place: Place = Place()) -> str:
    """Returns all in one line, for a log."""
    name = f"{snapshot.name} ({place})" if place.total > 1 and not snapshot.has_ended else snapshot.name
    return f"{name}: {', '.join(_parts(snapshot))}"


def _parts(snapshot: Snapshot) -> Iterable[str]:
    if snapshot.state == "starting":
        yield starting(snapshot)
        return
    if snapshot.has_ended:
        yield f"{snapshot.state} after {clock(snapshot.elapsed_s)}"
    if snapshot.state != "finished":
        ends = [f"{last}" for last in dict.fromkeys(snapshot.completed[:1] + snapshot.completed[-1:])]
        yield f"round {' to '.join(ends) or UNKNOWN} of {snapshot.rounds}"
    if snapshot.metric is not None:
        yield f"{title(snapshot)} {metric_text(snapshot.metric_name, snapshot.metric)}"
    if snapshot.payload_bytes:
        yield f"{size(snapshot.payload_bytes)} sent"
    if snapshot.memory_bytes is not None and snapshot.memory_of == len(snapshot.completed) and not snapshot.has_ended:
        yield f"{size(snapshot.memory_bytes)} of memory"
    for kind, several in _COUNTED.items():
        if number := snapshot.counts.get(kind):
            yield f"{number} {several if number > 1 else kind}"
    if not snapshot.has_ended:
        yield clock(snapshot.elapsed_s)
    if snapshot.left_s is not None:
        yield f"about {clock(snapshot.left_s)} left"


def starting(snapshot: Snapshot) -> str:
    return f"{snapshot.started} of {snapshot.clients} clients have started"


def title(snapshot: Snapshot) -> str:
    return "accuracy" if snapshot.metric_name == "accuracy" else "test MSE"


def told(events: Sequence[Event]) -> list[tuple[float, str, str]]:
    """(wall seconds, kind, text) of events that follow each other and differ only in the client or in a number: of the
    latest, with how many others."""
    runs = [list(group) for _, group in groupby(events, key=lambda event: event.pattern)]
    return [(run[-1].wall_s, run[-1].kind, f"{who_of(run, run[-1])}: {run[-1].detail}") for run in runs]
