"""The launcher's own records of a run: its events, who waits for whom, and how it ended and why."""

import os
import socket
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Literal

from ...metrics.records import LAUNCHER, EventRecord, NodeRecord, Record
from ...metrics.store import RunFolderError, Store, is_locked
from ...transport.control import Waiting
from ...transport.environment import CONSTANTS, failpoint
from ..data.pool import some
from ..prepare.prepared import Prepared
from ..processes.collector import CollectorProcess


@dataclass(frozen=True)
class Outcome:
    """``causes`` are texts for the user, the root of the trouble first."""

    status: Literal["finish", "failure", "interrupt"]
    causes: tuple[str, ...] = ()


class Journal:
    """Writes to the collector while that is there, and to the database itself when it has ended."""

    def __init__(self, prepared: Prepared, collector: CollectorProcess, began: float):
        self.collector = collector
        self.epoch = began  # when the run's wall time was 0, by time.monotonic()
        self._prepared = prepared
        self._told: Counter[tuple[object, ...]] = Counter(prepared.told)

    @property
    def now(self) -> float:
        """Seconds on the run's wall clock."""
        return time.monotonic() - self.epoch

    def start(self, clients: int, engine: Iterable[Record]) -> None:
        """So many clients are about to learn; ``engine`` are records of the engine's processes."""
        prepared, plan, ready_s = self._prepared, self._prepared.plan, self.now
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
        """Writes to the database, where the collector has ended. Returns a failure where that is not possible."""
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


_SETTLED_S = CONSTANTS.tell_wait_s / 5  # how long nothing must have changed: word of a wait's end may be on its way
News = tuple[int, str] | None  # who waits, and a text about it


class Waits:
    """What clients say of their long waits, told once for each cause. Where clients wait in a circle, each for what the
    next has not sent, none ever gets it; who waits for one at work may only have to be patient."""

    def __init__(self, name: Callable[[int], str]):
        self._name = name
        self._waits: dict[int, Waiting] = {}
        self._changed = self._told_s = 0.0
        self.hopeless: News = None  # a wait of which nothing can come any more

    def note(self, node: int, wait: Waiting, now: float) -> None:
        before = self._waits.get(node)
        if before is None or replace(before, seconds=wait.seconds) != wait:
            self._changed = now
        self._waits[node] = wait

    def over(self, node: int) -> None:
        self._waits.pop(node, None)

    def news(self, done: Set[int], now: float) -> News:
        """What there is to tell now, if anything; ``done`` are those that have completed all their rounds."""
        if not self._waits or self.hopeless or now < self._changed + _SETTLED_S:
            return None
        self.hopeless = self._circle() or self._for_one_of(done)
        seconds = max(wait.seconds for wait in self._waits.values())
        if self.hopeless or seconds < 2 * self._told_s:  # who learns slowly does so in every round
            return self.hopeless
        news = self._at_work(seconds)
        self._told_s = seconds if news else self._told_s
        return news

    def _circle(self) -> News:
        """Returns those that wait themselves, and have not sent what the one before waits for."""
        owing = {}
        for node, wait in sorted(self._waits.items()):
            owing[node] = sorted(other for other, *message in wait.wanted if self._has_not_sent(other, node, *message))
        try:
            TopologicalSorter(owing).prepare()
        except CycleError as error:
            circle = error.args[1][::-1]
            pairs = [f"{self._name(i)} for {self._name(j)}" for i, j in pairwise(circle)]
            text = "waits in a circle where nobody sends what the other waits for, in round"
            return circle[0], f"{text} {self._waits[circle[0]].round}: {some(pairs, 6)}"
        return None

    def _has_not_sent(self, node: int, to: int, round: int, phase: int) -> bool:
        """False, too, where that is not known: it may be under way."""
        if (wait := self._waits.get(node)) is None:
            return False
        return wait.round < round or (wait.round == round and dict(wait.sent).get(to, 0) <= phase)

    def _for_one_of(self, done: Set[int]) -> News:
        for node, wait in sorted(self._waits.items()):
            for whom in done & {whom for whom, *_ in wait.wanted}:
                return node, f"waits for {self._name(whom)} in round {wait.round}, which has completed all its rounds"
        return None

    def _at_work(self, seconds: float) -> News:
        """Tells for whom most wait, among those who wait for nobody."""
        waiting = defaultdict[int, list[tuple[int, int]]](list)
        for node, wait in sorted(self._waits.items()):
            for whom, round, _ in wait.wanted:
                if whom not in self._waits:
                    waiting[whom].append((node, round))
        if not waiting:
            return None
        whom, nodes = max(waiting.items(), key=lambda item: len(item[1]))
        node, round = nodes[0]
        others = f", and so do {len(nodes) - 1} more" if len(nodes) > 1 else ""
        return node, f"waits for {self._name(whom)} in round {round}, for {seconds:.0f} s so far{others}"
