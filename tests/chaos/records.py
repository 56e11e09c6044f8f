"""A run folder as another program finds it: TOML, safetensors and SQLite, nothing of ours; and what differs in two."""

import contextlib
import sqlite3
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

_REAL = {"node": {"pid", "address"}, "round": {"wall_s"}, "event": {"wall_s"}}
"""Columns that are real time, or numbers of processes."""
_OF_A_PROCESS = ("start", "finish", "failure", "interrupt", "engine")  # one for each time that the run was taken up
_OF_THE_KILLED = ("lost-records",)  # what a client that is killed takes with it; its rounds are done again
_OF_A_BUSY_MACHINE = ("waiting",)  # that a client has waited for seconds by now
_GONE = "neighbour is gone, message not sent"
"""A confirmation to one that has just ended, as planned, is a matter of moments; what counts is in table traffic."""
_OPENED = ("greeting", "ready", "handshake", "hello")
_SHOWN = 3


class Records:
    def __init__(self, path: Path):
        self.path = path

    @cached_property
    def config(self) -> dict[str, Any]:
        return tomllib.loads((self.path / "config.toml").read_text())

    @cached_property
    def plan(self) -> dict[int, dict[str, np.ndarray]]:
        """{process: its part}; nothing where the run has no scenario."""
        return {number_of(path): load_file(path) for path in sorted(self.path.glob("plan/node-*.safetensors"))}

    def clients(self) -> list[tuple[int, int]]:
        """(client, process) of those that have begun to learn."""
        return self.rows("SELECT node, pid FROM node WHERE role = 'client' ORDER BY node") if self.begun else []

    @property
    def begun(self) -> bool:
        return self._has("event WHERE node = -1 AND kind = 'start'")

    @property
    def can_be_resumed(self) -> bool:
        """Whether it was killed after its preparation: before, there is nothing to go on from."""
        return (self.path / "config.toml").exists() and self._has("meta WHERE key = 'groups'")

    def _has(self, rows: str) -> bool:
        with contextlib.suppress(sqlite3.Error):
            return bool(self.rows(f"SELECT 1 FROM {rows}"))
        return False

    @property
    def planned_end_s(self) -> float:
        """In planned seconds; 0 without a scenario."""
        return max((float(np.nan_to_num(part["end"]).max(initial=0.0)) for part in self.plan.values()), default=0.0)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(f"file:{self.path}/run.sqlite?mode=ro", uri=True)) as records:
            return records.execute(query).fetchall()

    def columns(self, table: str) -> list[str]:
        return [row[1] for row in self.rows(f"PRAGMA table_info({table})")]

    def files(self, folder: str) -> dict[str, Path]:
        """{path below the folder: file}"""
        start = self.path / folder
        return {str(path.relative_to(start)): path for path in sorted(start.rglob("*")) if path.is_file()}


def number_of(path: Path) -> int:
    """node-0003.safetensors is client 3's."""
    return int(path.stem.partition("-")[2])


def same_arrays(one: Path, other: Path) -> bool:
    """To the bit."""
    ours, theirs = load_file(one), load_file(other)
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == theirs[name].dtype and ours[name].tobytes() == theirs[name].tobytes() for name in ours
    )


def differences(one: Records, other: Records, *, interrupted: bool) -> Iterator[str]:
    """Two runs of one scenario must have left the same: every table but for what is real time or memory, every file.
    ``interrupted``: the other one was taken up again, so it opened connections anew; where clients come and go, how
    many are opened is a matter of moments, too."""
    left_out = _OF_A_PROCESS + _OF_A_BUSY_MACHINE + (_OF_THE_KILLED if interrupted else ())
    tables = dict.fromkeys(("round", "traffic", "edge", "used"), "")
    tables["node"] = "WHERE node >= 0"
    tables["event"] = f"WHERE kind NOT IN {left_out} AND detail NOT LIKE '%{_GONE}'"
    tables["meta"] = "WHERE key NOT IN ('command', 'prepared')"
    if not interrupted and not one.rows("SELECT 1 FROM event WHERE kind IN ('crash', 'leave', 'restart', 'join')"):
        tables["overhead"] = f"WHERE kind IN {_OPENED}"
    for table, where in tables.items():
        columns = ", ".join(column for column in one.columns(table) if column not in _REAL.get(table, ()))
        ours, theirs = (Counter(each.rows(f"SELECT {columns} FROM {table} {where}")) for each in (one, other))
        for rows, which in ((ours - theirs, "first"), (theirs - ours, "second")):
            if rows:
                shown = sorted(rows, key=repr)[:_SHOWN]
                yield f"table {table}: {rows.total()} rows only in the {which} run, such as {shown}"
    for folder in ("shards", "plan", "state"):
        ours, theirs = one.files(folder), other.files(folder)
        for name in sorted(ours.keys() | theirs.keys()):
            if name not in ours or name not in theirs:
                yield f"{folder}/{name} is there only {'once' if name in ours else 'in the second run'}"
            elif not same_arrays(ours[name], theirs[name]):
                yield f"{folder}/{name} differs"
    if one.config != other.config:
        yield "config.toml differs"
