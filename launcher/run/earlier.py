"""What is there of a run from before, so that the same command goes on where it was."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...metrics import lock
from ...metrics.schema import RunFolderError
from ...metrics.summary import summarize
from ...topology.errors import UserError
from ..config.sections import ConfigError, RunConfig
from .folder import STORING_S, Claim, remove_empty, require_plain
from .resumption import read_config, read_run, still_going_on

_ASK_EVERY_S = 0.1

Stage = Literal["missing", "begun", "finished"]

_BEFORE_ITS_CONFIGURATION = {"shards", "plan", "log", "config.toml.part", lock.NAME}
"""What preparing a run writes first."""


@dataclass(frozen=True)
class Left:
    """A run that is still to be made. ``begun``: it has a checkpoint to go on from."""

    config: RunConfig
    folder: Path
    begun: bool = False


def left_of(configs: Sequence[RunConfig], folders: Sequence[Path]) -> list[Left]:
    """Those that have not finished. What is there of runs without a checkpoint is removed: they begin anew.

    Raises ConfigError, RunFolderError, and removes nothing then, where a folder holds something else.
    """
    stages = [stage(config, folder) for config, folder in zip(configs, folders, strict=True)]
    left = [
        (_as_begun(config, folder), folder)
        for config, folder, found in zip(configs, folders, stages, strict=True)
        if found != "finished"
    ]
    return [Left(config, folder, begun=not begin_anew(folder)) for config, folder in left]


def _as_begun(config: RunConfig, folder: Path) -> RunConfig:
    """With the seconds of a local step that were measured when it began: runs are compared on the same ones."""
    there = configuration(folder)
    return config if there is None or not _is_measured(config) else there


def _is_measured(config: RunConfig) -> bool:
    return config.has_scenario and config.compute.step_s is None


def _is_same(there: RunConfig, config: RunConfig) -> bool:
    if _is_measured(config):
        there = there.model_copy(update={"compute": there.compute.model_copy(update={"step_s": None})})
    return there == config


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
    if not _is_same(there, config):
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
    except UserError:
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
