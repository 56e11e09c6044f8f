"""``sheafgossip twin``: configurations are planned and run on the wall clock, and both are shown side by side."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...metrics.config_file import parse
from ...metrics.text import say, show
from ...metrics.twin import twin_of
from ...metrics.twins import Twins, render
from ...transport.connections import counts_bytes
from ..config.files import Overrides
from ..config.sections import SCENARIO_TABLES, ConfigError, RunConfig, validate
from ..run.display import Display
from ..run.earlier import PlannedRun, begin_anew, is_finished, missing_of
from ..run.folder import relative
from ..studies.folders import new_folder, require_empty, slug
from ..studies.runner import Means, run_each
from ..studies.sweep import Grids, alone_in, parse_grids, settings_of, words_of
from .outcomes import INTERRUPTED, tell
from .runs import Follower, Made

Words = Sequence[str] | None
Source = Path | Mapping[str, Any]
_OF_VIRTUAL_TIME = {"notice_s": 0.0, "replay": None}  # keys of [time]


def twin(
    files: Sequence[Path], grid: Words, overrides: Words, out: Path | None, as_json: bool, every: bool, quiet: bool,
    plain: bool, **means: Any
) -> int:  # fmt: skip
    made = make_twins(files, parse_grids(grid or ()), overrides or (), out, Means(**means), quiet=quiet, plain=plain)
    several = len(made.folders) > 1
    code = tell(
        (each.prepared.folder, each.outcome, each.prepared.config.label if several else "") for each in made.ended
    )
    twins = twins_of(made)
    if as_json:
        say(json.dumps(twins.as_dict(), indent=2))
    else:
        for part in render(twins, every=every):
            show(part)
        show(f"run folders in: {relative(made.root)}")
    if code == INTERRUPTED:
        say(f"the same command with --out {relative(made.root)} goes on with what is missing", err=True)
    return code


def twins_of(made: Made) -> Twins:
    """Compares those that have finished."""
    return Twins(tuple(twin_of(folder) for folder in made.folders if is_finished(folder)))


def make_twins(
    sources: Sequence[Source], grids: Grids, overrides: Overrides, out: Path | None, means: Means, *, quiet: bool,
    plain: bool = False
) -> Made:  # fmt: skip
    """Runs all of them in ``out``, or in a new folder called as the first is, one after the other; those that have
    finished there are kept, others begin anew, for their time would not be whole. Raises UserError."""
    configs = list(_configs(sources, grids, overrides, means))
    names = [slug(config.label) for config in configs]
    if twice := [name for number, name in enumerate(names) if name in names[:number]]:
        raise ConfigError(f"two configurations would share the folder {twice[0]}: give each a name of its own")
    file = sources[0] if isinstance(sources[0], Path) else Path(configs[0].name or "twin")
    with ExitStack() as stack:
        root = stack.enter_context(new_folder(None, file)) if out is None else out.resolve()
        runs = [PlannedRun(config, root / name) for config, name in zip(configs, names, strict=True)]
        if not any(run.folder.exists() for run in runs):
            require_empty(root)
        stack.enter_context(alone_in(root))
        missing = begin_anew([replace(run, has_checkpoint=False) for run in missing_of(runs)])
        display = stack.enter_context(Display(quiet=quiet, plain=plain or means.engine == "threads"))
        if len(missing) < len(runs):
            display.tell(f"{len(runs) - len(missing)} of {len(runs)} runs finished before")
        ended = run_each(missing, Follower(display, [run.folder for run in runs]), means)
    return Made(root, [run.folder for run in runs], ended)


def _configs(sources: Sequence[Source], grids: Grids, overrides: Overrides, means: Means) -> Iterator[RunConfig]:
    """Yields them with names that tell them apart, and with the wall clock."""
    for source in sources:
        configs, of_several = settings_of(source, overrides, grids)
        stem = [source.stem] if len(sources) > 1 and isinstance(source, Path) else []
        for config in configs:
            words = [*stem, words_of(list(grids), of_several, config)]
            yield _on_the_wall_clock(config, " ".join(filter(None, words))[:100], means)


def _on_the_wall_clock(config: RunConfig, name: str, means: Means) -> RunConfig:
    """Raises ConfigError where nothing is planned then."""
    for key, none in _OF_VIRTUAL_TIME.items():
        if (value := getattr(config.time, key)) != none:
            say(f"{name or config.label}: time.{key} = {value} is left out: it is for the virtual clock only", err=True)
    config = config.but(name=name or config.name, time={"clock": "wall", **_OF_VIRTUAL_TIME})
    if not config.has_scenario:
        why = f"a run without one of {SCENARIO_TABLES} takes as long as it takes; set compute.step_s"
        raise ConfigError(f"{config.label}: nothing is planned on the wall clock: {why}")
    over_tcp = config.transport.protocol == "tcp" and config.measuring.enabled
    if over_tcp and means.engine != "threads" and counts_bytes():
        config = config.but(measuring={"kernel": True})
    return validate(parse(config.to_toml()))  # written in full: what is left out of it is written no more
