"""What one ``sheafgossip run`` does: every run of a configuration file, one after the other, in one folder."""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ...metrics import lock
from ...metrics.schema import RunFolderError
from ...node.process.libraries import libraries_of
from .. import interrupts
from ..config.sections import ConfigError, RunConfig
from ..prepare.memory import check_room, need_of
from ..prepare.preparation import Calibrate, Prepared, once_for_alike, prepare_run, work_out
from ..processes.engines import Engine, EngineName, open_engine
from ..run.extension import extended
from ..run.folder import STORING_S, Claim, make, own_files, remove_empty, require_plain
from ..run.resumption import read_run, require_sound_records, still_going_on, taken_up
from ..run.run import Outcome, Run


@dataclass(frozen=True)
class Finished:
    """A run that has ended, however it ended."""

    prepared: Prepared
    outcome: Outcome
    ready_s: float | None


Watch = Callable[..., None]
"""As `Run` calls it."""


@contextmanager
def new_folder(wanted: Path | None, config_file: Path) -> Iterator[Path]:
    """``wanted`` if it is free, else runs/NAME, runs/NAME-2, ... by the configuration's name, made for this process.

    It goes again if nothing is written to it. Raises ConfigError.
    """
    made: list[Path] = []
    try:
        if wanted is not None:
            _require_empty(wanted)
            folder = wanted.resolve()
            made = make(folder)
        else:
            made = make(Path("runs").resolve())
            folder = _numbered(Path("runs").resolve() / config_file.stem)
            made = [folder, *made]
    except OSError as error:
        raise _cannot_be_written(wanted or Path("runs"), error) from error
    try:
        yield folder
    finally:
        remove_empty(*made)


def begun_folder(out: Path | None, configs: Sequence[RunConfig]) -> Path | None:
    """``out``, where it holds some of the runs that a configuration file describes, and none of anything else."""
    if out is None or len(configs) == 1 or not out.is_dir():
        return None
    folders = folders_of(configs, out.resolve())
    runs = {path.parent for name in ("run.sqlite", "config.toml") for path in out.resolve().glob(f"*/{name}")}
    return out.resolve() if runs and runs <= set(folders) else None


def _numbered(wanted: Path) -> Path:
    """The first of NAME, NAME-2, ... that is not there, made; of two processes each gets another."""
    count, folder = 1, wanted
    while True:
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
        count += 1
        folder = wanted.with_name(f"{wanted.name}-{count}")


def _require_empty(folder: Path) -> None:
    """But for the lock of who may be about to begin there."""
    if folder.exists() and (not folder.is_dir() or any(path.name != lock.NAME for path in folder.iterdir())):
        raise ConfigError(f"--out {folder}: is not an empty folder; nothing is overwritten, choose another name")


def _cannot_be_written(folder: Path, error: Exception) -> ConfigError:
    reason = error.strerror if isinstance(error, OSError) else None
    return ConfigError(f"--out {folder}: cannot be written: {reason or error}")


def run_all(
    configs: Sequence[RunConfig],
    root: Path,
    watch: Callable[[Prepared], Watch],
    done: Callable[[Finished], None],
    *,
    force: bool = False,
    engine: EngineName = "local",
    address: str | None = None,
) -> list[Finished]:
    """As ``run_each``: a single run lives in ``root`` itself, several in folders below it."""
    return run_each(configs, folders_of(configs, root), watch, done, force=force, engine=engine, address=address)


def run_each(
    configs: Sequence[RunConfig],
    folders: Sequence[Path],
    watch: Callable[[Prepared], Watch],
    done: Callable[[Finished], None],
    begun: Collection[Path] = (),
    *,
    force: bool = False,
    engine: EngineName = "local",
    address: str | None = None,
) -> list[Finished]:
    """Prepares every run in its folder, then runs them in turn. Raises ConfigError, RunFolderError before any has
    started, also where one would not fit into this machine's memory, unless ``force``.

    Those in the folders ``begun`` are taken up when it is their turn. A run that fails does not keep the next from
    running. ``watch`` is told of a run that starts and gives what to call while it goes on; ``done`` is told when it
    has ended.
    """
    finished: list[Finished] = []
    with _claimed(folders, begun) as claims, open_engine(engine, address, _libraries_of(configs)) as opened:
        interrupts.heed()
        for folder in begun:
            require_sound_records(folder)
        new = [(config, claim) for config, claim in zip(configs, claims, strict=True) if claim.folder not in begun]
        prepared = _prepare_all(new, opened, force) if new else []  # while the engine loads its libraries
        there = {each.folder: each for each in prepared}
        for number, (config, claim) in enumerate(zip(configs, claims, strict=True)):
            each = there.get(claim.folder) or _made_ready(claim, config, opened, f"{number}-begun")
            run = Run(each, opened, watch(each), lock=claim.descriptor)
            finished.append(Finished(each, run(), run.ready_s))
            done(finished[-1])
            if finished[-1].outcome.status == "interrupt":
                break
    return finished


