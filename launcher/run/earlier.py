"""What is there of runs from before, so that the same command goes on where it was."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...metrics import lock
from ...metrics.reader import open_records
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
class PlannedRun:
    """A run and the folder where it is, or will be."""

    config: RunConfig
    folder: Path
    has_checkpoint: bool = False
    """Whether there is one to go on from."""

    @property
    def name(self) -> str:
        return self.folder.name


def missing_of(runs: Sequence[PlannedRun], *, accept_diverged: bool = False) -> list[PlannedRun]:
    """Returns those that have not finished, and changes nothing. With ``accept_diverged`` a run that diverged counts as
    finished: it would only diverge again.

    Raises ConfigError where a folder holds something else, RunFolderError where a run still goes on.
    """
    stages = [stage(run.config, run.folder) for run in runs]
    return [
        PlannedRun(_as_begun(run.config, run.folder), run.folder, has_checkpoint(run.folder))
        for run, found in zip(runs, stages, strict=True)
        if found != "finished" and not (accept_diverged and found == "begun" and has_diverged(run.folder))
    ]


def begin_anew(runs: Iterable[PlannedRun]) -> None:
    """Removes what is there of runs without a checkpoint. Raises RunFolderError."""
    for run in runs:
        if not run.has_checkpoint:
            clear(run.folder)


def _as_begun(config: RunConfig, folder: Path) -> RunConfig:
    """With the seconds of a local step that were measured when it began: runs are compared on the same ones."""
    there = configuration(folder)
    return config if there is None or not _is_measured(config) else there


def _is_measured(config: RunConfig) -> bool:
    return config.has_scenario and config.compute.step_s is None


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
    if (there.but(compute={"step_s": None}) if _is_measured(config) else there) != config:
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


def has_diverged(folder: Path) -> bool:
    try:
        with open_records(folder, check=("event",)) as records:
            failures = records.execute("SELECT detail FROM event WHERE kind = 'failure'").fetchall()
    except RunFolderError:
        return False
    return any("is not finite" in (detail or "") for (detail,) in failures)


def has_checkpoint(folder: Path) -> bool:
    """Whether there is one of a later round than 0, and the configuration that belongs to it."""
    rounds = (path.name.removeprefix("round-") for path in folder.glob("state/round-*"))
    return (folder / "config.toml").exists() and any(round.isdigit() and int(round) for round in rounds)


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
