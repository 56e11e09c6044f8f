"""Running what is missing of a sweep, several runs at once."""

from __future__ import annotations

import select
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....topology.errors import UserError
from ....transport.control import ControlClosed
from ... import interrupts
from ...config.sections import ConfigError
from ...prepare.preparation import Prepared, prepare_run
from ...run.earlier import begin_anew, clear
from ...run.folder import Claim
from ...run.resumption import still_going_on
from ...run.run import Outcome
from .job import Job
from .plan import Planned

_PATIENCE_S = 8.0
"""How long a sweep that was killed may take to leave its folder."""


@dataclass(frozen=True)
class Ended:
    """A run that the sweep has made, however it ended."""

    run: Planned
    outcome: Outcome
    seconds: float


def alone_in(folder: Path) -> Claim:
    """Keeps other sweeps out of the folder, which is made where it is missing. Raises ConfigError."""
    try:
        return Claim(folder, ConfigError(f"--out {folder}: another sweep is at work in it"), _PATIENCE_S)
    except OSError as error:
        raise ConfigError(f"--out {folder}: cannot be used: {error.strerror or error}") from error


def prepare(runs: Sequence[Planned]) -> list[Prepared]:
    """Makes every run ready to be taken up, and returns those that begin. Raises ConfigError, and leaves nothing of
    runs that were not there.

    What has a checkpoint is left as it is; what has none begins anew, once all that is new has been found right.
    """
    new = [run for run in runs if not run.folder.exists()]
    begun = [run for run in runs if run not in new]
    made: list[Planned] = []
    prepared: list[Prepared] = []
    nowhere = Path("/nowhere")  # the job that takes a run up knows where its sockets are
    try:
        for run in (*new, *begun):
            if begin_anew(run.folder):
                made.append(run)
                with Claim(run.folder, still_going_on(run.folder)):
                    prepared.append(prepare_run(run.config, run.folder, sockets=nowhere, records=f"ipc://{nowhere}"))
    except BaseException as error:
        for each in made:
            if each in new:
                clear(each.folder)
        if isinstance(error, UserError):
            raise ConfigError(f"{run.name}: {error}") from None
        if isinstance(error, OSError | sqlite3.Error):
            reason = error.strerror if isinstance(error, OSError) else None
            raise ConfigError(f"{run.folder}: cannot be written: {reason or error}") from error
        raise
    return prepared


class Crew:
    """Up to ``size`` jobs that share runs among them. A context manager: leaving it ends them."""

    def __init__(self, size: int, lock: int):
        self._size, self._lock = size, lock
        self._idle: list[Job] = []
        self._busy: dict[Job, tuple[Planned, float]] = {}

    def run_all(self, runs: Sequence[Planned], done: Callable[[Ended], None]) -> list[Ended]:
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
                    for each in self._heed(job):
                        ended.append(each)
                        done(each)
        except KeyboardInterrupt:
            with interrupts.deferred():  # once is enough
                ended += self._interrupt()
        return ended

    def _begin(self, run: Planned) -> None:
        job = self._idle.pop() if self._idle else Job(self._lock)
        self._busy[job] = run, time.monotonic()
        with suppress(ControlClosed):  # listening to it will tell
            job.take_up(run.folder)

    def _heed(self, job: Job) -> list[Ended]:
        """The end of its run, if that is what it says."""
        try:
            said = job.line.receive_some()
        except ControlClosed:
            job.close()
            return [self._ended(job, {"status": "failure", "causes": ["the process that led this run has died"]})]
        self._idle += [job for _ in said]
        return [self._ended(job, message) for message in said]

    def _interrupt(self) -> list[Ended]:
        for job in self._busy:
            job.interrupt()
        said = {job: job.last_words() or [{"status": "interrupt", "causes": []}] for job in self._busy}
        self._idle += said
        return [self._ended(job, message) for job, messages in said.items() for message in messages]

    def _ended(self, job: Job, message: dict[str, Any]) -> Ended:
        run, since = self._busy.pop(job)
        return Ended(run, Outcome(message["status"], tuple(message["causes"])), time.monotonic() - since)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for job in self._busy:
            job.interrupt()
        for job in [*self._idle, *self._busy]:
            job.close()
