"""Taking up a run that was interrupted: from the last round of which everything is there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil

from ..metrics.config_file import parse, read_text
from ..metrics.reader import open_records
from ..metrics.schema import RunFolderError
from ..metrics.store import Store
from ..node.assignment import name_of
from .config import ConfigError, RunConfig, validate
from .lives import rounds_of
from .preparation import Prepared


def read_run(folder: Path) -> RunConfig:
    """The configuration of a run that can be taken up. Raises RunFolderError."""
    with open_records(folder) as records:
        launchers = records.execute("SELECT pid FROM node WHERE node = -1").fetchall()
        finished = records.execute("SELECT count(*) FROM event WHERE node = -1 AND kind = 'finish'").fetchone()[0]
    if finished:
        raise RunFolderError(f"{folder}: this run is finished; there is nothing to resume")
    for (pid,) in launchers:
        if is_at_work(pid):
            raise RunFolderError(f"{folder}: this run is still going on (process {pid})")
    try:
        return validate(parse(read_text(folder / "config.toml")))
    except OSError as error:
        raise RunFolderError(f"{folder}: config.toml cannot be read: {error.strerror or error}") from None
    except ConfigError:
        raise
    except ValueError as error:
        raise RunFolderError(f"{folder}: config.toml is not valid TOML: {error}") from None


def is_at_work(launcher: int) -> bool:
    try:
        return any("sheafgossip" in word for word in psutil.Process(launcher).cmdline())
    except psutil.Error:
        return False


def taken_up(prepared: Prepared) -> Prepared:
    """The run, to go on after the last round that every client has completed, written down and recorded.

    What was half written when it was interrupted is removed, and so is what was recorded of the rounds after that one:
    they are done again, and until then the records would tell of two runs at once.
    """
    for path in prepared.folder.glob("state/*/*"):
        if path.suffix != ".safetensors":
            path.unlink()
    completed = rounds_of(prepared)
    recorded = np.zeros_like(completed)
    with open_records(prepared.folder) as records:
        for node, round in records.execute("SELECT node, round FROM round WHERE node >= 0"):
            recorded[node, round] = True
        told = records.execute("SELECT node, kind, virtual_s FROM event WHERE virtual_s IS NOT NULL").fetchall()
        wall_s = dict(records.execute("SELECT round, max(wall_s) FROM round GROUP BY round").fetchall())
    every = prepared.config.checkpoints.every
    missing = ~(recorded | ~completed).all(axis=0)
    whole = int(missing.argmax()) if missing.any() else len(missing)  # rounds from the start of which all is recorded
    last = min(whole, prepared.config.rounds) - 1
    for round in range(every * (last // every), 0, -every) if every else ():
        if all(path.exists() for path in _files(prepared, completed, round)):
            _forget_after(round, prepared.folder)
            return replace(prepared, resumed_at=round, went_on_s=wall_s.get(round, 0.0), told=frozenset(told))
    _forget_after(-1, prepared.folder)
    return replace(prepared, told=frozenset(told))


def _forget_after(round: int, folder: Path) -> None:
    store = Store(folder / "run.sqlite")
    store.forget_after(round)
    store.close()


def _files(prepared: Prepared, completed: np.ndarray, round: int) -> list[Path]:
    """The checkpoint of a round: of clients that are away in it, what they had sent before."""
    folder = prepared.folder / "state" / f"round-{round:06d}"
    files = []
    for node, rounds in enumerate(completed):
        if rounds[round]:
            files.append(folder / f"{name_of(node)}.safetensors")
        elif rounds[:round].any():
            files.append(folder / f"sent-{node:04d}.safetensors")
    return files
