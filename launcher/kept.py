"""What is there of a run from before, so that the same command goes on where it was."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

from ..metrics import lock
from ..metrics.schema import RunFolderError
from ..metrics.summary import summarize
from .config import ConfigError, RunConfig
from .folder import STORING_S, Claim, remove_empty, require_plain
from .resumption import read_config, read_run, still_going_on

_ASK_EVERY_S = 0.1

Stage = Literal["missing", "begun", "finished"]

_BEFORE_ITS_CONFIGURATION = {"shards", "plan", "log", "config.toml.part", lock.NAME}
"""What preparing a run writes first."""


def stage(config: RunConfig, folder: Path) -> Stage:
    """How far this very run is, in this folder.

    Raises ConfigError where the folder holds something else, RunFolderError where the run still goes on.
    """
    if not folder.exists():
        return "missing"
    there = configuration(folder)
    if there is None and folder.is_dir() and {path.name for path in folder.iterdir()} <= _BEFORE_ITS_CONFIGURATION:
        return "begun"
    if there is None:
        raise ConfigError(f"{folder}: holds something else than a run; choose another --out")
    if there != config:
        raise ConfigError(f"{folder}: holds a run of another configuration; remove it, or choose another --out")
    if is_finished(folder):
        return "finished"
    if (folder / "run.sqlite").exists():
        read_run(folder)
    require_free(folder)
    return "begun"


def configuration(folder: Path) -> RunConfig | None:
    """None where there is none that this program understands."""
    try:
        return read_config(folder)
    except (RunFolderError, ConfigError):
        return None


def is_finished(folder: Path) -> bool:
    try:
        return summarize(folder).status == "finished"
    except RunFolderError:
        return False


def begin_anew(folder: Path) -> bool:
    """Removes what is left of a run that cannot be taken up, as it has no checkpoint; False where it has one.

    Raises ConfigError, RunFolderError.
    """
    rounds = (path.name.removeprefix("round-") for path in folder.glob("state/round-*"))
    if (folder / "config.toml").exists() and any(round.isdigit() and int(round) for round in rounds):
        return False
    clear(folder)
    return True


def clear(folder: Path) -> None:
    """Removes what a run has written in the folder, if it is there. Raises RunFolderError."""
    if folder.exists():
        require_plain(folder)
        with Claim(folder, still_going_on(folder)) as claim:
            claim.clear()
        remove_empty(folder)


def require_free(folder: Path) -> None:
    """Raises RunFolderError where the run still goes on, or its collector is not done in time."""
    deadline = time.monotonic() + STORING_S
    while lock.is_held(folder):
        if time.monotonic() > deadline:
            raise still_going_on(folder)
        time.sleep(_ASK_EVERY_S)
