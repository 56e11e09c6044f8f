"""How far a run is: one frozen object of plain numbers, read anew again and again while the run goes on."""

import json
import math
import sqlite3
import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Literal

from ..config_file import read_config
from ..events import Event, events_of, gone_clients, seconds_away, status_of
from ..reader import metric_of, name_of, open_records
from ..records import TABLES
from ..summary import labels_of

State = Literal["starting", "running", "finished", "interrupted", "failed"]
_PACE_ROUNDS = 20
_EVENTS = 200
_AT_ONCE = 2000  # rounds that are asked for, of all clients together
_DETAIL = "substr(detail, 1, 500)"
_TELLING = "kind NOT IN ('start', 'finish', 'failure', 'interrupt', 'scenario', 'engine')"
_ROUND = """round, wall_s, virtual_s, idle_s, waited_for, test_metric,
            (SELECT sum(payload_bytes) FROM traffic WHERE traffic.round = round.round AND src = node)"""
# The next so many rounds of each of [[node, last round that was read], ...], as far as they are there.
_NEXT = f"""
WITH RECURSIVE ahead(rounds) AS (VALUES (1) UNION ALL SELECT rounds + 1 FROM ahead WHERE rounds < ?),
               process AS MATERIALIZED (SELECT value ->> 0 AS number, value ->> 1 AS last FROM json_each(?))
SELECT node, {_ROUND} FROM ahead CROSS JOIN process CROSS JOIN round ON round = last + rounds AND node = number
ORDER BY rounds"""
_BEYOND_A_GAP = f"SELECT {_ROUND} FROM round WHERE round > ? AND node = ? ORDER BY round LIMIT 1"
# Of each client's latest sample: seeks in the index, whose entries of one part come in the order of the rows.
_WAITING = """
SELECT total(elapsed_s) FILTER (WHERE part = 'waiting'), total(elapsed_s) FROM work WHERE rowid IN
    (SELECT (SELECT max(rowid) FROM work WHERE work.node = node.node AND work.part = parts.column1)
     FROM node, (VALUES ('gradient'), ('maps'), ('exchange'), ('waiting'), ('evaluation'), ('records')) AS parts
     WHERE role = 'client')"""
