"""A sweep: one configuration with many values and seeds, where its runs live, and how several are made at once. A run
needs the main thread of its launcher, for signals; so each of those that go on at once is led by a job, a process that
takes up one run after the other, on a fork server of its own, as the sweep tells it to."""

import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any

from ...metrics import lock
from ...metrics.config_file import differing, parse as parse_toml, setting_of, short_names
from ...topology.errors import UserError
from ...transport.control import Control, ControlClosed, ControlMessage
from ...transport.limits import end_with_parent
from .. import command, importing_as_here, interrupts
from ..config.effect import refuse
from ..config.files import Overrides, load, parse, refuse_without_effect
from ..config.sections import ConfigError, RunConfig
from ..prepare.assignments import Site
from ..prepare.preparation import prepare_run
from ..prepare.prepared import Prepared
from ..processes import emulation
from ..processes.engine import Engine
from ..run.earlier import PlannedRun, clear, configuration, load_code, missing_of, still_going_on
from ..run.folder import Claim
from ..run.run import Outcome
from .folders import raised_as, slug

_MOST_RUNS = 100_000
_NOT_HERE = {
    "seed": "how many seeds there are is told by --seeds",
    "name": "it changes nothing in a run",
    "compare": "[[compare]] tables are written in the file",
}
_TAKEN_S = 8.0  # how long a sweep that was killed may take to leave its folder
_END_S = 60.0  # for a job's run to end, most of all to store what has piled up
_GRACE_S = 10.0  # for a job to end after that

Grids = Mapping[str, tuple[Any, ...]]  # {key: the values that a sweep tries}


def parse_grids(given: Sequence[str] | Mapping[str, Sequence[Any]]) -> Grids:
    """Reads each "key=value,value"; values as in TOML, bare words need no quotes. Raises ConfigError."""
    grids: dict[str, tuple[Any, ...]] = {}
    for text, key, found in _lists(given):
        for is_wrong, told in (
            (not (key and found), 'write it as key=value,value, for example --grid "algorithm.gamma=0.01,0.03"'),
            (key in _NOT_HERE, f"{key} cannot be swept: {_NOT_HERE.get(key)}"),
            (key in grids, f"{key} has a grid already; write all its values in one"),
            ("" in found, "a value between the commas is missing"),
            (any(isinstance(value, dict) for value in found), "a value is a table; write a grid for each of its keys"),
        ):
            if is_wrong:
                raise ConfigError(f"--grid {text}: {told}")
        for number, value in enumerate(found):
            if any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in found[:number]):
                raise ConfigError(f"--grid {text}: {value} is there twice")
        grids[key] = tuple(found)
    return grids


def _lists(given: Sequence[str] | Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, str, list[Any]]]:
    """Yields (how it was written, key, values)."""
    if isinstance(given, Mapping):
        for key, values in given.items():
            if isinstance(values, str) or not isinstance(values, Iterable) or not (values := list(values)):
                raise ConfigError(f"grid {key}: its values must be a list of at least one")
            yield key, key, values
        return
    for text in given:
        key, _, values = (part.strip() for part in text.partition("="))
        try:
            yield text, key, parse_toml(f"values = [{values}]")["values"]
        except ValueError:
            yield text, key, [parse(value) for value in values.split(",")]


@dataclass(frozen=True)
class Plan:
    """``runs`` go through all settings before the next seed. ``keys`` are those in which settings differ."""

    out: Path
    runs: tuple[PlannedRun, ...]
    keys: tuple[str, ...]
    naming: Callable[[RunConfig], str]

    def missing(self) -> list[PlannedRun]:
        """Returns the runs that have not finished. Raises ConfigError where the folder holds another sweep's, and
        RunFolderError where a run still goes on. Runs of other values or seeds may be there, and files beside them."""
        there = sorted(path for path in self.out.iterdir() if path.name != lock.NAME) if self.out.exists() else []
        folders = {run.folder for run in self.runs}
        own = [path for path in there if path in folders or self._is_kin(path)]
        for path in there:
            is_run = (path / "config.toml").exists() or (path / "run.sqlite").exists()
            if path not in own and (is_run or not own):
                raise ConfigError(f"--out {self.out}: {path.name} is no part of this sweep; choose another folder")
        return missing_of(self.runs)

    def _is_kin(self, folder: Path) -> bool:
        """Returns whether a run would be one of this sweep if there were more values or seeds."""
        config = configuration(folder)
        if config is None or folder.name != self.naming(config):
            return False
        kin = _flat(config, self.keys)
        return any(_flat(run.config, self.keys) == kin for run in self.runs)


