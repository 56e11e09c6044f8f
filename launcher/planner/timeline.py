"""A plan's figures, and who does what when, as text and as a picture. Seconds are virtual; a server is no client."""

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from ...metrics.text import short
from ...topology.picture import LOOK, RASTER_FROM, legend_below, literal, new_figure, save_picture
from .plan import Incarnation, Plan

# How old the message is that a client uses, in rounds, against its own round
_AGES = ("same round", "1 older", "2 to 4 older", "5 or more older", "newer", "none: goes without")
_EVENTS_SHOWN, _NAMES_SHOWN, _AWAITED_SHOWN = 12, 3, 5
_SHADES = "·░▒▓█"  # share of a moment that is local work, the rest being waiting: almost none, a quarter, ..., all
_VERBS = {"crash": "crashes", "leave": "leaves", "join": "joins", "restart": "restarts"}
_AWAY, _GONE, _BACK = "╌", "×", "↑"
_LEGEND = (
    "█ ▓ ▒ ░ local work all, 3/4, 1/2, 1/4 of the time",
    "· waiting",
    f"{_AWAY} away",
    f"{_GONE} crashes, leaves",
    f"{_BACK} joins, comes back",
)
# Of Okabe and Ito's colours, told apart with every common colour blindness, and by their lightness too
_BARS = {"computing": ("local work", "#0072B2"), "waiting": ("waiting", "#F5C26B"), "away": ("away", "#E2E2E2")}
_MARKS = {"ends": ("crashes, leaves", "X", "#B23A00"), "returns": ("joins, is back", ">", "#007A5A")}


class Stretches(NamedTuple):
    """What a client does when: arrays (n, 2) of start and end in virtual seconds, ascending, and moments."""

    computing: np.ndarray
    waiting: np.ndarray
    away: np.ndarray
    ends: tuple[float, ...]  # it crashes or leaves
    returns: tuple[float, ...]  # it joins late or comes back


def stretches_of(plan: Plan) -> list[Stretches]:
    # When local work ends, by client and round, where an exchange follows the work: the last message tells.
    messages, work_ends = plan.messages.columns, np.full((len(plan.schedules), len(plan.schedules[0].start)), np.inf)
    tells = slice(None) if plan.learns_first else messages["phase"] > 0
    work_ends[messages["src"][tells], messages["round"][tells] - 1] = messages["sent_s"][tells]
    found = []
    for schedule, incarnations, ends in zip(plan.schedules, plan.incarnations, work_ends, strict=True):
        there = ~np.isnan(schedule.end)
        start, end, seconds = schedule.start[there], schedule.end[there], np.nan_to_num(schedule.compute[there])
        done = np.minimum(ends[there], end)
        begun = np.maximum(start, done - seconds)
        if plan.meets:  # it works until its own meetings begin, whatever rounds come to an end meanwhile
            works = ~np.isnan(schedule.compute[there])
            end = end[works]
            done = end - schedule.idle[there][works]
            start = begun = done - seconds[works]
        pauses = np.stack([start, begun, done, end], axis=1).reshape(-1, 2)
        own = Stretches(
            computing=np.stack([begun, done], axis=1),
            waiting=pauses[pauses[:, 1] - pauses[:, 0] > 1e-9 * max(1.0, plan.end_s)],  # rather than round-off
            away=np.array(_away(incarnations, plan.end_s)).reshape(-1, 2),
            ends=tuple(each.end_s for each in incarnations if each.ending != "finish"),
            returns=tuple(each.start_s for each in incarnations if each.number > 1 or each.first > 1 or each.start_s),
        )
        found.append(own)
    return found[: plan.clients]


def _away(incarnations: Sequence[Incarnation], end_s: float) -> list[tuple[float, float]]:
    """Returns when a client is not there: before it joins, and from each crash or leave until it is back."""
    gone = [0.0, *(each.end_s if each.ending != "finish" else end_s for each in incarnations)]
    back = [*(each.start_s for each in incarnations), end_s]
    return [(start, end) for start, end in zip(gone, back, strict=True) if end > start]


