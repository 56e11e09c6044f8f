"""The picture of a run in progress, as wide as the terminal and never higher."""

from collections.abc import Iterable, Sequence

from rich.console import Group
from rich.text import Text

from ..text import UNKNOWN, clock, metric_text, short, size
from .progress import Place, starting, title, told
from .snapshot import Snapshot

_WIDEST = 160
_LABEL = 11
_HEIGHTS = "▁▂▃▄▅▆▇█"
_EVENTS = 6
_FIXED_LINES = 13

# Blue and vermilion of Okabe and Ito: told apart by every eye, and legible on black and on white.
_ACCENT, _TROUBLE = "#0072b2", "bold #d55e00"
_QUIET, _STRONG = "dim", "bold"
_TROUBLES = ("crash", "death", "warning", "waiting", "lost-records")


def draw(snapshot: Snapshot, place: Place, width: int, height: int, busy_with: str = "") -> Group:
    """Lines of at most ``width`` columns, fewer than ``height`` of them; what has no figure yet keeps its line."""
    width = min(width - 1, _WIDEST)  # in its last column a terminal may already wrap
    lines = [_header(snapshot, place, width), Text()]
    lines += list(_rounds(snapshot, width))
    lines += [_labelled(label, content) for label, content in _figures(snapshot, width)]
    if busy_with:
        lines.append(_labelled("", Text(busy_with, style=_STRONG)))
    if news := told(snapshot.events)[-min(_EVENTS, max(0, height - _FIXED_LINES)) :]:
        lines.append(Text())
    for wall_s, kind, text in news:
        lines.append(Text(f"{clock(max(0.0, wall_s)):>7}  ", style=_QUIET))
        lines[-1].append(f"{kind:<9}", style=_TROUBLE if kind in _TROUBLES else _STRONG).append(text.replace("\n", " "))
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return Group(*lines[: max(1, height - 1)])


def _header(snapshot: Snapshot, place: Place, width: int) -> Text:
    times = "starting"
    if snapshot.has_ended:
        times = f"{snapshot.state} after {clock(snapshot.elapsed_s)}"
    elif snapshot.state == "running":
        left_s = UNKNOWN if snapshot.left_s is None else f"about {clock(snapshot.left_s)}"
        times = f"{clock(snapshot.elapsed_s)} · {left_s} left"
    right = Text(times, style=_STRONG if snapshot.has_ended else "")
    left = Text(snapshot.name, style=_STRONG)
    for part in (snapshot.algorithm, str(place)):
        if part not in ("", snapshot.name):
            left.append(f" · {part}", style=_QUIET)
    left.truncate(max(1, width - right.cell_len - 2), overflow="ellipsis", pad=True)
    return left.append("  ").append_text(right)


def _rounds(snapshot: Snapshot, width: int) -> Iterable[Text]:
    done = snapshot.completed
    least, middle, most = (done[0], done[(len(done) - 1) // 2], done[-1]) if done else (0, 0, 0)
    words = Text(f"{least}" if least == most else f"{least} · {middle} · {most}", style=_STRONG)
    words.append(f" of {snapshot.rounds}")
    words.append("  least · median · most" if least < most else "", style=_QUIET)
    words.append(f"  {snapshot.gone} gone" if snapshot.gone else "", style=_TROUBLE)
    yield _labelled("rounds", Text(starting(snapshot)) if snapshot.state == "starting" else words)
    share = f" {100 * least / max(1, snapshot.rounds):3.0f} %"
    columns = max(1, width - _LABEL - len(share))
    yield _labelled("clients", Text(_hill(done, snapshot.rounds, columns), style=_ACCENT))
    yield _labelled("", _bar(least, most, snapshot.rounds, columns).append(share))


def _column(last: int, rounds: int, columns: int) -> int:
    return min(columns, last * columns // max(1, rounds))


def _hill(done: Sequence[int], rounds: int, columns: int) -> str:
    """Above each place of the bar, how many clients are there: one is seen, all fill the line."""
    at = [0] * columns
    for last in done:
        at[max(0, _column(last, rounds, columns) - 1)] += 1
    most = max(at)
    return "".join(_HEIGHTS[(len(_HEIGHTS) - 1) * count // most] if count else " " for count in at)


def _bar(least: int, most: int, rounds: int, columns: int) -> Text:
    """Done by all, done by some, to be done."""
    full, some = _column(least, rounds, columns), _column(most, rounds, columns)
    bar = Text("━" * full, style=_ACCENT)
    bar.append("╍" * (some - full), style=_ACCENT)
    return bar.append("─" * (columns - some), style=_QUIET)


def _figures(snapshot: Snapshot, width: int) -> Iterable[tuple[str, Text]]:
    value = None if snapshot.metric is None else metric_text(snapshot.metric_name, snapshot.metric)
    curve = sparkline(snapshot.history, snapshot.rounds, width - _LABEL - 10)
    yield title(snapshot), _value(value).append(curve, style=_ACCENT)
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
    """A figure, and what there is to say beside it where it is known."""
    if text is None:
        return Text(f"{UNKNOWN:<10}", style=_STRONG)
    return Text(f"{text:<10}", style=_STRONG).append(more, style=_QUIET)


def sparkline(history: Sequence[tuple[int, float]], rounds: int, columns: int) -> str:
    """Drawn along the rounds, as far as they are evaluated: in a column the value of its last round that has one."""
    if not history:
        return ""
    values: list[float] = []
    for number, value in history:
        column = min(columns - 1, number * columns // max(1, rounds))
        values += [values[-1] if values else value] * (column - len(values))
        values[column:] = [value]
    low, high = min(values), max(values)
    if low == high:
        return _HEIGHTS[0] * len(values)
    return "".join(_HEIGHTS[round((len(_HEIGHTS) - 1) * (value - low) / (high - low))] for value in values)


def _labelled(label: str, content: Text) -> Text:
    return Text(f"{label:<{_LABEL}}", style=_QUIET).append_text(content)
