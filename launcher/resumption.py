"""Taking up a run that was interrupted: from the last round of which everything is there, and sound."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..metrics.config_file import parse, read_text
from ..metrics.reader import open_records
from ..metrics.schema import RunFolderError
from ..metrics.store import Store
from ..transport.array_file import DamagedFile, digest_of
from ..transport.failpoints import failpoint
from .config import ConfigError, RunConfig, validate
from .folder import digest_of_config, kept_digest, require_plain, unfinished_files
from .lives import Lives, rounds_of
from .preparation import Prepared

_TOLD_ONCE = ("crash", "leave", "restart", "join", "scenario")


def read_run(folder: Path) -> RunConfig:
    """The configuration of a run that can be taken up. Raises RunFolderError, ConfigError."""
    require_plain(folder)
    with open_records(folder) as records:
        finished = records.execute("SELECT count(*) FROM event WHERE node = -1 AND kind = 'finish'").fetchone()[0]
    if finished:
        raise RunFolderError(f"{folder}: this run is finished; there is nothing to resume")
    config = read_config(folder)
    if kept_digest(folder) not in (None, digest_of_config(folder)):
        raise RunFolderError(f"{folder}: config.toml was changed since the run began; nothing can go on from there")
    return config


def read_config(folder: Path) -> RunConfig:
    """Raises RunFolderError, ConfigError."""
    try:
        return validate(parse(read_text(folder / "config.toml")))
    except OSError as error:
        raise RunFolderError(f"{folder}: config.toml cannot be read: {error.strerror or error}") from None
    except ConfigError:
        raise
    except ValueError as error:
        raise RunFolderError(f"{folder}: config.toml is not valid TOML: {error}") from None


def still_going_on(folder: Path) -> RunFolderError:
    return RunFolderError(f"{folder}: this run is still going on")


def require_sound_records(folder: Path) -> None:
    """Raises RunFolderError. To be asked where nobody writes."""
    with open_records(folder) as records:
        records.execute("PRAGMA cell_size_check = ON")
        (found,) = records.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise RunFolderError(f"{folder}: run.sqlite is damaged: {' '.join(str(found).split())}")


def taken_up(prepared: Prepared) -> Prepared:
    """The run, to go on after the last round that every client has completed, written down and recorded.

    What was half written when it was interrupted is removed, and so is what was recorded of the rounds after that one:
    they are done again, and until then the records would tell of two runs at once. Raises RunFolderError.
    """
    for path in unfinished_files(prepared.folder):
        path.unlink()
    completed = rounds_of(prepared)
    kinds = ", ".join(f"'{kind}'" for kind in _TOLD_ONCE)
    with open_records(prepared.folder) as records:
        recorded = _recorded(records, completed, prepared.folder)
        told = records.execute(f"SELECT node, kind, virtual_s, detail FROM event WHERE kind IN ({kinds})").fetchall()
        wall_s = dict(records.execute("SELECT round, max(wall_s) FROM round GROUP BY round").fetchall())
    every = prepared.config.checkpoints.every
    missing = ~(recorded | ~completed).all(axis=0)
    whole = int(missing.argmax()) if missing.any() else len(missing)  # rounds from the start of which all is recorded
    last = min(whole, prepared.config.rounds) - 1
    prepared, signed = replace(prepared, told=tuple(told)), kept_digest(prepared.folder) is not None
    for round in range(every * (last // every), 0, -every) if every else ():
        resumed = replace(prepared, resumed_at=round, went_on_s=wall_s.get(round, 0.0))
        lives = Lives(resumed)
        if lives.all_have_left() and all(_is_sound(path, signed=signed) for path in lives.files(completed)):
            _forget_after(round, prepared.folder)
            return resumed
    _forget_after(-1, prepared.folder)
    return prepared


def _recorded(records: sqlite3.Connection, completed: np.ndarray, folder: Path) -> np.ndarray:
    """(processes, rounds + 1) bool: which rounds are on record."""
    recorded = np.zeros_like(completed)
    processes, rounds = recorded.shape
    for node, round in records.execute("SELECT node, round FROM round WHERE node >= 0"):
        if not isinstance(node, int) or not isinstance(round, int) or node >= processes or not 0 <= round < rounds:
            raise RunFolderError(
                f"{folder}: run.sqlite tells of round {round!r} of client {node!r}, which config.toml does not have"
            )
        recorded[node, round] = True
    return recorded


def _is_sound(path: Path, *, signed: bool) -> bool:
    """``signed``: it must bear a digest, as all files of its run do."""
    try:
        return digest_of(path) is not None or not signed
    except (FileNotFoundError, DamagedFile):
        return False


def _forget_after(round: int, folder: Path) -> None:
    store = Store(folder / "run.sqlite")
    failpoint("rows kept")
    store.forget_after(round)
    store.close()
    failpoint("rows forgotten")
