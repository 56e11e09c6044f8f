"""Running what is missing of a sweep, several runs at once."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...transport.control import ControlClosed
from .. import interrupts
from ..config import ConfigError
from ..kept import begin_anew
from ..preparation import prepare_run
from .job import Job
from .plan import Planned

_PATIENCE_S = 8.0
"""How long a sweep that was killed may take to leave its folder."""


@dataclass(frozen=True)
class Ended:
    """A run that the sweep has made, however it ended."""

    run: Planned
    status: Literal["finish", "failure", "interrupt"]
    causes: tuple[str, ...]
    seconds: float


@contextmanager
def alone_in(folder: Path) -> Iterator[int]:
    """Makes the folder and keeps other sweeps out of it; gives the descriptor that does so. Raises ConfigError.

    A folder that nothing was written to goes again.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"--out {folder}: cannot be used: {error.strerror or error}") from error
    try:
        _lock(lock, folder)
        yield lock
    finally:
        os.close(lock)
        for path in missing:
            if not any(path.iterdir()):
                path.rmdir()


def _lock(descriptor: int, folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ConfigError(f"--out {folder}: another sweep is at work in it") from None
            time.sleep(0.2)


def prepare(runs: Sequence[Planned]) -> None:
    """Makes every run ready to be taken up. Raises ConfigError, and leaves nothing of runs that were not there.

    What has a checkpoint is left as it is; what has none begins anew, once all that is new has been found right.
    """
    new = [run for run in runs if not run.folder.exists()]
    begun = [run for run in runs if run not in new]
    nowhere = Path("/nowhere")  # the job that takes a run up knows where its sockets are
    try:
        for run in (*new, *begun):
            if begin_anew(run.folder):
                prepare_run(run.config, run.folder, sockets=nowhere, records=f"ipc://{nowhere}")
    except BaseException as error:
        for each in new:
            shutil.rmtree(each.folder, ignore_errors=True)
        if isinstance(error, ConfigError):
            raise ConfigError(f"{run.name}: {error}") from None
        if isinstance(error, OSError):
            raise ConfigError(f"{run.folder}: cannot be written: {error.strerror or error}") from error
        raise


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
        return Ended(run, message["status"], tuple(message["causes"]), time.monotonic() - since)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for job in self._busy:
            job.interrupt()
        for job in [*self._idle, *self._busy]:
            job.close()
