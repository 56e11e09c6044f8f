"""What a scenario did to a run: waiting, clients that come and go, late messages."""

import re
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

CLIENTS = "node NOT IN (SELECT node FROM node WHERE role <> 'client')"
"""Rows of clients, as SQL; also where a run has no table of who is what."""

_COUNTED = ("crash", "restart", "join", "leave", "death")
_WITH_NUMBER = {"timeout": "timeout", "drop": "dropped"}
"""Events whose detail begins with how many there were, and what their sum is called."""

_GONE, _THERE = ("crash", "leave", "death"), ("restart", "join")


@dataclass(frozen=True, slots=True)
class Conditions:
    """``virtual_s``: when the last client was done; None on the wall clock. ``waited_share``: of the time in which
    clients were there, how much they waited for messages; None before the first round. ``events``: how often clients
    crashed, restarted, joined, left or died, waits that the deadline ended (timeout), messages that were dropped.
    ``used``: what clients took from neighbours, all in all; of these ``older`` and ``newer`` were of another round than
    their own; ``missing`` counts where they went without.
    """

    virtual_s: float | None
    waited_s: float
    waited_share: float | None
    events: dict[str, int]
    used: int
    older: int
    newer: int
    missing: int


def conditions_of(records: sqlite3.Connection) -> Conditions | None:
    """None where the run has no scenario."""
    columns = {name for _, name, *_ in records.execute("PRAGMA table_info(round)")}
    if "idle_s" not in columns:  # a run from before there were scenarios
        return None
    waited_s = records.execute("SELECT sum(idle_s) FROM round").fetchone()[0]
    virtual_s = records.execute("SELECT max(virtual_s) FROM round").fetchone()[0]
    if waited_s is None and virtual_s is None:
        return None
    clock = "wall_s" if virtual_s is None else "virtual_s"  # from the start to the end of each one's last round
    last = f"SELECT max({clock}) AS last FROM round WHERE node >= 0 GROUP BY node"
    there_s = records.execute(f"SELECT total(last) FROM ({last})").fetchone()[0] - seconds_away(records, clock)
    used, older, newer, missing = records.execute(
        "SELECT count(used_round), total(used_round < round), total(used_round > round), total(used_round IS NULL)"
        " FROM used"
    ).fetchone()
    return Conditions(
        virtual_s=virtual_s,
        waited_s=waited_s or 0.0,
        waited_share=min(1.0, (waited_s or 0.0) / there_s) if there_s else None,
        events=_events(records),
        used=used,
        older=int(older),
        newer=int(newer),
        missing=int(missing),
    )


def gone_clients(records: sqlite3.Connection) -> set[int]:
    """Clients that crashed, left or died and have not come back."""
    marks = ", ".join(f"'{kind}'" for kind in _GONE + _THERE)
    last = dict(records.execute(f"SELECT node, kind FROM event WHERE node >= 0 AND kind IN ({marks}) ORDER BY rowid"))
    return {node for node, kind in last.items() if kind in _GONE}


def completed_rounds(records: sqlite3.Connection, gone: Collection[int]) -> int:
    """Counts the rounds completed by every client but those that are gone; where all are, by the one that got furthest.
    -1: not even round 0."""
    last = dict(
        records.execute(
            "SELECT node, coalesce(last, -1) FROM node LEFT JOIN"
            " (SELECT node, max(round) AS last FROM round GROUP BY node) USING (node) WHERE role = 'client'"
        ).fetchall()
    )
    return min((round for node, round in last.items() if node not in gone), default=max(last.values(), default=-1))


def _events(records: sqlite3.Connection) -> dict[str, int]:
    counts = dict.fromkeys((*_COUNTED, *_WITH_NUMBER.values()), 0)
    for kind, detail in records.execute("SELECT kind, detail FROM event WHERE node >= 0"):
        if kind in _COUNTED:
            counts[kind] += 1
        elif kind in _WITH_NUMBER:
            number = re.match(r"[0-9]{1,18}\b", detail)
            counts[_WITH_NUMBER[kind]] += int(number[0]) if number else 1
    return counts


def seconds_away(records: sqlite3.Connection, clock: str) -> float:
    """Adds up how long clients were away, before they came or came back; ``clock`` is virtual_s or wall_s."""
    kinds = ", ".join(f"'{kind}'" for kind in _GONE + _THERE)
    periods: dict[int, list[tuple[str, float]]] = {}
    for node, kind, when in records.execute(
        f"SELECT node, kind, {clock} FROM event WHERE node >= 0 AND kind IN ({kinds}) AND {clock} IS NOT NULL"
        " ORDER BY rowid"
    ):
        periods.setdefault(node, []).append((kind, when))
    away = 0.0
    for own in periods.values():
        for (before, gone), (after, back) in pairwise([("join", 0.0), *own]):
            if after in _THERE and (before in _GONE or after == "join"):
                away += max(0.0, back - gone)
    return away
