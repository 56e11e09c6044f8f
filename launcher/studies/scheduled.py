"""A sweep's runs as jobs of a scheduler, through submitit. A job is a process that takes up one run after the other, as
those of ``sweep`` do, and writes how each has ended to a file beside what submitit keeps of it."""

import json
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from ...topology.errors import install
from ...transport.limits import end_with_parent
from .. import ONE_THREAD, command, importing_as_here, interrupts
from ..config.files import parse
from ..config.sections import ConfigError
from ..run.earlier import PlannedRun, still_going_on
from ..run.folder import STORING_S, Claim
from ..run.run import Outcome
from .folders import raised_as
from .sweep import Ended, Jobs, outcome_of

EXECUTORS = ("slurm", "local")
_MODULE = "sheafgossip.launcher.studies.scheduled"
_LOOK_EVERY_S = 0.2
_GRACE_S = 5.0  # for a file of another host to be seen here; for processes of submitit to end
_MINUTES = {"slurm": 60, "local": 60 * 24 * 365}  # unless the user requests others


@dataclass
class _Job:
    job: Any  # submitit's
    left: list[PlannedRun]
    since: float = field(default_factory=time.monotonic)
    gone: float = 0.0  # since when it is no more


class Scheduled(AbstractContextManager["Scheduled"]):
    """Up to ``most`` jobs at a time, of ``batch`` runs each; ``requests`` are submitit's parameters, KEY=VALUE.
    Raises ConfigError."""

    def __init__(self, executor: str, root: Path, requests: Sequence[str], batch: int, most: int):
        if executor not in EXECUTORS:
            raise ConfigError(f"--executor {executor}: allowed: {', '.join(EXECUTORS)}")
        if find_spec("submitit") is None:
            raise ConfigError(f"--executor {executor} needs submitit: {install('slurm')}")
        import submitit

        self._folder, self._batch, self.size = root / "jobs", batch, most
        self._watched = os.getpid() if executor == "local" else 0
        asked: dict[str, Any] = {"timeout_min": _MINUTES[executor], "name": "sheafgossip"}
        for request in requests:
            key, _, value = request.partition("=")
            asked[key.strip()] = parse(value.strip())
        with raised_as(f"{self._folder}: cannot be written"):
            try:
                self._executor = submitit.AutoExecutor(self._folder, cluster=executor)
                self._executor.update_parameters(**asked)
            except (AssertionError, NameError, TypeError, ValueError, RuntimeError) as error:
                raise ConfigError(f"--executor {executor}: {str(error).splitlines()[0]}") from None
            finally:  # it is there when it is needed
                with suppress(OSError):
                    self._folder.rmdir()
        self._jobs: list[_Job] = []

    def make(self, runs: Sequence[PlannedRun], done: Callable[[Ended], None]) -> list[Ended]:
        """As ``Jobs.make``; Ctrl-C cancels the jobs."""
        waiting = deque(runs[first : first + self._batch] for first in range(0, len(runs), self._batch))
        ended = list[Ended]()
        interrupts.handle()
        try:
            while waiting or self._jobs:
                while waiting and len(self._jobs) < self.size:
                    self._jobs.append(self._submit(waiting.popleft()))
                for each in self._jobs:
                    for run, outcome in self._news(each):
                        each.left.remove(run)
                        ended.append(Ended(run, outcome, time.monotonic() - each.since))
                        done(ended[-1])
                self._jobs = [each for each in self._jobs if each.left or not each.job.done()]
                time.sleep(_LOOK_EVERY_S)
        except KeyboardInterrupt:
            with interrupts.deferred():  # once is enough
                ended += [Ended(run, Outcome("interrupt"), 0.0) for each in self._jobs for run in each.left]
                self.__exit__()
        return ended

    def _submit(self, runs: Sequence[PlannedRun]) -> _Job:
        from submitit.helpers import CommandFunction, environment_variables

        for run in runs:
            self._told_in(run).unlink(missing_ok=True)
        words = [
            *command(_MODULE),
            str(self._watched),
            str(self._folder),
            *(str(run.folder) for run in runs),
        ]
        own = {name: importing_as_here()[name] for name in ("PYTHONPATH", *ONE_THREAD)}
        try:  # Ctrl-C in a terminal is the sweep's to handle
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            with environment_variables(**own):
                return _Job(self._executor.submit(CommandFunction(words)), list(runs))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def _told_in(self, run: PlannedRun) -> Path:
        return self._folder / f"{run.folder.name}.json"

    def _news(self, job: _Job) -> list[tuple[PlannedRun, Outcome]]:
        if not job.gone and job.job.done():
            job.gone = time.monotonic()
        there = [(run, told) for run in job.left if (told := self._told_in(run)).exists()]
        news = [(run, Outcome(**json.loads(told.read_text(encoding="utf-8")))) for run, told in there]
        if job.gone and not there and time.monotonic() > job.gone + (0.0 if self._watched else _GRACE_S):
            why = f"its job has ended before it, see {job.job.paths.stderr}"
            news = [(run, Outcome("failure", (why,))) for run in job.left]
        return news

    def __exit__(self, *_: object) -> None:
        """Cancels the jobs that are left, and waits for the runs that go on."""
        for each in self._jobs:
            if not self._watched:
                each.job.cancel(check=False)
            with suppress(psutil.Error):  # of those that are not there yet, the end of this process is the end
                for process in psutil.Process(int(each.job.job_id)).children(recursive=True) if self._watched else ():
                    if _MODULE in process.cmdline():
                        process.terminate()
        for run in (run for each in self._jobs for run in each.left):
            with suppress(Exception), Claim(run.folder, still_going_on(run.folder), STORING_S):
                pass
        deadline = time.monotonic() + _GRACE_S
        while self._watched and time.monotonic() < deadline and not all(each.job.done() for each in self._jobs):
            time.sleep(_LOOK_EVERY_S)
        self._jobs = []


def opened(
    sweep: Claim,
    jobs: int | None,
    runs: int,
    executor: str | None = None,
    batch: int = 1,
    request: Sequence[str] | None = None,
) -> Jobs | Scheduled:
    """Returns what makes so many runs of the sweep in that folder. Raises ConfigError."""
    if executor is not None:
        most = jobs or (max(runs, 1) if executor == "slurm" else 1)
        return Scheduled(executor, sweep.folder, request or (), batch, most)
    if batch > 1 or request:
        raise ConfigError("--batch and --request are of jobs of a scheduler; add --executor, or leave them out")
    return Jobs(jobs or 1, sweep.descriptor)


def _end_with(process: int) -> None:
    """Asks this process to end when that one does."""
    with suppress(OSError):
        select.select([os.pidfd_open(process)], [], [])
    os.kill(os.getpid(), signal.SIGTERM)


def _lead_runs(watched: int, told_in: Path, folders: Sequence[Path]) -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):  # the last: submitit hears that time is running out
        signal.signal(number, signal.SIG_IGN)
    interrupts.handle(lasting=True)
    end_with_parent(None)
    if watched:
        threading.Thread(target=_end_with, args=[watched], daemon=True).start()
    from ..processes.engine import open_engine

    with open_engine() as engine:
        for folder in folders:
            outcome = outcome_of(folder, engine)
            part = told_in / f"{folder.name}.part"
            part.write_text(json.dumps({"status": outcome.status, "causes": outcome.causes}), encoding="utf-8")
            part.replace(told_in / f"{folder.name}.json")
            if outcome.status == "interrupt":
                break


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        _lead_runs(int(sys.argv[1]), Path(sys.argv[2]), [Path(each) for each in sys.argv[3:]])