def shares(stretches: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Returns the seconds of the stretches that fall between each two of the edges, which ascend."""
    # Of the seconds before a moment: all that have begun, less what of the last one comes after it.
    start, end = np.vstack([[[-np.inf, -np.inf]], stretches]).T
    so_far = np.cumsum(np.concatenate([[0.0], end[1:] - start[1:]]))
    index = np.searchsorted(start, edges, side="right") - 1
    return np.diff(so_far[index] - np.maximum(0, end[index] - edges))


def figures(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yields (name, value) of each; where several have one name, it is that of the first."""
    yield from _times(plan)
    yield from _messages(plan)
    yield "waits ended by the deadline", f"{sum(int(schedule.deadlines.sum()) for schedule in plan.schedules):,}"
    awaited = _awaited(plan)[:_AWAITED_SHOWN]
    events = [f"{_s(at)}: client {i} {_VERBS.get(kind, kind)} {detail}" for at, i, kind, detail in plan.events]
    conditions = [text if at is None else f"{_s(at)}: {text}" for at, text in plan.conditions]
    for name, entries in (("waited for most", awaited), ("events", events), ("for a while", conditions)):
        if len(entries) > _EVENTS_SHOWN:
            entries = [*entries[:_EVENTS_SHOWN], f"and {len(entries) - _EVENTS_SHOWN} more"]
        yield from zip([name, *[""] * len(entries)], entries, strict=False)


def _times(plan: Plan) -> Iterator[tuple[str, str]]:
    own, incarnations = plan.schedules[: plan.clients], plan.incarnations[: plan.clients]
    yield "clients, rounds", f"{plan.clients}, {len(plan.schedules[0].start)}"
    yield "total time", _s(plan.end_s)
    finishing = {i: each[-1].end_s for i, each in enumerate(incarnations) if each and each[-1].ending == "finish"}
    if ends := finishing.values():
        yield "clients end at (first/median/last)", " / ".join(map(_s, (min(ends), median(ends), max(ends))))
        yield "last to end", _longest(finishing.items())
    if leaving := plan.clients - len(finishing):  # they go for good, or never come
        yield "clients that are gone by the end", str(leaving)
    computing = [float(np.nansum(schedule.compute)) for schedule in own]
    yield "most local work", _longest(enumerate(computing))
    waiting = sum(float(schedule.idle.sum()) for schedule in own)
    away = sum(sum(end - start for start, end in _away(each, plan.end_s)) for each in incarnations)
    there = sum(computing) + waiting
    share = waiting / there if there else 0.0
    away_for = f", and away for {_s(away)}" if away else ""
    yield "clients' time", f"{1 - share:.1%} local work, {share:.1%} waiting{away_for}"


def _messages(plan: Plan) -> Iterator[tuple[str, str]]:
    copies = plan.messages.columns["copies"]
    # Neither lost nor ever used: a fresher one came before, or nobody was there to use it.
    unused = sum(int(((schedule.copies > 0) & (schedule.needed == 0)).sum()) for schedule in plan.schedules)
    parts = {"lost": int((copies == 0).sum()), "never used": unused, "sent twice": int((copies > 1).sum())}
    of_sent = [f"{name} {n:,} ({n / len(copies):.1%})" if n else f"{name} 0" for name, n in parts.items()]
    yield "messages sent", f"{len(copies):,}: {', '.join(of_sent if parts['sent twice'] else of_sent[:2])}"
    if plan.withheld:
        yield "messages not sent", f"{plan.withheld:,}: the link is cut, or the neighbour is away"
    used = np.concatenate([schedule.uses[asked] for schedule, asked in zip(plan.schedules, plan.asked, strict=True)])
    older = np.concatenate([np.nonzero(asked)[0] + 1 for asked in plan.asked]) - used
    kind = np.select([used == 0, older < 0, older == 0, older == 1, older <= 4], [5, 4, 0, 1, 2], default=3)
    total = len(used)
    yield "vectors that clients use, by age", f"{total:,}"
    for age, count in zip(_AGES, np.bincount(kind, minlength=len(_AGES)).tolist(), strict=True):
        if count:
            yield f"  {age}", f"{count:>{len(f'{total:,}')},} {count / total:>6.1%} {'█' * round(30 * count / total)}"


def _awaited(plan: Plan) -> list[str]:
    """Returns whom others wait for, a wait counting for the one that came last; with a server, whom it waits for."""
    waits = plan.schedules[plan.clients :] or plan.schedules
    total = float(sum(schedule.idle.sum() for schedule in waits))
    seconds, rounds = np.zeros(len(plan.schedules)), np.zeros(len(plan.schedules), int)
    for schedule in waits:
        waited = schedule.waited_for >= 0
        np.add.at(seconds, schedule.waited_for[waited], schedule.idle[waited])
        np.add.at(rounds, schedule.waited_for[waited], 1)
    return [
        f"client {i}: {_s(seconds[i])} ({seconds[i] / total:.1%}), in {rounds[i]} rounds of neighbours"
        for i in np.argsort(-seconds, kind="stable").tolist()
        if rounds[i]
    ]


def lines_of(plan: Plan, width: int, lines: int) -> Iterator[str]:
    """Yields ``lines`` clients on lines of at most ``width`` characters, then an axis in seconds and a legend."""
    stretches = stretches_of(plan)
    shown = stretches[: max(1, lines)]
    label = len(str(len(shown) - 1)) + 1
    cells = max(10, width - label)
    edges = np.linspace(0.0, plan.end_s or 1.0, cells + 1)
    for client, own in enumerate(shown):
        yield f"{client:>{label - 1}} {_line(own, edges)}".rstrip()
    yield " " * label + _axis(plan.end_s, cells)
    legend = "   ".join(part.replace(" ", "\xa0") for part in _LEGEND)  # a line ends between two parts only
    yield from (line.replace("\xa0", " ") for line in textwrap.wrap(legend, width, break_long_words=False))
    if len(shown) < len(stretches):
        yield f"The first {len(shown)} of {len(stretches)} clients; --lines shows more."


def _longest(clients: Iterable[tuple[int, float]]) -> str:
    longest = sorted(clients, key=lambda item: -item[1])[:_NAMES_SHOWN]
    return ", ".join(f"client {client} ({_s(seconds)})" for client, seconds in longest)


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
    for moments, mark in ((own.ends, _GONE), (own.returns, _BACK)):
        for moment in moments:
            marks[min(len(marks) - 1, int(np.searchsorted(edges, moment, side="right")) - 1)] = mark
    return "".join(marks)


def _axis(end_s: float, cells: int) -> str:
    """Returns round numbers of seconds under the moments they stand for."""
    if not end_s:
        return "0 s"
    least = end_s / max(1, cells // 12)
    unit = 10.0 ** math.floor(math.log10(least))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= least * (1 - 1e-9))
    decimals = max(0, -math.floor(math.log10(step)))
    text = "0"
    for number in range(1, math.floor(end_s / step + 1e-9) + 1):
        at, label = round(number * step / end_s * cells), f"{number * step:,.{decimals}f}"
        if at - len(text) >= 1 and at + len(label) <= cells:
            text = f"{text:<{at}}{label}"
    return f"{text} s"


def draw(plan: Plan, path: Path, title: str) -> None:
    """Writes ``path`` in the format of its ending. Raises UserError where it cannot be written."""
    import matplotlib

    stretches = stretches_of(plan)
    count = len(stretches)
    raster = sum(len(own.computing) + len(own.waiting) for own in stretches) > RASTER_FROM
    with matplotlib.rc_context(LOOK | {"axes.spines.left": False}):
        figure, (axes,) = new_figure(11, min(2.2 + 0.22 * count, 22))
        for name, (label, colour) in _BARS.items():
            for client, own in enumerate(stretches):
                start, end = getattr(own, name).T
                if len(start):
                    bars = list(zip(start, end - start, strict=True))
                    axes.broken_barh(bars, (client - 0.4, 0.8), color=colour, lw=0, label=label, rasterized=raster)
                    label = ""
        for name, (label, marker, colour) in _MARKS.items():
            marks = [(when, client) for client, own in enumerate(stretches) for when in getattr(own, name)]
            if marks:
                size = float(np.clip(1400 / count, 20, 60))
                when, clients = np.array(marks).T
                look: dict[str, Any] = {"marker": marker, "c": colour, "edgecolors": "white", "lw": 0.6}
                axes.scatter(when, clients, s=size, zorder=3, label=label, **look)
        axes.set(xlim=(0, plan.end_s or 1), ylim=(count - 0.4, -0.6), xlabel="virtual seconds", ylabel="client")
        axes.set_yticks(range(0, count, 1 + (count - 1) // 40))
        axes.set_title(literal(title), loc="left", fontsize=12)
        legend_below(figure, axes)
        save_picture(figure, path)