def plan(file: Path | Mapping[str, Any], overrides: Overrides, grids: Grids, seeds: int, out: Path) -> Plan:
    """Makes the product of grids, [[compare]] tables and seeds, from the file's seed on. Raises ConfigError."""
    if (count := seeds * math.prod(map(len, grids.values()))) > _MOST_RUNS:
        raise ConfigError(f"sweep: these grids and seeds make {count:,} runs; at most {_MOST_RUNS:,} are made")
    configs, of_several = settings_of(file, overrides, grids)
    naming = partial(_name, list(grids), of_several)
    names = [naming(config) for config in configs]
    if twice := [name for number, name in enumerate(names) if name in names[:number]]:
        raise ConfigError(
            f"sweep: two settings would share the folder {twice[0]}: every [[compare]] table needs a name of its own, "
            "and values must differ in letters or digits"
        )
    if any(config.times_a_step for config in configs):
        raise ConfigError(
            "compute.step_s is not set: all runs of a sweep must count time alike; `sheafgossip plan` tells what a "
            "local step takes here"
        )
    seeded = [config.but(seed=config.seed + more) for more in range(seeds) for config in configs]
    runs = tuple(PlannedRun(config, out / naming(config)) for config in seeded)
    keys = dict.fromkeys([*grids, *differing([_flat(config) for config in configs])])
    return Plan(out, runs, tuple(keys), naming)


def settings_of(file: Path | Mapping[str, Any], overrides: Overrides, grids: Grids) -> tuple[list[RunConfig], bool]:
    """Returns the product of grids and [[compare]] tables, and whether these are several. Raises ConfigError."""
    points = [dict(zip(grids, values, strict=True)) for values in product(*grids.values())]  # the last turns fastest
    loaded = [load(file, overrides, point) for point in points]
    configs = [config for of_point in loaded for config in of_point]
    refuse_without_effect(overrides, configs)
    refuse({key: f"--grid {key}: " for key in grids}, configs)
    return configs, len(loaded[0]) > 1


def _name(keys: Sequence[str], of_several: bool, config: RunConfig) -> str:
    """Returns a run's folder."""
    return slug(f"{words_of(keys, of_several, config)} seed {config.seed}")


def words_of(keys: Sequence[str], of_several: bool, config: RunConfig) -> str:
    """Names a setting by the grids' keys: of paths their last part, 1 for 1.0, and 1e16 for 1e+16."""
    words, values = [config.label] if of_several else [], _flat(config)
    for name, key in zip(short_names(keys), keys, strict=True):
        value = values.get(key)
        text = value.rpartition("/")[2] if isinstance(value, str) else str(value).removesuffix(".0").replace("e+", "e")
        words.append(f"{name} {text}")
    return " ".join(words)


def _flat(config: RunConfig, without: Sequence[str] = ()) -> dict[str, Any]:
    return {key: value for key, value in setting_of(tomllib.loads(config.to_toml())).items() if key not in without}


# -- its runs, several at once -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    run: PlannedRun
    outcome: Outcome
    seconds: float
    hung: bool = False  # it was stopped, as it took too long


def alone_in(folder: Path) -> Claim:
    """Keeps other sweeps out of the folder, which is made where it is missing. Raises ConfigError."""
    with raised_as(f"--out {folder}: cannot be used"):
        return Claim(folder, ConfigError(f"--out {folder}: another sweep is at work in it"), _TAKEN_S)


def prepare(runs: Sequence[PlannedRun]) -> list[Prepared]:
    """Makes every run without a checkpoint ready to be taken up, new ones first, and returns them. Raises ConfigError,
    and leaves nothing of runs that were not there."""
    site = Site(Path("/nowhere"), "ipc:///nowhere")  # the job that takes a run up knows where its sockets are
    waiting = [(run.folder.exists(), run) for run in runs if not run.has_checkpoint]
    prepared: list[Prepared] = []
    with ExitStack() as undo:
        for was_there, run in sorted(waiting, key=itemgetter(0)):
            if not was_there:
                undo.callback(clear, run.folder)
            clear(run.folder)
            try:
                with raised_as("its folder cannot be written"), Claim(run.folder, still_going_on(run.folder)):
                    prepared.append(prepare_run(run.config, run.folder, site))
                    if prepared[-1].shape is not None:
                        emulation.require()
            except UserError as error:
                raise ConfigError(f"{run.folder.name}: {error}") from None
        undo.pop_all()
    return prepared


