"""A plan for the terminal: its figures, and what each client does when, a line each."""

import math
import textwrap
from collections.abc import Iterator, Sequence

import numpy as np

from ...metrics.text import short
from ..config.sections import RunConfig
from .timeline import Stretches, Timeline, shares

_NAME_WIDTH = 36
_EVENTS_SHOWN = 12
_NAMES_SHOWN = 3
_AWAITED_SHOWN = 5
_SHADES = "·░▒▓█"
"""Share of a moment that is local work, the rest being waiting: almost none, a quarter, half, three quarters, all."""
_VERBS = {"crash": "crashes", "leave": "leaves", "join": "joins", "restart": "restarts"}
_AWAY, _GONE, _BACK = "╌", "×", "↑"
_LEGEND = (
    "█ ▓ ▒ ░ local work all, 3/4, 1/2, 1/4 of the time",
    "· waiting",
    f"{_AWAY} away",
    f"{_GONE} crashes, leaves",
    f"{_BACK} joins, comes back",
)


def report(
    config: RunConfig, timeline: Timeline, stretches: Sequence[Stretches], width: int, lines: int
) -> Iterator[str]:
    """Figures and lines of one run; ``width`` and ``lines`` as in ``picture``."""
    clock = "" if config.time.clock == "virtual" else "; on the wall clock, the run follows this only roughly"
    yield f"a local step takes {config.compute.step_s:.4g} s{clock}"
    yield ""
    yield from figures(timeline)
    yield ""
    yield from picture(timeline, stretches, width, lines)


def figures(timeline: Timeline) -> Iterator[str]:
    """A line each."""
    for name, value in _rows(timeline):
        yield f"{name:<{_NAME_WIDTH}}{value}".rstrip()
    events = [
        f"{_s(when)}: client {client} {_VERBS.get(kind, kind)} {detail}"
        for when, client, kind, detail in timeline.events
    ]
    yield from _list("events", events)
    yield from _list("for a while", [text if at is None else f"{_s(at)}: {text}" for at, text in timeline.conditions])


def picture(timeline: Timeline, stretches: Sequence[Stretches], width: int, lines: int) -> Iterator[str]:
    """``lines`` clients on lines of at most ``width`` characters, with an axis in virtual seconds and a legend."""
    shown = stretches[: max(1, lines)]
    label = len(str(len(shown) - 1)) + 1
    cells = max(10, width - label)
    edges = np.linspace(0.0, timeline.end_s or 1.0, cells + 1)
    for client, own in enumerate(shown):
        yield f"{client:>{label - 1}} {_line(own, edges)}".rstrip()
    yield " " * label + _axis(timeline.end_s, cells)
    legend = "   ".join(part.replace(" ", "\xa0") for part in _LEGEND)  # a line ends between two parts only
    yield from (line.replace("\xa0", " ") for line in textwrap.wrap(legend, width, break_long_words=False))
    if len(shown) < len(stretches):
        yield f"The first {len(shown)} of {len(stretches)} clients; --lines shows more."


def _rows(timeline: Timeline) -> Iterator[tuple[str, str]]:
    yield "clients, rounds", f"{timeline.clients}, {timeline.rounds}"
    yield "total time", _s(timeline.end_s)
    ends = timeline.finishing.values()
    if ends:
        spread = f"{_s(min(ends))} / {_s(timeline.median_end_s)} / {_s(max(ends))}"
        yield "clients end at (first/median/last)", spread
        yield "last to end", _named(timeline.last_to_finish(_NAMES_SHOWN))
    if timeline.leaving:
        yield "clients that are gone by the end", str(timeline.leaving)
    yield "most local work", _named(timeline.longest_at_work(_NAMES_SHOWN))
    away = f", and away for {_s(sum(timeline.away_s))}" if sum(timeline.away_s) else ""
    share = timeline.waiting_share
    yield "clients' time", f"{1 - share:.1%} local work, {share:.1%} waiting{away}"
    of_sent = f"lost {_count(timeline.lost, timeline.sent)}, never used {_count(timeline.unused, timeline.sent)}"
    yield (
        "messages sent",
        f"{timeline.sent:,}: {of_sent}"
        + (f", sent twice {_count(timeline.doubled, timeline.sent)}" if timeline.doubled else ""),
    )
    if timeline.withheld:
        yield "messages not sent", f"{timeline.withheld:,}: the link is cut, or the neighbour is away"
    total = sum(timeline.ages.values())
    yield "vectors that clients use, by age", f"{total:,}"
    for age, count in timeline.ages.items():
        if count:
            yield f"  {age}", f"{count:>{len(f'{total:,}')},} {count / total:>6.1%} {'█' * round(30 * count / total)}"
    yield "waits ended by the deadline", f"{timeline.deadlines:,}"
    for number, awaited in enumerate(timeline.awaited[:_AWAITED_SHOWN]):
        part = awaited.seconds / timeline.awaited_s
        value = f"client {awaited.client}: {_s(awaited.seconds)} ({part:.1%}), in {awaited.rounds} rounds of neighbours"
        yield "" if number else "waited for most", value


def _list(name: str, entries: Sequence[str]) -> Iterator[str]:
    for number, entry in enumerate(entries[:_EVENTS_SHOWN]):
        yield f"{'' if number else name:<{_NAME_WIDTH}}{entry}"
    if len(entries) > _EVENTS_SHOWN:
        yield f"{'':<{_NAME_WIDTH}}and {len(entries) - _EVENTS_SHOWN} more"


def _named(clients: Sequence[tuple[int, float]]) -> str:
    return ", ".join(f"client {client} ({_s(seconds)})" for client, seconds in clients)


def _count(count: int, total: int) -> str:
    return f"{count:,} ({count / total:.1%})" if count else "0"


def _s(seconds: float) -> str:
    return f"{short(seconds, 4)} s"


def _line(own: Stretches, edges: np.ndarray) -> str:
    working, waiting, away = (shares(part, edges) for part in (own.computing, own.waiting, own.away))
    there = working + waiting
    with np.errstate(invalid="ignore"):
        level = np.rint(4 * np.nan_to_num(working / there)).astype(int)
    marks = [
        " " if not (seconds or gone) else _AWAY if gone > seconds else _SHADES[shade]
        for seconds, gone, shade in zip(there.tolist(), away.tolist(), level.tolist(), strict=True)
    ]
    for moment, mark in [*((when, _GONE) for when, _ in own.ends), *((when, _BACK) for when in own.returns)]:
        marks[min(len(marks) - 1, int(np.searchsorted(edges, moment, side="right")) - 1)] = mark
    return "".join(marks)


def _axis(end_s: float, cells: int) -> str:
    """Round numbers of seconds under the moments they stand for."""
    if not end_s:
        return "0 s"
    step = _round_step(end_s / max(1, cells // 12))
    decimals = max(0, -math.floor(math.log10(step)))
    text = ""
    for number in range(math.floor(end_s / step + 1e-9) + 1):
        at, label = round(number * step / end_s * cells), f"{number * step:,.{decimals}f}"
        if not number:
            text = "0"
        elif at - len(text) >= 1 and at + len(label) <= cells:
            text = f"{text:<{at}}{label}"
    return f"{text} s"


def _round_step(least: float) -> float:
    unit = 10.0 ** math.floor(math.log10(least))
    return next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= least * (1 - 1e-9))
