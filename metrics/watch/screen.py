"""A run in progress as a line, and as a picture as wide as the terminal and never higher. MB are 10^6 bytes."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from rich.console import Group
from rich.text import Text

from ..events import who_of
from ..text import UNKNOWN, clock, metric_text, remaining, short, size
from .snapshot import Snapshot

_COUNTED = ("crash", "death", "leave", "restart", "join", "warning")
_WIDEST = 160
_LABEL = 11
_HEIGHTS = "▁▂▃▄▅▆▇█"
_EVENTS = 6
_FIXED_LINES = 13
# Blue and vermilion of Okabe and Ito: told apart by every eye, and legible on black and on white.
_ACCENT, _TROUBLE = "#0072b2", "bold #d55e00"
_QUIET, _STRONG = "dim", "bold"
_TROUBLES = ("crash", "death", "warning", "waiting", "lost-records")


class Place(NamedTuple):
    """The ``number``-th of the ``total`` runs that go one after the other."""

    number: int = 1
    total: int = 1

    def __str__(self) -> str:
        return f"{self.number} of {self.total}" if self.total > 1 else ""


def line(snapshot: Snapshot, place: Place = Place()) -> str:
    name = f"{snapshot.name} ({place})" if place.total > 1 and not snapshot.has_ended else snapshot.name
    return f"{name}: {', '.join(_parts(snapshot))}"


def _parts(snapshot: Snapshot) -> Iterable[str]:
    if snapshot.state == "starting":
        yield _started(snapshot)
        return
    if snapshot.has_ended:
        yield f"{snapshot.state} after {clock(snapshot.elapsed_s)}"
    if snapshot.state != "finished":
        ends = [f"{last}" for last in dict.fromkeys(snapshot.completed[:1] + snapshot.completed[-1:])]
        yield f"round {' to '.join(ends) or UNKNOWN} of {snapshot.rounds}"
    if snapshot.metric is not None:
        yield f"{_title(snapshot)} {metric_text(snapshot.metric_name, snapshot.metric)}"
    if snapshot.payload_bytes:
        yield f"{size(snapshot.payload_bytes)} sent"
    if snapshot.memory_bytes is not None and snapshot.memory_of == len(snapshot.completed) and not snapshot.has_ended:
        yield f"{size(snapshot.memory_bytes)} of memory"
    for kind in _COUNTED:
        if number := snapshot.counts.get(kind):
            yield f"{number} {kind}{'' if number == 1 else 'es' if kind == 'crash' else 's'}"
    if not snapshot.has_ended:
        yield clock(snapshot.elapsed_s)
    if snapshot.left_s is not None:
        yield remaining(snapshot.left_s)


def _started(snapshot: Snapshot) -> str:
    return f"{snapshot.started} of {snapshot.clients} clients have started"


def _title(snapshot: Snapshot) -> str:
    return "accuracy" if snapshot.metric_name == "accuracy" else "test MSE"


def draw(snapshot: Snapshot, place: Place, width: int, height: int, busy_with: str = "") -> Group:
    """Returns less than ``height`` lines of at most ``width`` columns; what has no figure yet keeps its line."""
    width = min(width - 1, _WIDEST)  # in its last column a terminal may already wrap
    lines = [_header(snapshot, place, width), Text()]
    for label, content in (*_rounds(snapshot, width), *_figures(snapshot, width)):
        lines.append(Text(f"{label:<{_LABEL}}", style=_QUIET).append_text(content))
    if busy_with:
        lines.append(Text(" " * _LABEL).append(busy_with, style=_STRONG))
    # Of events that follow each other and differ only in the client or in a number, the latest
    alike = [list(group) for _, group in groupby(snapshot.events, key=lambda event: event.pattern)]
    if news := alike[-min(_EVENTS, max(0, height - _FIXED_LINES)) :]:
        lines.append(Text())
    for events in news:
        last, text = events[-1], f"{who_of(events, events[-1])}: {events[-1].detail}".replace("\n", " ")
        lines.append(Text(f"{clock(max(0.0, last.wall_s)):>7}  ", style=_QUIET))
        lines[-1].append(f"{last.kind:<9}", style=_TROUBLE if last.kind in _TROUBLES else _STRONG).append(text)
    for each in lines:
        each.no_wrap = True
        each.truncate(width, overflow="ellipsis")
    return Group(*lines[: max(1, height - 1)])


def _header(snapshot: Snapshot, place: Place, width: int) -> Text:
    times = "starting"
    if snapshot.has_ended:
        times = f"{snapshot.state} after {clock(snapshot.elapsed_s)}"
    elif snapshot.state == "running":
        left_s = f"{UNKNOWN} left" if snapshot.left_s is None else remaining(snapshot.left_s)
        times = f"{clock(snapshot.elapsed_s)} · {left_s}"
    right = Text(times, style=_STRONG if snapshot.has_ended else "")
    left = Text(snapshot.name, style=_STRONG)
    for part in (snapshot.algorithm, str(place)):
        if part not in ("", snapshot.name):
            left.append(f" · {part}", style=_QUIET)
    left.truncate(max(1, width - right.cell_len - 2), overflow="ellipsis", pad=True)
    return left.append("  ").append_text(right)


def _rounds(snapshot: Snapshot, width: int) -> Iterable[tuple[str, Text]]:
    """Yields rounds in numbers; how many clients are at each place of the bar; the bar: done by all, by some, to do."""
    done, rounds = snapshot.completed, max(1, snapshot.rounds)
    least, middle, most = (done[0], done[(len(done) - 1) // 2], done[-1]) if done else (0, 0, 0)
    words = Text(f"{least}" if least == most else f"{least} · {middle} · {most}", style=_STRONG)
    words.append(f" of {snapshot.rounds}")
    words.append("  least · median · most" if least < most else "", style=_QUIET)
    words.append(f"  {snapshot.gone} gone" if snapshot.gone else "", style=_TROUBLE)
    yield "rounds", Text(_started(snapshot)) if snapshot.state == "starting" else words

    share = f" {100 * least / rounds:3.0f} %"
    columns = max(1, width - _LABEL - len(share))
    counts = [0] * columns
    for last in done:
        counts[max(0, min(columns, last * columns // rounds) - 1)] += 1
    hill = (_HEIGHTS[(len(_HEIGHTS) - 1) * count // max(counts)] if count else " " for count in counts)
    yield "clients", Text("".join(hill), style=_ACCENT)

    full, some = (min(columns, last * columns // rounds) for last in (least, most))
    bar = Text("━" * full + "╍" * (some - full), style=_ACCENT)
    yield "", bar.append("─" * (columns - some), style=_QUIET).append(share)


def _figures(snapshot: Snapshot, width: int) -> Iterable[tuple[str, Text]]:
    value = None if snapshot.metric is None else metric_text(snapshot.metric_name, snapshot.metric)
    curve = sparkline(snapshot.history, snapshot.rounds, width - _LABEL - 10)
    yield _title(snapshot), _value(value).append(curve, style=_ACCENT)
    known = snapshot.payload_bytes is not None and snapshot.state != "starting"
    rate = "" if snapshot.payload_per_s is None else f"{size(snapshot.payload_per_s)}/s"
    yield "sent", _value(size(snapshot.payload_bytes or 0) if known else None, rate)
    there = len(snapshot.completed)
    of = f"{snapshot.memory_of}{'' if snapshot.memory_of == there else f' of {there}'} clients"
    yield "memory", _value(None if snapshot.memory_bytes is None else size(snapshot.memory_bytes), of)
    longest = "" if snapshot.waited_for is None else f", longest for {snapshot.waited_for}"
    share = None if snapshot.waited is None else f"{100 * snapshot.waited:.0f} %"
    yield "waiting", _value(share, f"of the clients' time{longest}")
    if snapshot.virtual_s is not None:
        yield "virtual", _value(f"{short(snapshot.virtual_s)} s")
    if snapshot.cause:
        yield "", Text(snapshot.cause, style=_TROUBLE)


def _value(text: str | None, more: str = "") -> Text:
    known = text is not None
    return Text(f"{text if known else UNKNOWN:<10}", style=_STRONG).append(more if known else "", style=_QUIET)


def sparkline(history: Sequence[tuple[int, float]], rounds: int, columns: int) -> str:
    """Draws each column's latest value along the rounds, as far as they are evaluated."""
    values: list[float] = []
    for number, value in history:
        column = min(columns - 1, number * columns // max(1, rounds))
        values += [values[-1] if values else value] * (column - len(values))
        values[column:] = [value]
    low = min(values, default=0.0)
    span = max(values, default=0.0) - low or 1.0
    return "".join(_HEIGHTS[round((len(_HEIGHTS) - 1) * (value - low) / span)] for value in values)
