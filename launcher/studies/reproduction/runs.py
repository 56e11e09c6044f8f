"""The runs of a reproduction: those that have finished before are taken as they are, the others are run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ....metrics import open_run
from ....metrics.schema import RunFolderError
from ....metrics.seeds import Group, summarize_all
from ...config.sections import RunConfig
from ...prepare.preparation import Prepared
from ...run.earlier import is_finished, left_of, stage
from ..session import Finished, Watch, run_each, slug
from .parts import Part

Ended = Literal["finished", "diverged", "failed"]


@dataclass(frozen=True)
class Planned:
    """A run of a part and where it lives."""

    part: Part
    config: RunConfig
    folder: Path


@dataclass(frozen=True)
class Result:
    """One run of a part in all its seeds. ``group`` and ``folders`` are of the seeds that finished; ``ended`` says how
    it went where none did."""

    name: str
    group: Group | None
    folders: tuple[Path, ...]
    ended: Ended


def planned(parts: Sequence[Part], seeds: int | None, out: Path) -> list[Planned]:
    """Every run of every seed: OUT/PART/NAME-seed-0, ...; by default of as many seeds as a part has."""
    return [
        Planned(part, seeded, out / part.folder / slug(f"{config.label} seed {seed}"))
        for part in parts
        for seed in range(seeds or part.about.seeds)
        for config in part.configs
        for seeded in [config.model_copy(update={"seed": seed})]
    ]


def run_missing(
    runs: Sequence[Planned], watch: Callable[[Prepared], Watch], done: Callable[[Finished], None]
) -> list[Finished]:
    """Those that have not come to an end yet, from their last checkpoint, if they have one. Raises ConfigError,
    RunFolderError before any has started."""
    missing = [run for run in runs if not _at_its_end(run)]
    left = left_of([run.config for run in missing], [run.folder for run in missing])
    if not left:
        return []
    begun = [each.folder for each in left if each.begun]
    return run_each([each.config for each in left], [each.folder for each in left], watch, done, begun)


def results(part: Part, runs: Sequence[Planned]) -> list[Result]:
    """In the order of the configuration."""
    found = []
    for config in part.configs:
        folders = [run.folder for run in runs if run.part is part and run.config.label == config.label]
        finished = tuple(folder for folder in folders if is_finished(folder))
        groups = summarize_all(finished, part.about.target)
        ended: Ended = "finished" if finished else "diverged" if all(map(_diverged, folders)) else "failed"
        found.append(Result(config.label, groups[0] if groups else None, finished, ended))
    return found


def _at_its_end(run: Planned) -> bool:
    """Whether this very run is there and would only repeat itself. Raises ConfigError where there is something else,
    RunFolderError where it still goes on."""
    found = stage(run.config, run.folder)
    return found == "finished" or (found == "begun" and _diverged(run.folder))


def _diverged(folder: Path) -> bool:
    try:
        events = open_run(folder).events
    except RunFolderError:
        return False
    return bool((events.kind.eq("failure") & events.detail.str.contains("is not finite")).any())
