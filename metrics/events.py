"""What happened in a run: how it ended, what a scenario did to it, and the same told to people."""

import re
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from .reader import metric_of, name_of, open_records
from .records import COLLECTOR, LAUNCHER
from .store import CONSTANT_METRIC, HONEST
from .text import label

Status = Literal["running", "finished", "interrupted", "failed"]
_STATUS: dict[str, Status] = {
    "start": "running",
    "finish": "finished",
    "interrupt": "interrupted",
    "failure": "failed",
    "extend": "interrupted",  # the rounds that it is to have are not done yet
}
GONE, THERE = ("crash", "leave", "death"), ("restart", "join")
_TOLD = ("attack", "warning", "drop", "lost-records", "death", "host-lost")
_COUNTED = {kind: kind for kind in ("crash", "restart", "join", "leave", "death", "timeout")} | {"drop": "dropped"}
_GROWN = 100.0  # a loss that is so many times what it was at the start has diverged
_COMPARED = 200  # characters of a detail: the search for numbers takes the square of them
_PLANNED = {
    "crash": ("crash", "crashes"),
    "restart": ("restart", "restarts"),
    "join": ("client that joined late", "clients that joined late"),
    "leave": ("client that left", "clients that left"),
}


def status_of(records: sqlite3.Connection) -> Status:
    """Returns what the launcher said last; where that is missing, the collector, which outlives it for a moment."""
    status: Status = "running"
    said = f"node IN ({LAUNCHER}, {COLLECTOR}) AND kind IN {tuple(_STATUS)}"
    for node, kind in records.execute(f"SELECT node, kind FROM event WHERE {said} ORDER BY rowid"):
        if node == LAUNCHER or (kind == "interrupt" and status == "running"):
            status = _STATUS[kind]
    return status


@dataclass(frozen=True, slots=True)
class Divergence:
    kind: Literal["diverged", "worse than a constant"]
    why: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.why}"


def divergence_of(records: sqlite3.Connection, metric: str) -> Divergence | None:
    """Judges a finished run. Worse than predicting the same for every sample, it diverged where its loss has grown."""
    clients, grown = f"{HONEST} AND node >= 0", False
    for name, column in (("training", "train_loss"), ("test", "test_loss")):
        known = f"FROM round WHERE {column} IS NOT NULL AND {clients} GROUP BY node"
        first, last = (f"SELECT node, {column} AS {end}, {end}(round) {known}" for end in ("min", "max"))
        query = f'SELECT avg("min"), avg("max") FROM ({first}) JOIN ({last}) USING (node)'
        start, end = records.execute(query).fetchone()  # means over clients of each one's first and last loss
        if start is not None and end is not None:
            if end > _GROWN * start > 0:
                return Divergence("diverged", f"{name} loss {end:.3g}, {start:.3g} at the start")
            grown |= end > start
    query = f"""SELECT (SELECT count(*) FROM round WHERE round = (SELECT max(round) FROM round) AND round > 0
        AND {clients} AND test_loss IS NULL AND node IN (SELECT node FROM round WHERE test_loss IS NOT NULL)),
        (SELECT avg(test_metric) FROM last_test_metric WHERE {clients}),
        (SELECT max(value) FROM meta WHERE key = '{CONSTANT_METRIC}')"""
    lost, ours, constant = records.execute(query).fetchone()
    if lost:  # after the last round, in which all evaluate
        return Divergence("diverged", f"the test loss of {lost} clients is not a number")
    try:
        constant = float(constant)
    except (TypeError, ValueError):
        return None  # not known
    if ours is None or not (ours < constant if metric == "accuracy" else ours > constant):
        return None
    why = f"test MSE {ours:.4g}, and always the mean of the targets gives {constant:.4g}"
    if metric == "accuracy":
        why = f"accuracy {100 * ours:.1f} %, and always the most frequent class gives {100 * constant:.1f} %"
    return Divergence("diverged" if grown else "worse than a constant", why)


@dataclass(frozen=True, slots=True)
class Conditions:
    virtual_s: float | None  # when the last client was done; None on the wall clock
    waited_s: float
    waited_share: float | None  # of the time in which clients were there; None before the first round
    events: dict[str, int]  # crash, restart, join, leave, death; timeout: waits ended by it; dropped: messages
    used: int  # vectors of neighbours, all in all
    older: int  # those of an earlier round than the client's
    newer: int
    missing: int  # times that a client went without


