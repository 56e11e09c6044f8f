"""Runs what is missing of a sweep, several runs at once, each in a process of its own."""

import select
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ...topology.errors import UserError
from ...transport.control import ControlClosed
from .. import interrupts
from ..config.sections import ConfigError
from ..prepare.assignments import Site
from ..prepare.preparation import prepare_run
from ..prepare.prepared import Prepared
from ..run.earlier import PlannedRun, clear
from ..run.folder import Claim
from ..run.resumption import still_going_on
from ..run.run import Outcome
from .folders import reason
from .job import Job

_TAKEN_S = 8.0
"""How long a sweep that was killed may take to leave its folder."""


@dataclass(frozen=True)
class Ended:
    """A run that the sweep has made, however it ended."""

    run: PlannedRun
    outcome: Outcome
    seconds: float


def alone_in(folder: Path) -> Claim:
    """Keeps other sweeps out of the folder, which is made where it is missing. Raises ConfigError."""
    try:
        return Claim(folder, ConfigError(f"--out {folder}: another sweep is at work in it"), _TAKEN_S)
    except OSError as error:
        raise ConfigError(f"--out {folder}: cannot be used: {reason(error)}") from error


def prepare(runs: Sequence[PlannedRun]) -> list[Prepared]:
    """Makes every run ready to be taken up, and returns those that begin. Raises ConfigError, and leaves nothing of
    runs that were not there.

    What has a checkpoint is left as it is; what has none begins anew, once all that is new has been found right.
    """
    new = [run for run in runs if not run.folder.exists()]
    again = [run for run in runs if run not in new and not run.has_checkpoint]
    made: list[PlannedRun] = []
    prepared: list[Prepared] = []
    nowhere = Path("/nowhere")  # the job that takes a run up knows where its sockets are
    try:
        for run in (*new, *again):
            clear(run.folder)
            made.append(run)
            with Claim(run.folder, still_going_on(run.folder)):
                prepared.append(prepare_run(run.config, run.folder, Site(nowhere, f"ipc://{nowhere}")))
    except BaseException as error:
        for each in made:
            if each in new:
                clear(each.folder)
        if isinstance(error, UserError):
            raise ConfigError(f"{run.name}: {error}") from None
        if isinstance(error, OSError | sqlite3.Error):
            raise ConfigError(f"{run.folder}: cannot be written: {reason(error)}") from error
        raise
    return prepared


class Crew:
    """Up to ``size`` jobs that share runs among them. A context manager: leaving it ends them."""

    def __init__(self, size: int, lock: int):
        self._size, self._lock = size, lock
        self._idle: list[Job] = []
        self._busy: dict[Job, tuple[PlannedRun, float]] = {}

    def run_all(self, runs: Sequence[PlannedRun], done: Callable[[Ended], None]) -> list[Ended]:
        """All of them, whether others fail or not; after Ctrl-C those that had ended and those that were going on.

        ``done`` is told of each as it ends.
        """
        waiting, ended = deque(runs), []
        interrupts.heed()
        try:
            while waiting or self._busy:
                while waiting and len(self._busy) < self._size:
                    self._begin(waiting.popleft())
                for job in select.select(list(self._busy), [], [])[0]:
                    for each in self._receive(job):
                        ended.append(each)
                        done(each)
        except KeyboardInterrupt:
            with interrupts.deferred():  # once is enough
                ended += self._interrupt()
        return ended

    def _begin(self, run: PlannedRun) -> None:
        job = self._idle.pop() if self._idle else Job(self._lock)
        self._busy[job] = run, time.monotonic()
        with suppress(ControlClosed):  # listening to it will tell
            job.take_up(run.folder)

    def _receive(self, job: Job) -> list[Ended]:
        """The end of its run, if that is what has come."""
        try:
            outcomes = job.line.receive_some()
        except ControlClosed:
            job.close()
            return [self._ended(job, Outcome("failure", ("the process that led this run has died",)))]
        self._idle += [job for _ in outcomes]
        return [self._ended(job, outcome) for outcome in outcomes]

    def _interrupt(self) -> list[Ended]:
        for job in self._busy:
            job.interrupt()
        outcomes = {job: job.last_outcome() or Outcome("interrupt") for job in self._busy}
        self._idle += outcomes
        return [self._ended(job, outcome) for job, outcome in outcomes.items()]

    def _ended(self, job: Job, outcome: Outcome) -> Ended:
        run, since = self._busy.pop(job)
        return Ended(run, outcome, time.monotonic() - since)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for job in self._busy:
            job.interrupt()
        for job in [*self._idle, *self._busy]:
            job.close()
