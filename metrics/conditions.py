"""What a scenario did to a run: waiting, clients that come and go, late messages."""

import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

_GONE, _THERE = ("crash", "leave", "death"), ("restart", "join")
_WITH_NUMBER = {"timeout": "timeout", "drop": "dropped"}
"""Events whose detail begins with how many there were, and what their sum is called."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """``events`` counts crash, restart, join, leave, death; timeout: waits that the deadline ended; dropped: messages.
    ``used`` are vectors of neighbours, all in all, ``older`` and ``newer`` those of another round than the client's.
    """

    virtual_s: float | None  # when the last client was done; None on the wall clock
    waited_s: float
    waited_share: float | None  # of the time in which clients were there; None before the first round
    events: dict[str, int]
    used: int
    older: int
    newer: int
    missing: int  # times that a client went without


def conditions_of(records: sqlite3.Connection) -> Conditions | None:
    """None where the run has no scenario."""
    if "idle_s" not in {name for _, name, *_ in records.execute("PRAGMA table_info(round)")}:
        return None  # a run from before there were scenarios
    waited_s, virtual_s = records.execute("SELECT sum(idle_s), max(virtual_s) FROM round").fetchone()
    if waited_s is None and virtual_s is None:
        return None
    clock = "wall_s" if virtual_s is None else "virtual_s"  # from the start to the end of each one's last round
    last = f"SELECT max({clock}) AS last FROM round WHERE node >= 0 GROUP BY node"
    there_s = records.execute(f"SELECT total(last) FROM ({last})").fetchone()[0] - seconds_away(records, clock)
    share = min(1.0, (waited_s or 0.0) / there_s) if there_s else None
    events = Counter(dict.fromkeys(("crash", "restart", "join", "leave", "death", "timeout", "dropped"), 0))
    for kind, detail in records.execute("SELECT kind, detail FROM event WHERE node >= 0"):
        if kind in _WITH_NUMBER:
            number = re.match(r"[0-9]{1,18}\b", detail)
            events[_WITH_NUMBER[kind]] += int(number[0]) if number else 1
        elif kind in _GONE + _THERE:
            events[kind] += 1
    used = "count(used_round), total(used_round < round), total(used_round > round), total(used_round IS NULL)"
    counts = map(int, records.execute(f"SELECT {used} FROM used").fetchone())
    return Conditions(virtual_s, waited_s or 0.0, share, dict(events), *counts)


def _comings_and_goings(records: sqlite3.Connection, clock: str) -> Iterator[tuple[int, str, float | None]]:
    """Returns (client, kind of event, when) in the order in which they were recorded."""
    kinds = f"SELECT node, kind, {clock} FROM event WHERE node >= 0 AND kind IN {_GONE + _THERE} ORDER BY rowid"
    return records.execute(kinds)


def gone_clients(records: sqlite3.Connection) -> set[int]:
    """Clients that crashed, left or died and have not come back."""
    last = {node: kind for node, kind, _ in _comings_and_goings(records, "wall_s")}
    return {node for node, kind in last.items() if kind in _GONE}


def seconds_away(records: sqlite3.Connection, clock: str) -> float:
    """Adds up how long clients were away, before they came or came back; ``clock`` is virtual_s or wall_s."""
    periods: defaultdict[int, list[tuple[str, float]]] = defaultdict(lambda: [("join", 0.0)])
    for node, kind, when in _comings_and_goings(records, clock):
        if when is not None:
            periods[node].append((kind, when))
    return sum(
        max(0.0, back - gone)
        for own in periods.values()
        for (before, gone), (after, back) in pairwise(own)
        if after in _THERE and (before in _GONE or after == "join")
    )


def completed_rounds(records: sqlite3.Connection, gone: Collection[int]) -> int:
    """Counts the rounds completed by every client but those that are gone; where all are, by the one that got furthest.
    -1: not even round 0."""
    rows = records.execute(
        "SELECT node, coalesce(last, -1) FROM node LEFT JOIN"
        " (SELECT node, max(round) AS last FROM round GROUP BY node) USING (node) WHERE role = 'client'"
    ).fetchall()
    there = [last for node, last in rows if node not in gone]
    return min(there) if there else max((last for _, last in rows), default=-1)
