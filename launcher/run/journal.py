"""The launcher's own records of a run: its events, and how it ended and why."""

import errno
import os
import signal
import socket
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ...metrics.reader import SERVER_NAME, client_name, open_records
from ...metrics.records import LAUNCHER, EventRecord, NodeRecord, Record
from ...metrics.store import RunFolderError, Store, is_locked
from ...node.assignment import name_of
from ...transport.constants import CONSTANTS
from ...transport.control import Failed
from ...transport.failpoints import failpoint
from ..prepare.prepared import Prepared
from ..processes.collector import CollectorProcess
from .waits import News


@dataclass(frozen=True)
class Outcome:
    """``causes`` are texts for the user, the root of the trouble first."""

    status: Literal["finish", "failure", "interrupt"]
    causes: tuple[str, ...] = ()


class Journal:
    """Writes to the collector while that is there, and to the database itself when it has ended."""

    def __init__(self, prepared: Prepared, collector: CollectorProcess):
        self.collector = collector
        self.epoch = time.monotonic()  # when the run's wall time was 0
        self._prepared = prepared
        self._told: Counter[tuple[object, ...]] = Counter(prepared.told)

    @property
    def now(self) -> float:
        """Seconds on the run's wall clock."""
        return time.monotonic() - self.epoch

    def start(self, clients: int, ready_s: float, engine: Iterable[Record]) -> None:
        """So many clients are about to learn; ``engine`` are records of the engine's processes."""
        prepared, plan = self._prepared, self._prepared.plan
        self.epoch = time.monotonic() - prepared.went_on_s
        self.collector.write(NodeRecord(LAUNCHER, "launcher", "", 0, 0, 0, 0, socket.gethostname(), os.getpid(), ""))
        self.collector.write(*engine)
        text = f"{clients} clients ready after {ready_s:.2f} s"
        text += f", resumed after round {prepared.resumed_at}" if prepared.resumed_at else ""
        self.event("start", text + (f"; now with {prepared.moved}" if prepared.moved else ""))
        for when, text in plan.conditions if plan else ():
            self._event_once(LAUNCHER, "scenario", when, text)

    def event(self, kind: str, text: str, node: int = LAUNCHER) -> None:
        self.collector.write(EventRecord(self.now, None, node, kind, text))

    def planned_event(self, kind: str, text: str, node: int, virtual_s: float | None) -> None:
        """An event of the scenario, unless it was recorded before the run was taken up."""
        on_virtual_clock = self._prepared.config.time.clock == "virtual"
        self._event_once(node, kind, virtual_s if on_virtual_clock else None, text)

    def _event_once(self, node: int, kind: str, virtual_s: float | None, text: str) -> None:
        """Not as often as it is on record."""
        event = node, kind, virtual_s, text
        self._told[event] -= 1
        if self._told[event] < 0:
            self.collector.write(EventRecord(self.now, virtual_s, node, kind, text))

    def end(self, outcome: Outcome, last: Iterable[Record], impatient: Callable[[], bool]) -> Outcome:
        """The collector has ended: this process is the database's only writer now. Returns the outcome, which is a
        failure where it could not be recorded."""
        failpoint("note")
        deadline = time.monotonic() + CONSTANTS.locked_s
        records = [*last, EventRecord(self.now, None, LAUNCHER, outcome.status, "\n".join(outcome.causes))]
        while True:
            try:
                store = Store(self._prepared.folder / "run.sqlite")
                store.write(records)
                store.close()
                return outcome
            except (RunFolderError, sqlite3.Error) as error:
                if not is_locked(error) or impatient() or time.monotonic() > deadline:
                    return Outcome("failure", (*outcome.causes, f"the end of this run could not be recorded: {error}"))


@dataclass
class Failures:
    """What has gone wrong with clients."""

    errors: dict[int, Failed] = field(default_factory=dict)
    deaths: dict[int, int] = field(default_factory=dict)  # {client: exit status}
    lost_hosts: list[str] = field(default_factory=list)
    lost_clients: set[int] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.errors or self.deaths)

    def causes(self, prepared: Prepared, hopeless: News | None) -> Iterator[str]:
        """Deaths by signal first: what they leave behind makes others fail. ``hopeless`` is a wait without an end."""
        completed: dict[int, int] = {}  # {client: its last round on record}, as far as that can be read
        with suppress(RunFolderError, sqlite3.Error), open_records(prepared.folder) as records:
            completed = dict(records.execute("SELECT node, max(round) FROM round GROUP BY node").fetchall())

        def log(node: int) -> Path:
            return prepared.folder / "log" / f"{name_of(node)}.log"

        def failed(node: int, how: str) -> str:
            when = f"round {completed[node] + 1}" if node in completed else "start-up"
            return f"{name_in(prepared, node)} {how} in {when}"

        yield from self.lost_hosts
        for node, status in sorted(self.deaths.items()):
            if status < 0 and node not in self.lost_clients:
                last = last_line(log(node)) if -status == signal.SIGABRT else ""  # libraries say why
                yield f"{failed(node, 'died')}: {signal_name(-status)}{last}"
        if hopeless and self.errors:
            yield f"{name_in(prepared, hopeless.node)} {hopeless.text}"
        told: set[str] = set()
        for node, error in sorted(self.errors.items()):
            if not error.cause or error.cause not in told:
                yield f"{failed(node, 'failed')}: {error.text.rstrip()}"
            told.add(error.cause)
        for node, status in sorted(self.deaths.items()):
            if status >= 0 and node not in self.errors:
                yield f"{failed(node, 'ended')} with exit status {status}; see {log(node)}"


def name_in(prepared: Prepared, node: int) -> str:
    """Returns how a client, or the server, of the run is called."""
    if prepared.assignments[node].role == "server":
        return SERVER_NAME
    return client_name(node, {k: each.owner for k, each in enumerate(prepared.data.clients) if each.owner})


def signal_name(number: int) -> str:
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:
        return f"killed by signal {number}"


def last_line(log: Path) -> str:
    """Returns it as the end of a sentence; empty where there is none."""
    with suppress(OSError):
        said = log.read_text(errors="replace").splitlines()[-1:]
        if "FATAL ERROR: OUT OF MEMORY" in "".join(said):
            return ", for what came in took all the memory that it may have"
        why = " (see ulimit -u, pids.max)" if os.strerror(errno.EAGAIN) in "".join(said) else ""
        return "".join(f"; it said: {line}{why}" for line in said)
    return ""
