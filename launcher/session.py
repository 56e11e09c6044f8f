"""What one ``sheafgossip run`` does: every run of a configuration file, one after the other, in one folder."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..node.libraries import libraries_of
from . import interrupts
from .config import ConfigError, RunConfig
from .engines import Engine, EngineName, open_engine
from .preparation import Calibrate, Prepared, once_for_alike, prepare_run
from .resumption import read_run, taken_up
from .room import check_room, need_of
from .run import Outcome, Run


@dataclass(frozen=True)
class Finished:
    """A run that has ended, however it ended."""

    prepared: Prepared
    outcome: Outcome
    ready_s: float | None


Watch = Callable[..., None]
"""As `Run` calls it."""


def new_folder(wanted: Path | None, config_file: Path) -> Path:
    """``wanted`` if it is free, else runs/NAME, runs/NAME-2, ... by the configuration's name. Raises ConfigError."""
    if wanted is not None:
        if wanted.exists() and (not wanted.is_dir() or any(wanted.iterdir())):
            raise ConfigError(f"--out {wanted}: is not an empty folder; nothing is overwritten, choose another name")
        return wanted.resolve()
    count, folder = 1, Path("runs") / config_file.stem
    while folder.exists():
        count += 1
        folder = Path("runs") / f"{config_file.stem}-{count}"
    return folder.resolve()


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
    folders = [root] if len(configs) == 1 else _folders(configs, root)
    return run_each(configs, folders, root, watch, done, force=force, engine=engine, address=address)


def run_each(
    configs: Sequence[RunConfig],
    folders: Sequence[Path],
    root: Path,
    watch: Callable[[Prepared], Watch],
    done: Callable[[Finished], None],
    *,
    force: bool = False,
    engine: EngineName = "local",
    address: str | None = None,
) -> list[Finished]:
    """Prepares every run in its folder, in or below ``root``, then runs them in turn. Raises ConfigError before any has
    started, also where one would not fit into this machine's memory, unless ``force``.

    A run that fails does not keep the next from running. ``watch`` is told of a run that starts and gives what to call
    while it goes on; ``done`` is told when it has ended.
    """
    finished: list[Finished] = []
    with open_engine(engine, address, _libraries_of(configs)) as opened:  # loads them while the data is cut
        interrupts.heed()
        prepared = _prepare_all(configs, folders, root, opened, force)
        for each in prepared:
            run = Run(each, opened, watch(each))
            finished.append(Finished(each, run(), run.ready_s))
            done(finished[-1])
            if finished[-1].outcome.status == "interrupt":
                break
    return finished


def slug(name: str) -> str:
    """The name of a run as that of a folder."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def resume(
    folder: Path, watch: Callable[[Prepared], Watch], engine: EngineName = "local", address: str | None = None
) -> Finished:
    """Takes up an interrupted run after its last complete checkpoint. Raises ConfigError, RunFolderError."""
    config = read_run(folder)  # what cannot be taken up is refused before anything starts
    with open_engine(engine, address, _libraries_of([config])) as opened:
        interrupts.heed()
        return take_up(folder, opened, watch)


def take_up(folder: Path, engine: Engine, watch: Callable[[Prepared], Watch], number: int = 0) -> Finished:
    """The same on an engine that is there, as its ``number``-th run; also begins one that is only prepared."""
    prepared = taken_up(_prepare(read_run(folder), folder, engine, engine.time_a_step, number))
    run = Run(prepared, engine, watch(prepared))
    return Finished(prepared, run(), run.ready_s)


def _prepare_all(
    configs: Sequence[RunConfig], folders: Sequence[Path], root: Path, engine: Engine, force: bool
) -> list[Prepared]:
    prepared = []
    existed, made = root.exists(), _topmost_missing(root)
    try:
        time_a_step = once_for_alike(engine.time_a_step)
        for number, (config, folder) in enumerate(zip(configs, folders, strict=True)):
            prepared.append(_prepare(config, folder, engine, time_a_step, number, force=force))
        if not engine.spans_hosts:  # else each host's memory was seen to when clients were placed
            check_room([need_of(each) for each in prepared], force=force)
    except BaseException as error:  # a refused run leaves nothing behind
        for path in folders if existed else [made]:
            shutil.rmtree(path, ignore_errors=True)
        if existed:
            root.mkdir(exist_ok=True)
        if isinstance(error, OSError):
            raise ConfigError(f"--out {root}: cannot be written: {error.strerror or error}") from error
        raise
    return prepared


def _prepare(
    config: RunConfig, folder: Path, engine: Engine, calibrate: Calibrate, number: int = 0, *, force: bool = False
) -> Prepared:
    own = engine.sockets / str(number)
    own.mkdir(mode=0o700)
    hosts = engine.hosts()
    if engine.spans_hosts and config.transport.protocol != "tcp":
        config = config.model_copy(update={"transport": config.transport.model_copy(update={"protocol": "tcp"})})
    if force:
        hosts = tuple(replace(host, memory=math.inf) for host in hosts)
    return prepare_run(config, folder, sockets=own, records=engine.records_at(own), hosts=hosts, calibrate=calibrate)


def _libraries_of(configs: Iterable[RunConfig]) -> set[str]:
    return {
        library
        for config in configs
        for library in libraries_of(config.algorithm.name, [model.kind for model in (config.model, *config.model.mix)])
    }


def _topmost_missing(folder: Path) -> Path:
    """Of ``folder`` and those above it, the highest that does not exist."""
    while not folder.exists() and not folder.parent.exists():
        folder = folder.parent
    return folder


def _folders(configs: Sequence[RunConfig], root: Path) -> list[Path]:
    names = [slug(config.label) for config in configs]
    if len(set(names)) < len(names):
        raise ConfigError("compare: every run needs a name of its own; add name = ... to each [[compare]] table")
    return [root / name for name in names]
