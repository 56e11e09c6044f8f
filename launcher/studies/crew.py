"""Runs what is missing of a sweep, several runs at once.

A run needs the main thread of its launcher, for signals; so each of those that go on at once is led by a job, a process
that takes up one run after the other, on a fork server of its own, as the sweep tells it to.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from ...topology.errors import UserError
from ...transport.control import Control, ControlClosed, ControlMessage
from ...transport.limits import end_with_parent
from .. import interrupts
from ..config.sections import ConfigError
from ..prepare.assignments import Site
from ..prepare.preparation import prepare_run
from ..prepare.prepared import Prepared
from ..run.earlier import PlannedRun, clear, still_going_on
from ..run.folder import Claim
from ..run.run import Outcome
from .folders import raised_as

_TAKEN_S = 8.0  # how long a sweep that was killed may take to leave its folder
_END_S = 60.0  # for a job's run to end, most of all to store what has piled up
_GRACE_S = 10.0  # for a job to end after that


@dataclass(frozen=True)
class Ended:
    run: PlannedRun
    outcome: Outcome
    seconds: float


def alone_in(folder: Path) -> Claim:
    """Keeps other sweeps out of the folder, which is made where it is missing. Raises ConfigError."""
    with raised_as(f"--out {folder}: cannot be used"):
        return Claim(folder, ConfigError(f"--out {folder}: another sweep is at work in it"), _TAKEN_S)


def prepare(runs: Sequence[PlannedRun]) -> list[Prepared]:
    """Makes every run without a checkpoint ready to be taken up, new ones first, and returns them. Raises ConfigError,
    and leaves nothing of runs that were not there."""
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
                with raised_as("its folder cannot be written"), Claim(run.folder, still_going_on(run.folder)):
                    prepared.append(prepare_run(run.config, run.folder, Site(nowhere, f"ipc://{nowhere}")))
            except UserError as error:
                raise ConfigError(f"{run.name}: {error}") from None
        undo.pop_all()
    return prepared


def run_in_jobs(runs: Sequence[PlannedRun], size: int, lock: int, done: Callable[[Ended], None]) -> list[Ended]:
    """Makes all of them in up to ``size`` jobs, whether others fail or not; after Ctrl-C it returns those that had
    ended and those that were going on. ``done`` is told of each as it ends, ``lock`` as for a job."""
    waiting, ended = deque(runs), list[Ended]()
    idle: list[_Job] = []
    busy: dict[_Job, tuple[PlannedRun, float]] = {}

    def end(job: _Job, outcome: Outcome) -> None:
        run, since = busy.pop(job)
        if not job.is_closed:
            idle.append(job)
        ended.append(Ended(run, outcome, time.monotonic() - since))

    interrupts.handle()
    try:
        while waiting or busy:
            while waiting and len(busy) < size:
                job = idle.pop() if idle else _Job(lock)
                busy[job] = waiting[0], time.monotonic()
                job.take_up(waiting.popleft().folder)
            for job in select.select(list(busy), [], [])[0]:
                for outcome in job.outcomes():
                    end(job, outcome)
                    done(ended[-1])
    except KeyboardInterrupt:
        with interrupts.deferred():  # once is enough
            for job in busy:
                job.interrupt()
            for job in list(busy):
                end(job, job.last_outcome() or Outcome("interrupt"))
    finally:
        for job in busy:
            job.interrupt()
        for job in [*idle, *busy]:
            job.close()
    return ended


class TakeUp(ControlMessage):
    """Asks a job for a run that is prepared or was interrupted."""

    folder: str


class _Job:
    """The sweep's handle. It holds ``lock``, a descriptor, for as long as its process lives."""

    def __init__(self, lock: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno(), lock],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal is the sweep's to handle
            )
        self._line = Control(ours, {"Outcome": Outcome})
        self.is_closed = False

    def fileno(self) -> int:
        return self._line.fileno()

    def take_up(self, folder: Path) -> None:
        with suppress(ControlClosed):  # listening to it will tell
            self._line.send(TakeUp(str(folder)))

    def outcomes(self) -> list[Outcome]:
        """Returns the end of its run, if that is what has come."""
        try:
            return self._line.receive_some()
        except ControlClosed:
            self.close()
            return [Outcome("failure", ("the process that led this run has died",))]

    def interrupt(self) -> None:
        """Ends its run as after Ctrl-C, if it has one, then the process."""
        self._process.terminate()

    def last_outcome(self) -> Outcome | None:
        """Returns how its run ended, if it tells that in time before it ends itself."""
        deadline = time.monotonic() + _END_S
        with suppress(ControlClosed):
            while select.select([self._line], [], [], max(0.0, deadline - time.monotonic()))[0]:
                for outcome in self._line.receive_some():
                    return outcome
        return None

    def close(self) -> None:
        """Waits for its end, and makes it end if that takes long."""
        self.is_closed = True
        self._line.close()
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _lead_runs(line_number: int, parent: int) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # that is the sweep's to handle
    interrupts.handle(lasting=True)
    end_with_parent(parent)
    line = Control(socket.socket(fileno=line_number), {"TakeUp": TakeUp})
    from ..processes.engine import open_engine
    from .runner import take_up

    with open_engine() as engine:
        while True:
            for message in line.receive_some():
                try:
                    outcome = take_up(Path(message.folder), engine).outcome
                except UserError as error:
                    outcome = Outcome("failure", (str(error),))
                line.send(outcome)
                if outcome.status == "interrupt":
                    return


if __name__ == "__main__":
    with suppress(ControlClosed, KeyboardInterrupt):
        _lead_runs(int(sys.argv[1]), int(sys.argv[2]))
