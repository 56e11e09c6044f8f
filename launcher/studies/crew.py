"""Runs what is missing of a sweep, several runs at once, each in a process of its own."""

import select
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ...topology.errors import UserError
from .. import interrupts
from ..config.sections import ConfigError
from ..prepare.assignments import Site
from ..prepare.preparation import prepare_run
from ..prepare.prepared import Prepared
from ..run.earlier import PlannedRun, clear, still_going_on
from ..run.folder import Claim
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
    prepared: list[Prepared] = []
    nowhere = Path("/nowhere")  # the job that takes a run up knows where its sockets are
    with ExitStack() as undo:
        for run in (*new, *again):
            if run in new:
                undo.callback(clear, run.folder)
            clear(run.folder)
            try:
                with Claim(run.folder, still_going_on(run.folder)):
                    prepared.append(prepare_run(run.config, run.folder, Site(nowhere, f"ipc://{nowhere}")))
            except UserError as error:
                raise ConfigError(f"{run.name}: {error}") from None
            except (OSError, sqlite3.Error) as error:
                raise ConfigError(f"{run.folder}: cannot be written: {reason(error)}") from error
        undo.pop_all()
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
        interrupts.handle()
        try:
            while waiting or self._busy:
                while waiting and len(self._busy) < self._size:
                    job = self._idle.pop() if self._idle else Job(self._lock)
                    self._busy[job] = waiting[0], time.monotonic()
                    job.take_up(waiting.popleft().folder)
                for job in select.select(list(self._busy), [], [])[0]:
                    for outcome in job.outcomes():
                        ended.append(self._ended(job, outcome))
                        done(ended[-1])
        except KeyboardInterrupt:
            with interrupts.deferred():  # once is enough
                for job in self._busy:
                    job.interrupt()
                ended += [self._ended(job, job.last_outcome() or Outcome("interrupt")) for job in list(self._busy)]
        return ended

    def _ended(self, job: Job, outcome: Outcome) -> Ended:
        run, since = self._busy.pop(job)
        if not job.is_closed:
            self._idle.append(job)
        return Ended(run, outcome, time.monotonic() - since)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for job in self._busy:
            job.interrupt()
        for job in [*self._idle, *self._busy]:
            job.close()
