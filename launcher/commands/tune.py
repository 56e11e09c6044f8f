"""``sheafgossip tune``: each method's search, its best configuration as a file, and a picture of what was tried."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from ...metrics.config_file import short_names
from ...metrics.text import Pace, metric_text, new_table, say, show
from ..config.effect import tidy
from ..config.files import Overrides, all_tables_of, load, with_paths_from
from ..config.sections import ConfigError, RunConfig
from ..run.folder import relative
from ..studies.folders import names_of, new_folder, raised_as
from ..studies.search import Budget, Trial
from ..studies.space import Space, parse_space
from ..studies.sweep import Jobs, alone_in
from ..studies.tuning import TRIALS, NoneFinished, Tuned, is_idle, searched, tune as search_one, with_values
from ..studies.tuning_picture import draw
from .outcomes import FAILED, FINISHED, INTERRUPTED

_PICTURE = "search.svg"
Words = Sequence[str] | None


@dataclass(frozen=True)
class Method:
    """One that is tuned: its own tables, and the keys of the space that it has."""

    config: RunConfig
    tree: dict[str, Any]
    space: Space
    file: str  # of its best configuration


@dataclass(frozen=True)
class Tuning:
    """What was found of each method, by its name, and the file of its best configuration in ``folder``."""

    folder: Path
    methods: dict[str, Tuned] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    failed: dict[str, NoneFinished] = field(default_factory=dict)


def methods_of(source: Path | Mapping[str, Any], overrides: Overrides, space: Space) -> list[Method]:
    """Returns those of the [[compare]] tables, or the one. Raises ConfigError."""
    configs, trees = load(source, overrides), all_tables_of(source, overrides)
    spaces = [searched(config, space) for config in configs]
    for key, what in space.items():
        if not any(key in each for each in spaces):
            why = is_idle(key, with_values(configs[0], {key: what.value(what.at(0.99))}))
            raise ConfigError(f"--search {why or f'{key}: has no effect'}")
    files = [f"best-{name}.toml" for name in names_of(configs)] if len(configs) > 1 else ["best.toml"]
    return [Method(*each) for each in zip(configs, trees, spaces, files, strict=True)]


def tune_all(
    methods: Sequence[Method], budget: Budget, jobs: int, file: Path, out: Path | None, *, quiet: bool
) -> Tuning:
    """Searches the methods one by one in ``out``, or in a new folder called as the file is, and leaves the files of the
    best there. Raises UserError, KeyboardInterrupt."""
    with ExitStack() as stack:
        called = file.with_name(f"{file.stem}-tuned")
        root = stack.enter_context(new_folder(None, called)) if out is None else out.resolve()
        claim = stack.enter_context(alone_in(root))
        made = Tuning(root)
        at_work = stack.enter_context(Jobs(jobs, claim.descriptor))
        pace = Pace()
        for number, method in enumerate(methods, 1):
            name = method.config.label
            told = _Told(f"{name}: " * (len(methods) > 1), budget, pace, len(methods) - number, quiet=quiet)
            try:
                made.methods[name] = search_one(method.config, method.space, budget, root, at_work, told)
            except NoneFinished as error:
                if len(methods) == 1:
                    raise
                made.failed[name] = error
            except KeyboardInterrupt:
                say(f"interrupted: the same command with --out {relative(root)} goes on where it was", err=True)
                raise
            else:
                made.files[name] = _write_best(root, method, made.methods[name])
        if not made.methods:
            raise next(iter(made.failed.values()))
        spaces = {method.config.label: method.space for method in methods}
        draw(root / _PICTURE, {name: (spaces[name], tuned.trials) for name, tuned in made.methods.items()})
    return made


class _Told:
    """Tells of each trial that has ended, in a line."""

    def __init__(self, prefix: str, budget: Budget, pace: Pace, methods_left: int, *, quiet: bool):
        self._prefix, self._quiet = prefix, quiet
        self._trials, self._pace, self._methods_left = budget.trials, pace, methods_left

    def __call__(self, trial: Trial) -> None:
        if self._quiet:
            return
        values = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in trial.values.items()) or "as it is"
        figure = metric_text(trial.metric, trial.mean) if trial.of_seeds else ""
        came_to = " ".join(filter(None, [figure, trial.state, f"({trial.reason})" if trial.reason else ""]))
        left = self._pace.after_one(self._trials - trial.number + self._methods_left * self._trials)
        say(f"{self._prefix}trial {trial.number} of {self._trials}: {values}: {came_to}{left}", err=True)


def _write_best(root: Path, method: Method, tuned: Tuned) -> Path:
    """Writes the user's configuration with the best values, on test samples."""
    tree = {key: dict(each) if isinstance(each, dict) else each for key, each in method.tree.items()}
    if isinstance(tree.get("data"), dict):
        tree["data"].pop("evaluate_on", None)
    for key, value in tuned.values.items():
        *sections, last = key.split(".")
        table = tree
        for section in sections:
            table[section] = dict(table.get(section) or {})
            table = table[section]
        table[last] = value
    about = f"# {tuned.metric} {metric_text(tuned.metric, tuned.value)} on validation samples, "
    about += f"the best of {len(tuned.trials)} trials\n"
    path = root / method.file
    with raised_as(f"{path}: cannot be written"):
        path.write_text(about + tomli_w.dumps(with_paths_from(root, tidy(tree))), encoding="utf-8")
    return path


def tune(
    file: Path,
    search: Sequence[str],
    trials: int,
    seeds: int,
    jobs: int,
    max_payload: float | None,
    max_seconds: float | None,
    overrides: Words,
    out: Path | None,
    quiet: bool,
) -> int:
    budget = budget_of(trials, seeds, max_payload, max_seconds)
    methods = methods_of(file, overrides or (), parse_space(search))
    try:
        made = tune_all(methods, budget, jobs, file, out, quiet=quiet)
    except KeyboardInterrupt:
        return INTERRUPTED
    _show(made, budget)
    for name, error in made.failed.items():
        say(f"error: {name}: {error}", err=True)
    return FAILED if made.failed else FINISHED


def budget_of(trials: int, seeds: int, megabytes: float | None, virtual_s: float | None) -> Budget:
    infinite = float("inf")
    payload = infinite if megabytes is None else megabytes * 1e6
    return Budget(trials, seeds, payload, infinite if virtual_s is None else virtual_s)


def _show(made: Tuning, budget: Budget) -> None:
    keys = list(dict.fromkeys(key for tuned in made.methods.values() for key in tuned.values))
    table, several = new_table(), len(made.methods) + len(made.failed) > 1
    for name in [*(["method"] if several else []), *(f"best {each}" for each in short_names(keys)), "validation"]:
        table.add_column(name)
    for name in ("finished", "pruned", "over budget", "refused", "failed"):
        table.add_column(name, justify="right")
    for name, tuned in made.methods.items():
        values = [str(tuned.values.get(key, "–")) for key in keys]
        counts = [tuned.count("finished"), tuned.count("pruned"), tuned.count("over budget"), tuned.count("refused")]
        counts.append(tuned.count("diverged", "failed"))
        figure = metric_text(tuned.metric, tuned.value)
        table.add_row(*([name] if several else []), *values, figure, *map(str, counts))
    show(table)
    seeds = f"{budget.seeds} seed{'s' * (budget.seeds > 1)}"
    show(f"{budget.trials} trials{' of each method' * several}, {seeds} each; mean over clients on validation samples")
    show(f"{TRIALS} and {_PICTURE} in: {relative(made.folder)}")
    for path in made.files.values():
        show(f"sheafgossip run {relative(path)}")
