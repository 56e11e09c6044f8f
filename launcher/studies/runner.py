"""Makes runs one after the other: what has a checkpoint goes on from it, everything else begins anew."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from ...metrics import tracking
from ...metrics.store import RunFolderError
from ...node.algorithms import libraries_of
from ...topology.errors import UserError
from .. import interrupts
from ..config.sections import ConfigError, RunConfig
from ..prepare.assignments import Site
from ..prepare.preparation import once_for_alike, prepare_run, work_out
from ..prepare.prepared import Prepared, check_resources, need_of
from ..processes import emulation
from ..processes.engine import Engine, EngineName, open_engine, shares_for
from ..processes.tracker import tracking_folder
from ..run import earlier
from ..run.earlier import PlannedRun
from ..run.folder import STORING_S, Claim, own_files, require_plain
from ..run.run import Outcome, Run
from .folders import raised_as, require_empty


@dataclass(frozen=True)
class Finished:
    prepared: Prepared
    outcome: Outcome


@dataclass(frozen=True)
class Means:
    """How runs are made; ``force``: also where memory seems too small. Raises UserError."""

    engine: EngineName = "local"
    address: str | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if self.engine not in get_args(EngineName):
            raise UserError(f"--engine {self.engine}: allowed are {', '.join(get_args(EngineName))}")
        if self.address is not None and self.engine != "ray":
            raise UserError(f"--address {self.address}: is where a Ray cluster is; add --engine ray, or leave it out")

    def open(self, first: RunConfig) -> Engine:
        """Returns an engine that begins to load what this run needs. Raises EngineError."""
        kinds = [model.kind for model in (first.model, *first.model.mix)]
        libraries = libraries_of(first.algorithm, kinds, first.training)
        return open_engine(self.engine, self.address, [*libraries, *shares_for(first.clients)])


class Observer:
    def begins(self, prepared: Prepared) -> Callable[..., None]:
        """Returns what the run calls while it goes on, as ``Run`` says."""
        return lambda *_: None

    def has_ended(self, finished: Finished) -> None:
        pass


def run_each(runs: Sequence[PlannedRun], observer: Observer = Observer(), means: Means = Means()) -> list[Finished]:
    """Prepares every run in its folder, or takes it up from its checkpoint, and runs them in turn, also where one
    fails. Raises ConfigError, RunFolderError before any has started, also where memory is too small, unless forced."""
    finished: list[Finished] = []
    if not runs:
        return finished
    with ExitStack() as stack:
        claims = [stack.enter_context(_claim(run.folder)) for run in runs]
        engine = stack.enter_context(means.open(runs[0].config))
        interrupts.handle()
        for run in runs:
            if run.has_checkpoint:
                earlier.require_sound_records(run.folder)
            elif any(path.stat().st_size for path in own_files(run.folder)):
                require_empty(run.folder)  # another run has begun, and ended, there meanwhile
        new = {claim: run.config for claim, run in zip(claims, runs, strict=True) if not run.has_checkpoint}
        prepared = _prepare_all(new, engine, means.force) if new else {}  # while the engine loads its libraries
        for claim, run in zip(claims, runs, strict=True):
            ready = prepared.get(claim) or _taken_up(claim, run.config, engine)
            finished.append(_run(ready, claim, engine, observer))
            observer.has_ended(finished[-1])
            if finished[-1].outcome.status == "interrupt":
                break
    return finished


def resume(
    folder: Path, observer: Observer = Observer(), means: Means = Means(), *, rounds: int | None = None
) -> Finished:
    """Takes up an interrupted run; with ``rounds``, a finished one, too, until it has so many. Raises ConfigError,
    RunFolderError."""
    with _interrupted(folder, rounds) as (claim, config), means.open(config) as engine:
        interrupts.handle()
        return _run(_taken_up(claim, config, engine, rounds), claim, engine, observer)


def take_up(folder: Path, engine: Engine, observer: Observer = Observer(), rounds: int | None = None) -> Finished:
    """As ``resume``, on an engine that is there; also begins a run that is only prepared."""
    with _interrupted(folder, rounds) as (claim, config):
        return _run(_taken_up(claim, config, engine, rounds), claim, engine, observer)


@contextmanager
def _interrupted(folder: Path, rounds: int | None) -> Iterator[tuple[Claim, RunConfig]]:
    """Keeps a run that can be taken up for this process alone. Raises RunFolderError before anything is touched."""
    earlier.read_run(folder, rounds)
    with raised_as(f"{folder}: cannot be written", RunFolderError):
        claim = Claim(folder, earlier.still_going_on(folder), STORING_S)
    with claim:
        yield claim, earlier.read_run(folder, rounds)  # it may have come to its end meanwhile


def _claim(folder: Path) -> Claim:
    """Keeps it for this process alone. Raises ConfigError, RunFolderError."""
    require_plain(folder)
    with raised_as(f"--out {folder}: cannot be written"):
        return Claim(folder, ConfigError(f"--out {folder}: another run is at work in it; choose another name"))


def preparation(engine: Engine, *, force: bool = False) -> Callable[..., Prepared]:
    """Returns what prepares runs for the engine; local steps are timed once for those that are alike."""
    hosts = tuple(replace(host, memory=math.inf) if force else host for host in engine.hosts())
    time_a_step = once_for_alike(engine.time_a_step)

    def prepare(config: RunConfig, folder: Path, how: Callable[..., Prepared] = prepare_run) -> Prepared:
        if engine.shares_process and config.measuring.kernel:
            raise ConfigError("measuring.kernel = true: counts by a process's descriptors, not with --engine threads")
        if config.tracking.to != "none":
            tracking.require(
                config.tracking.to, f"tracking.to = {config.tracking.to!r}", tracking_folder(config, folder)
            )
        if engine.spans_hosts and config.transport.protocol != "tcp":
            config = config.but(transport={"protocol": "tcp"})
        own = engine.folder_for_run()
        prepared = how(config, folder, Site(own, engine.records_at.format(own), hosts), time_a_step)
        if prepared.shape is not None:
            emulation.require()
        return prepared

    return prepare


def _prepare_all(configs: dict[Claim, RunConfig], engine: Engine, force: bool) -> dict[Claim, Prepared]:
    prepared: dict[Claim, Prepared] = {}
    prepare = preparation(engine, force=force)
    try:
        for claim, config in configs.items():
            with raised_as(f"--out {claim.folder}: cannot be written"):
                prepared[claim] = prepare(config, claim.folder)
        if not engine.spans_hosts:  # else each host's memory was seen to when clients were placed
            needs = [need_of(each, one_process=engine.shares_process) for each in prepared.values()]
            check_resources(needs, force=force)
    except BaseException:  # a refused run leaves nothing behind
        for claim in configs:
            claim.clear()
        raise
    return prepared


def _taken_up(claim: Claim, config: RunConfig, engine: Engine, rounds: int | None = None) -> Prepared:
    """Prepares the run to go on where it was interrupted, perhaps to more rounds than it had."""
    with raised_as(f"{claim.folder}: cannot be taken up", RunFolderError):
        earlier.require_sound_records(claim.folder)
        earlier.require_same_files(config, claim.folder)
        prepare, more = preparation(engine), rounds not in (None, config.rounds)
        prepared = prepare(config, claim.folder, work_out if more else prepare_run)
        if more:
            longer = prepare(prepared.config.but(rounds=rounds), claim.folder, work_out)
            prepared = earlier.extended(prepared, longer)
        return earlier.taken_up(prepared)


def _run(prepared: Prepared, claim: Claim, engine: Engine, observer: Observer) -> Finished:
    return Finished(prepared, Run(prepared, engine, observer.begins(prepared), lock=claim.descriptor)())