class Jobs(AbstractContextManager["Jobs"]):
    """Up to ``size`` of them, which begin when they are needed and end with this; ``lock`` as for a job."""

    def __init__(self, size: int, lock: int) -> None:
        self.size, self._lock = size, lock
        self._idle: list[_Job] = []

    def make(
        self, runs: Sequence[PlannedRun], done: Callable[[Ended], None], timeout_s: float = math.inf
    ) -> list[Ended]:
        """Makes all of them, whether others fail or not; after Ctrl-C it returns those that had ended and those that
        were going on. ``done`` is told of each as it ends, one that takes longer than ``timeout_s`` included."""
        waiting, ended = deque(runs), list[Ended]()
        busy: dict[_Job, tuple[PlannedRun, float]] = {}

        def end(job: _Job, outcome: Outcome, *, hung: bool = False) -> None:
            run, since = busy.pop(job)
            if job.fileno() >= 0 and not hung:  # it is there, and stays
                self._idle.append(job)
            ended.append(Ended(run, outcome, time.monotonic() - since, hung))

        interrupts.handle()
        try:
            while waiting or busy:
                while waiting and len(busy) < self.size:
                    job = self._idle.pop() if self._idle else _Job(self._lock)
                    busy[job] = waiting[0], time.monotonic()
                    with suppress(ControlClosed):  # listening to it will tell
                        job.send(TakeUp(str(waiting.popleft().folder)))
                left_s = min(since for _, since in busy.values()) + timeout_s - time.monotonic()
                for job in select.select(list(busy), [], [], None if left_s == math.inf else max(0.0, left_s))[0]:
                    for outcome in job.outcomes():
                        end(job, outcome)
                        done(ended[-1])
                for job in [job for job, (_, since) in busy.items() if time.monotonic() > since + timeout_s]:
                    with interrupts.deferred():
                        job.stop()
                        end(job, Outcome("failure", (f"still going on after {timeout_s:g} s",)), hung=True)
                    done(ended[-1])
        except KeyboardInterrupt:
            with interrupts.deferred():  # once is enough
                for job in busy:
                    job.process.terminate()
                for job in list(busy):
                    end(job, job.last_outcome() or Outcome("interrupt"))
        finally:
            for job in busy:
                job.process.terminate()
                job.end()
        return ended

    def __exit__(self, *_: object) -> None:
        for job in self._idle:
            job.end()


class TakeUp(ControlMessage):
    """Asks a job for a run that is prepared or was interrupted."""

    folder: str


class _Job(Control):
    """The sweep's end. The process holds ``lock``, a descriptor; terminated, it ends its run as after Ctrl-C."""

    def __init__(self, lock: int) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(ours, {"Outcome": Outcome})
        with theirs:
            self.process = subprocess.Popen(
                [*command(__name__), str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno(), lock],
                env=importing_as_here(),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal is the sweep's to handle
            )

    def outcomes(self) -> list[Outcome]:
        """Returns the end of its run, if that is what has come."""
        try:
            return self.receive_some()
        except ControlClosed:
            self.end()
            return [Outcome("failure", ("the process that led this run has died",))]

    def last_outcome(self) -> Outcome | None:
        """Returns how its run ended, if it tells that in time before it ends itself."""
        deadline = time.monotonic() + _END_S
        with suppress(ControlClosed):
            while self.wait(max(0.0, deadline - time.monotonic())):
                for outcome in self.receive_some():
                    return outcome
        return None

    def stop(self) -> None:
        """Ends it and its run, as after Ctrl-C."""
        self.process.terminate()
        self.last_outcome()
        self.end()

    def end(self) -> None:
        """Waits for its end, and makes it end if that takes long."""
        self.close()
        try:
            self.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def outcome_of(folder: Path, engine: Engine) -> Outcome:
    """Takes the run up that is prepared there, or was interrupted."""
    from .runner import take_up

    try:
        load_code(folder)  # the sweep has just loaded it, too
        return take_up(folder, engine).outcome
    except UserError as error:
        return Outcome("failure", (str(error),))


def _lead_runs(line_number: int, parent: int) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # that is the sweep's to handle
    interrupts.handle(lasting=True)
    end_with_parent(parent)
    line = Control(socket.socket(fileno=line_number), {"TakeUp": TakeUp})
    from ..processes.engine import open_engine

    with open_engine() as engine:
        while True:
            for message in line.receive_some():
                line.send(outcome := outcome_of(Path(message.folder), engine))
                if outcome.status == "interrupt":
                    return


if __name__ == "__main__":
    with suppress(ControlClosed, KeyboardInterrupt):
        _lead_runs(int(sys.argv[1]), int(sys.argv[2]))
