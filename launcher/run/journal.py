"""The launcher's own records of a run: its events, and how it ended."""

import os
import socket
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable

from ...metrics.records import LAUNCHER, EventRecord, NodeRecord, Record
from ...metrics.schema import RunFolderError
from ...metrics.store import Store, is_locked
from ...transport.constants import CONSTANTS
from ...transport.failpoints import failpoint
from ..prepare.prepared import Prepared
from ..processes.collector import CollectorProcess
from .outcome import Outcome


class Journal:
    """Writes to the collector while that is there, and to the database itself when it has ended."""

    def __init__(self, prepared: Prepared, collector: CollectorProcess):
        self.collector = collector
        self.epoch = time.monotonic()
        """When the run's wall time was 0."""
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
        text += f"; now with {prepared.moved}" if prepared.moved else ""
        self.event("start", text)
        for when, text in plan.conditions if plan else ():
            if not self._is_on_record(LAUNCHER, "scenario", when, text):
                self.collector.write(EventRecord(self.now, when, LAUNCHER, "scenario", text))

    def event(self, kind: str, text: str, node: int = LAUNCHER) -> None:
        self.collector.write(EventRecord(self.now, None, node, kind, text))

    def planned_event(self, kind: str, text: str, node: int, virtual_s: float | None) -> None:
        """An event of the scenario, unless it was recorded before the run was taken up."""
        when = virtual_s if self._prepared.config.time.clock == "virtual" else None
        if not self._is_on_record(node, kind, when, text):
            self.collector.write(EventRecord(self.now, when, node, kind, text))

    def _is_on_record(self, *event: object) -> bool:
        """As often as it is."""
        self._told[event] -= 1
        return self._told[event] >= 0

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