def slug(name: str) -> str:
    """The name of a run as that of a folder."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def resume(
    folder: Path,
    watch: Callable[[Prepared], Watch],
    engine: EngineName = "local",
    address: str | None = None,
    *,
    rounds: int | None = None,
) -> Finished:
    """Takes up an interrupted run after its last whole checkpoint; with ``rounds``, one that is finished too, until it
    has so many. Raises ConfigError, RunFolderError."""
    with (
        _interrupted(folder, rounds) as (claim, config),
        open_engine(engine, address, _libraries_of([config])) as opened,
    ):
        interrupts.heed()
        return _go_on(claim, config, opened, watch, 0, rounds)


def take_up(
    folder: Path, engine: Engine, watch: Callable[[Prepared], Watch], number: int, *, rounds: int | None = None
) -> Finished:
    """The same on an engine that is there, as its ``number``-th run; also begins one that is only prepared."""
    with _interrupted(folder, rounds) as (claim, config):
        return _go_on(claim, config, engine, watch, number, rounds)


@contextmanager
def _interrupted(folder: Path, rounds: int | None = None) -> Iterator[tuple[Claim, RunConfig]]:
    """A run that can be taken up, for this process alone. What cannot be is refused before anything is touched."""
    read_run(folder, rounds)
    try:
        claim = Claim(folder, still_going_on(folder), STORING_S)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be written: {error.strerror or error}") from error
    with claim:
        yield claim, read_run(folder, rounds)  # it may have come to its end meanwhile


def _go_on(
    claim: Claim,
    config: RunConfig,
    engine: Engine,
    watch: Callable[[Prepared], Watch],
    number: int,
    rounds: int | None,
) -> Finished:
    prepared = _made_ready(claim, config, engine, number, rounds)
    run = Run(prepared, engine, watch(prepared), lock=claim.descriptor)
    return Finished(prepared, run(), run.ready_s)


def _made_ready(
    claim: Claim, config: RunConfig, engine: Engine, number: int | str, rounds: int | None = None
) -> Prepared:
    """A run that is to be taken up, perhaps with more rounds."""
    folder = claim.folder
    try:
        require_sound_records(folder)
        if rounds is None or rounds == config.rounds:
            prepared = _prepare(config, folder, engine, engine.time_a_step, number)
        else:
            was = _prepare(config, folder, engine, engine.time_a_step, f"{number}-was", how=work_out)
            longer = was.config.model_copy(update={"rounds": rounds})
            prepared = extended(was, _prepare(longer, folder, engine, engine.time_a_step, number, how=work_out))
        return taken_up(prepared)
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise RunFolderError(f"{folder}: cannot be taken up: {reason or error}") from error


@contextmanager
def _claimed(folders: Sequence[Path], begun: Collection[Path] = ()) -> Iterator[list[Claim]]:
    """The folders of runs that are about to begin, or have ``begun``, for this process alone. Raises ConfigError,
    RunFolderError."""
    with ExitStack() as stack:
        claims = []
        for folder in folders:
            require_plain(folder)
            taken = ConfigError(f"--out {folder}: another run is at work in it; choose another name")
            try:
                claims.append(stack.enter_context(Claim(folder, taken)))
            except OSError as error:
                raise _cannot_be_written(folder, error) from error
            if folder not in begun and any(
                path.stat().st_size for path in own_files(folder)
            ):  # of a run that has begun, and ended, meanwhile
                _require_empty(folder)
        yield claims


def _prepare_all(runs: Sequence[tuple[RunConfig, Claim]], engine: Engine, force: bool) -> list[Prepared]:
    prepared = []
    try:
        time_a_step = once_for_alike(engine.time_a_step)
        for number, (config, claim) in enumerate(runs):
            prepared.append(_prepare(config, claim.folder, engine, time_a_step, number, force=force))
        if not engine.spans_hosts:  # else each host's memory was seen to when clients were placed
            check_room([need_of(each, one_process=engine.shares_process) for each in prepared], force=force)
    except BaseException as error:  # a refused run leaves nothing behind
        for _, each in runs:
            each.clear()
        if isinstance(error, OSError | sqlite3.Error):
            raise _cannot_be_written(claim.folder, error) from error
        raise
    return prepared


def _prepare(
    config: RunConfig,
    folder: Path,
    engine: Engine,
    calibrate: Calibrate,
    number: int | str = 0,
    *,
    force: bool = False,
    how: Callable[..., Prepared] = prepare_run,
) -> Prepared:
    if engine.shares_process and config.measuring.kernel:
        raise ConfigError("measuring.kernel = true: counts by a process's descriptors, which --engine threads has not")
    own = engine.sockets / str(number)
    own.mkdir(mode=0o700)
    hosts = engine.hosts()
    if engine.spans_hosts and config.transport.protocol != "tcp":
        config = config.model_copy(update={"transport": config.transport.model_copy(update={"protocol": "tcp"})})
    if force:
        hosts = tuple(replace(host, memory=math.inf) for host in hosts)
    return how(config, folder, sockets=own, records=engine.records_at(own), hosts=hosts, calibrate=calibrate)


def _libraries_of(configs: Iterable[RunConfig]) -> set[str]:
    return {
        library
        for config in configs
        for library in libraries_of(config.algorithm.name, [model.kind for model in (config.model, *config.model.mix)])
    }


def folders_of(configs: Sequence[RunConfig], root: Path) -> list[Path]:
    """Raises ConfigError."""
    if len(configs) == 1:
        return [root]
    names = [slug(config.label) for config in configs]
    if len(set(names)) < len(names):
        raise ConfigError("compare: every run needs a name of its own; add name = ... to each [[compare]] table")
    return [root / name for name in names]
