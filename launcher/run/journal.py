"""The launcher's own records of a run: its events, and how it ended and why."""

import os
import socket
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from ...metrics.records import LAUNCHER, EventRecord, NodeRecord, Record
from ...metrics.store import RunFolderError, Store, is_locked
from ...transport.constants import CONSTANTS
from ...transport.failpoints import failpoint
from ..prepare.prepared import Prepared
from ..processes.collector import CollectorProcess


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
            self.planned_event("scenario", text, LAUNCHER, when)

    def event(self, kind: str, text: str, node: int = LAUNCHER, virtual_s: float | None = None) -> None:
        self.collector.write(EventRecord(self.now, virtual_s, node, kind, text))

    def planned_event(self, kind: str, text: str, node: int, virtual_s: float | None) -> None:
        """An event of the scenario, unless it is on record as often from before the run was taken up."""
        if node != LAUNCHER and self._prepared.config.time.clock != "virtual":
            virtual_s = None
        event = node, kind, virtual_s, text
        self._told[event] -= 1
        if self._told[event] < 0:
            self.event(kind, text, node, virtual_s)

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