def conditions_of(records: sqlite3.Connection) -> Conditions | None:
    """Returns None where the run has no scenario."""
    if "idle_s" not in {name for _, name, *_ in records.execute("PRAGMA table_info(round)")}:
        return None  # a run from before there were scenarios
    waited_s, virtual_s = records.execute("SELECT sum(idle_s), max(virtual_s) FROM round").fetchone()
    if waited_s is None and virtual_s is None:
        return None
    clock = "wall_s" if virtual_s is None else "virtual_s"  # from the start to the end of each one's last round
    last = f"SELECT max({clock}) AS last FROM round WHERE node >= 0 GROUP BY node"
    there_s = records.execute(f"SELECT total(last) FROM ({last})").fetchone()[0] - seconds_away(records, clock)
    share = min(1.0, (waited_s or 0.0) / there_s) if there_s else None
    events = dict.fromkeys(_COUNTED.values(), 0)
    query = f"SELECT kind, detail FROM event WHERE node >= 0 AND kind IN {tuple(_COUNTED)}"
    for kind, detail in records.execute(query):
        number = re.match(r"[0-9]{1,18}\b", detail) if kind in ("timeout", "drop") else None  # how many there were
        events[_COUNTED[kind]] += int(number[0]) if number else 1
    used = "count(used_round), total(used_round < round), total(used_round > round), total(used_round IS NULL)"
    counts = map(int, records.execute(f"SELECT {used} FROM used").fetchone())
    return Conditions(virtual_s, waited_s or 0.0, share, events, *counts)


def gone_clients(records: sqlite3.Connection) -> set[int]:
    """Returns the clients that crashed, left or died and have not come back."""
    last = f"SELECT node, kind, max(rowid) FROM event WHERE node >= 0 AND kind IN {GONE + THERE} GROUP BY node"
    return {node for (node,) in records.execute(f"SELECT node FROM ({last}) WHERE kind IN {GONE}")}


def seconds_away(records: sqlite3.Connection, clock: str) -> float:
    """Adds up how long clients were away, before they came or came back; ``clock`` is virtual_s or wall_s."""
    query = f"""SELECT total(max(0, {clock} - gone))
        FROM (SELECT kind, {clock}, lag(kind, 1, 'join') OVER own AS before, lag({clock}, 1, 0) OVER own AS gone
              FROM event WHERE node >= 0 AND kind IN {GONE + THERE} AND {clock} IS NOT NULL
              WINDOW own AS (PARTITION BY node ORDER BY rowid))
        WHERE kind IN {THERE} AND (before IN {GONE} OR kind = 'join')"""
    return records.execute(query).fetchone()[0]


def completed_rounds(records: sqlite3.Connection, gone: Collection[int]) -> int:
    """Takes every client but those that are gone; where all are, the one that got furthest. -1: not even round 0."""
    query = """SELECT node, coalesce(last, -1) FROM node LEFT JOIN
        (SELECT node, max(round) AS last FROM round GROUP BY node) USING (node) WHERE role = 'client'"""
    last = dict(records.execute(query))
    return min((last[node] for node in last.keys() - gone), default=max(last.values(), default=-1))


class Event(NamedTuple):
    wall_s: float
    node: int
    kind: str
    detail: str
    who: str  # what that process is called

    @property
    def pattern(self) -> tuple[str, str]:
        """Returns what events of the same cause share: all but client and numbers."""
        return self.kind, re.sub(r"[\d.e+-]*\d", "#", self.detail[:_COMPARED])


def who_of(events: Sequence[Event], shown: Event) -> str:
    """Names the client of the one that is shown, and how many others there are."""
    others = len({event.node for event in events} - {shown.node})
    return shown.who + (f" and {others} more" if others else "")


def events_of(records: sqlite3.Connection, which: str, detail: str = "detail") -> list[Event]:
    """``which`` follows WHERE; ``detail`` is as much of each one's as is wanted."""
    rows = records.execute(f"SELECT wall_s, node, substr(kind, 1, 200), {detail} FROM event WHERE {which}").fetchall()
    names = {node: name_of(node, records) for node in {node for _, node, *_ in rows}}
    return [Event(wall_s, node, label(kind), text, names[node]) for wall_s, node, kind, text in rows]


def remarks_on(run_folder: Path | str) -> list[str]:
    """Returns lines for the user: what happened in a run, and whether it has learned nothing. Raises RunFolderError."""
    alike: defaultdict[tuple[str, str], list[Event]] = defaultdict(list)
    with open_records(run_folder, check=("event",)) as records:
        for event in events_of(records, f"kind IN {_TOLD} ORDER BY wall_s, node"):
            alike[event.pattern].append(event)
        diverged = divergence_of(records, metric_of(records)) if status_of(records) == "finished" else None
        counts = dict(records.execute("SELECT kind, count(*) FROM event WHERE node >= 0 GROUP BY kind"))
    lines = [f"finished, but {diverged}"] if diverged else []
    for events in alike.values():
        first, who = events[0], who_of(events, events[0])
        said = {"host-lost": first.detail, "death": f"{who} died: {first.detail}"}
        lines.append(said.get(first.kind, f"{first.kind}: {who}: {first.detail}"))
    planned = [f"{counts[kind]} {texts[counts[kind] > 1]}" for kind, texts in _PLANNED.items() if kind in counts]
    return lines + ([f"scenario: {', '.join(planned)}"] if planned else [])
