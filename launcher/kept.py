"""What is there of a run from before, so that the same command goes on where it was."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from ..metrics.config_file import parse, read_text
from ..metrics.schema import RunFolderError
from ..metrics.summary import summarize
from .config import ConfigError, RunConfig, validate
from .resumption import read_run

Stage = Literal["missing", "begun", "finished"]

_BEFORE_ITS_CONFIGURATION = {"shards", "plan", "log", "config.toml.part"}
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
        read_run(folder)  # refuses a run that still goes on
    return "begun"


def configuration(folder: Path) -> RunConfig | None:
    """None where there is none that this program understands."""
    try:
        return validate(parse(read_text(folder / "config.toml")))
    except (OSError, ValueError):  # a ConfigError is one too
        return None


def is_finished(folder: Path) -> bool:
    try:
        return summarize(folder).status == "finished"
    except RunFolderError:
        return False


def begin_anew(folder: Path) -> bool:
    """Removes what is left of a run that cannot be taken up, as it has no checkpoint; False where it has one."""
    rounds = (path.name.removeprefix("round-") for path in folder.glob("state/round-*"))
    if (folder / "config.toml").exists() and any(round.isdigit() and int(round) for round in rounds):
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return True