_START = "SELECT coalesce(max(rowid), -1) FROM event WHERE kind = 'start' AND node = -1"
_CAUSE = "SELECT detail FROM event WHERE kind = 'failure' AND node = -1 ORDER BY rowid DESC LIMIT 1"
_MEMORY = "SELECT pss FROM resource WHERE node = ? ORDER BY rowid DESC LIMIT 1"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment, as far as it is committed; None stands for what is not known yet, or not recorded."""

    name: str
    algorithm: str
    state: State
    clients: int
    started: int
    gone: int  # crashed, left or died, and are not back
    rounds: int
    completed: tuple[int, ...]  # the last round of each client that is there, ascending
    metric_name: str
    metric: float | None  # the mean of each client's latest evaluation
    history: tuple[tuple[int, float], ...]  # (round, mean) of evaluated rounds that half of those there have completed
    payload_bytes: int | None
    payload_per_s: float | None
    memory_bytes: int | None  # the sum of the latest PSS
    memory_of: int  # clients that have told theirs
    waited: float | None  # the share of time that clients waited
    waited_for: str | None
    elapsed_s: float
    left_s: float | None  # what the client that will be last needs at its recent pace
    virtual_s: float | None
    events: tuple[Event, ...]
    counts: Mapping[str, int]
    cause: str
    behind: bool  # there is more on record than this look had time to read

    @property
    def has_ended(self) -> bool:
        return self.state in ("finished", "interrupted", "failed")


@dataclass(slots=True)
class _Process:
    """What has been read of a client, or of the server."""

    last: int = -1
    virtual_s: float | None = None
    metric: float | None = None
    ends: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_PACE_ROUNDS + 1))  # (round, wall_s)
    gaps: int = 0

    @property
    def pace_s(self) -> float | None:
        """Returns wall seconds of a round, lately."""
        if len(self.ends) < 2:
            return None
        (first, began_s), (last, ended_s) = self.ends[0], self.ends[-1]
        return max(0.0, ended_s - began_s) / (last - first)

    def left_s(self, rounds: int, now_s: float) -> float | None:
        """A round that takes longer than the others does not shorten the rest."""
        if self.pace_s is None:
            return None
        last, ended_s = self.ends[-1]
        return max(0.0, (rounds - last) * self.pace_s - min(max(0.0, now_s - ended_s), self.pace_s))


class Follower:
    """Looks at a run's records without ever writing; a look costs what is new since the last. ``anew``: the run is
    about to be taken up again, so how it ended before is no news."""

    def __init__(self, run_folder: Path | str, *, anew: bool = False):
        self._folder = Path(run_folder)
        config = read_config(self._folder)
        self._labels = labels_of(self._folder, config)
        self._rounds: int = config.get("rounds", 0)
        self._clients: int = config.get("clients", 0)
        self._measured: bool = config.get("measuring", {}).get("enabled", True)
        with open_records(self._folder, check=TABLES) as records:
            self._ignored: int = records.execute(_START).fetchone()[0] if anew else -1
            self._before = set(records.execute("SELECT node, pid FROM node")) if anew else set()  # processes by then
        self._forget(-1)

    def _forget(self, start: int) -> None:
        self._start = start
        self._processes: defaultdict[int, _Process] = defaultdict(_Process)
        self._evaluated: dict[int, tuple[float, int]] = {}  # by round: sum and count
        self._payload = 0
        self._recent: list[tuple[float, int]] = []  # a heap: clients are not read in the order of their clocks
        self._recent_payload = 0
        self._idle_s: float | None = None
        self._waited_for: Counter[int] = Counter()
        self._clock_s = 0.0
        self._ahead_s = -math.inf  # of the reader's own clock

    def look(self, now: float | None = None, seconds: float = 0.01) -> Snapshot:
        """Reads on for about ``seconds`` of CPU time; ``now`` is what time.monotonic() says. Raises RunFolderError."""
        now = time.monotonic() if now is None else now
        with open_records(self._folder) as records:
            start = records.execute(_START).fetchone()[0]
            if start != self._start:  # taken up again: what was read may be no longer so
                self._forget(start)
            return self._snapshot(records, now, seconds, under_way=start > self._ignored)

    def _snapshot(self, records: sqlite3.Connection, now: float, seconds: float, *, under_way: bool) -> Snapshot:
        started = records.execute("SELECT node, role, pid FROM node WHERE node >= 0").fetchall()
        clients = {node for node, role, _ in started if role == "client"}
        honest = clients - {node for (node,) in records.execute("SELECT node FROM attacker")}
        gone = gone_clients(records)
        state: State = status_of(records) if under_way or self._ignored < 0 else "running"
        if state == "running" and not under_way:
            state = "starting"
        behind = under_way and not self._read_on(records, sorted(node for node, *_ in started), honest, seconds)
        there = sorted(clients - gone) if under_way else []
        # Nobody tells the time between two rounds, so the run's clock is carried on; it never goes back.
        self._ahead_s = max(self._ahead_s, self._clock_s - now)
        elapsed_s = now + self._ahead_s if state == "running" else self._clock_s
        at_work = [self._processes[node] for node in there if node in self._processes]
        left_s = [need for process in at_work if (need := process.left_s(self._rounds, elapsed_s)) is not None]
        completed = tuple(sorted(process.last for process in at_work if process.last >= 0))
        half = completed[(len(completed) - 1) // 2] if completed else self._rounds
        evaluated = sorted((number, *sums) for number, sums in self._evaluated.items() if number <= half)
        metrics = [process.metric for process in self._processes.values() if process.metric is not None]
        memory = [row[0] for node in there if (row := records.execute(_MEMORY, (node,)).fetchone())]
        waited, waited_for = self._waiting(records) if under_way else (None, None)
        return Snapshot(
            *self._labels,
            state=state,
            clients=self._clients or len(clients),
            started=sum(role == "client" and (node, pid) not in self._before for node, role, pid in started),
            gone=len(gone & clients),
            rounds=self._rounds,
            completed=completed,
            metric_name=metric_of(records),
            metric=sum(metrics) / len(metrics) if metrics else None,
            history=tuple((number, total / count) for number, total, count in evaluated),
            payload_bytes=self._payload if self._measured else None,
            payload_per_s=self._rate(elapsed_s, state) if self._measured else None,
            memory_bytes=sum(memory) if memory else None,
            memory_of=len(memory),
            waited=waited,
            waited_for=waited_for,
            elapsed_s=elapsed_s,
            left_s=max(left_s, default=None) if state == "running" and not behind else None,
            virtual_s=max((p.virtual_s for p in self._processes.values() if p.virtual_s is not None), default=None),
            events=tuple(reversed(events_of(records, f"{_TELLING} ORDER BY rowid DESC LIMIT {_EVENTS}", _DETAIL))),
            counts=dict(records.execute(f"SELECT kind, count(*) FROM event WHERE {_TELLING} GROUP BY kind")),
            cause=records.execute(_CAUSE).fetchone()[0].partition("\n")[0] if state == "failed" else "",
            behind=behind,
        )

    def _read_on(self, records: sqlite3.Connection, nodes: Sequence[int], clients: set[int], seconds: float) -> bool:
        """Returns whether that was all. Seeks by the key cost the same however far the fastest client is ahead; there
        is one query for the next round of all, then one for the next two, four, ..."""
        deadline, rounds = time.thread_time() + seconds, 1
        came = "SELECT node, count(*) FROM event WHERE kind IN ('restart', 'join') GROUP BY node"
        comebacks = dict(records.execute(came))
        while nodes:
            read = {node: self._processes[node].last for node in nodes}
            for node, *row in records.execute(_NEXT, (rounds, json.dumps([*read.items()]))):
                if row[0] == self._processes[node].last + 1:
                    self._take(self._processes[node], row, evaluates=node in clients)
            for node, last in read.items():
                process = self._processes[node]
                if process.last > last or process.gaps >= comebacks.get(node, 0):
                    continue
                if row := records.execute(_BEYOND_A_GAP, (last + 1, node)).fetchone():
                    process.gaps += 1
                    self._take(process, row, evaluates=node in clients)
            nodes = [node for node, last in read.items() if self._processes[node].last > last]
            rounds = max(1, min(2 * rounds, _AT_ONCE // max(1, len(nodes))))
            if time.thread_time() > deadline:
                break
        return not nodes

    def _take(self, process: _Process, row: Sequence, *, evaluates: bool) -> None:
        process.last, wall_s, process.virtual_s, idle_s, waited_for, metric, payload = row
        process.ends.append((process.last, wall_s))
        self._clock_s = max(self._clock_s, wall_s)
        if payload:
            self._payload += payload
            self._recent_payload += payload
            heappush(self._recent, (wall_s, payload))
        if idle_s is not None:
            self._idle_s = (self._idle_s or 0.0) + idle_s
            if waited_for is not None:
                self._waited_for[waited_for] += idle_s
        if metric is not None and evaluates:
            process.metric = metric
            total, count = self._evaluated.get(process.last, (0.0, 0))
            self._evaluated[process.last] = total + metric, count + 1

    def _rate(self, elapsed_s: float, state: State) -> float | None:
        """Returns bytes a second of the last ten seconds or three rounds; of the whole run once it has ended."""
        if state != "running":
            return self._payload / elapsed_s if elapsed_s else None
        paces = [process.pace_s for process in self._processes.values() if process.pace_s is not None]
        window_s = max(10.0, 3 * max(paces, default=0.0))
        while self._recent and self._recent[0][0] <= elapsed_s - window_s:
            self._recent_payload -= heappop(self._recent)[1]
        return self._recent_payload / min(window_s, elapsed_s) if paces and elapsed_s else None

    def _waiting(self, records: sqlite3.Connection) -> tuple[float | None, str | None]:
        if self._idle_s is None:
            waited_s, total_s = records.execute(_WAITING).fetchone()
            return (waited_s / total_s if total_s else None), None
        ended = [process for process in self._processes.values() if process.ends]
        virtual = any(process.virtual_s is not None for process in ended)
        there_s = sum((process.virtual_s or 0.0) if virtual else process.ends[-1][1] for process in ended)
        there_s -= seconds_away(records, "virtual_s" if virtual else "wall_s")
        whom = next((name_of(node, records) for node, _ in self._waited_for.most_common(1)), None)
        return (min(1.0, self._idle_s / there_s) if there_s > 0 else None), whom
