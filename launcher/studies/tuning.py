"""Tuning: the values with which a method does best on validation samples. Its trials are made as the runs of a sweep,
and kept in a table, from which an interrupted search goes on."""

import csv
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, cast, get_args

from ...metrics.config_file import parse as parse_toml
from ...metrics.store import RunFolderError
from ...metrics.summary import summarize
from ...metrics.text import size
from ...node import own_code
from ...topology.errors import UserError
from ..config.effect import refuse
from ..config.sections import ConfigError, RunConfig, keys_of, validate
from ..prepare.assignments import Site
from ..prepare.preparation import work_out
from ..run.earlier import PlannedRun, clear, has_diverged
from .folders import raised_as, rows_kept
from .forecast import payload_of
from .search import Budget, Note, Result, Search, State, Trial, load_optuna
from .space import Distribution, Space, parse_space
from .sweep import Ended, Jobs, prepare

__all__ = ["TRIALS", "Budget", "Space", "Trial", "Tuned", "parse_space", "searched", "tune"]

TRIALS = "trials.csv"
_COLUMNS = ("method", "number", "state", "values", "metric", "of_seeds", "mean", "reason", "search")
_OF_A_TRIAL = re.compile(r"trial-\d+-seed-\d+")


class NoneFinished(UserError):
    """No trial has come to its end."""


@dataclass(frozen=True)
class Tuned:
    """The best ``values``, {key: value}, their ``value``: the mean metric over seeds on validation samples, and all
    ``trials``."""

    values: dict[str, Any]
    value: float
    metric: str
    trials: tuple[Trial, ...]

    def count(self, *states: State) -> int:
        """Returns how many trials ended so."""
        return sum(trial.state in states for trial in self.trials)


# -- the runs of trials ------------------------------------------------------------------------------------------------


def with_values(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Returns the configuration with {key with dots: value}, judged on validation samples. Raises ConfigError."""
    tree = parse_toml(config.to_toml())
    for key, value in {**values, "data.evaluate_on": "validation"}.items():
        *sections, last = key.split(".")
        table = tree
        for section in sections:
            table = table.setdefault(section, {})
            if not isinstance(table, dict):
                raise ConfigError(f"--search {key}: {section} is no table, so no key of it can be searched")
        table[last] = value
    return validate(tree)


class Runs:
    """The runs of one configuration's trials, in folders below ``root`` that go again."""

    def __init__(self, config: RunConfig, budget: Budget, root: Path, jobs: Jobs):
        self._config, self._budget, self._root, self._jobs = config, budget, root, jobs
        self._runs: dict[tuple[int, int], PlannedRun] = {}  # by number of the trial, and of the seed

    def admit(self, trial: Trial) -> Result | None:
        steps = range(len(trial.of_seeds), self._budget.seeds)
        try:
            config = with_values(self._config, trial.values)
            seeds = {step: config.but(seed=config.seed + step) for step in steps}
            runs = {step: PlannedRun(each, self._folder(trial, each.seed)) for step, each in seeds.items()}
            self._runs |= {(trial.number, step): run for step, run in runs.items()}
            if over := self._too_long(list(runs.values())):
                return over
            prepared = prepare(list(runs.values()))
        except UserError as error:
            return Result(state="refused", reason=re.sub(r"(?m)^trial-\d+-seed-\d+: ", "", f"{error}"))
        exact = not config.algorithm.traits.silent_edges  # else the first run tells
        if self._budget.payload_bytes < math.inf and exact:
            return self._too_much(max(map(payload_of, prepared)))
        return None

    def _too_long(self, runs: Sequence[PlannedRun]) -> Result | None:
        """Plans them on test samples, as the best will be run: for validation some training samples are left out."""
        for run in runs if self._budget.virtual_s < math.inf else ():
            config = run.config.but(data={"evaluate_on": "test"})
            plan = work_out(config, run.folder, Site(Path("/nowhere"), "ipc:///nowhere")).plan
            clear(run.folder)
            if plan and plan.end_s > self._budget.virtual_s:
                why = f"a run would last {plan.end_s:.4g} virtual seconds, {self._budget.virtual_s:g} are allowed"
                return Result(state="over budget", reason=why)
        return None

    def _too_much(self, payload: int) -> Result | None:
        if payload <= self._budget.payload_bytes:
            return None
        why = f"a run sends {size(payload)}, {size(self._budget.payload_bytes)} are allowed"
        return Result(state="over budget", reason=why)

    def run(self, trials: Sequence[Trial], step: int, note: Note) -> None:
        runs = {self._runs[trial.number, step].folder: trial for trial in trials}
        noted = set()

        def done(ended: Ended) -> None:
            folder = ended.run.folder
            if ended.outcome.status != "interrupt":
                note(runs[folder], self._result(ended))
                noted.add(folder)
            clear(folder)

        self._jobs.make([self._runs[trial.number, step] for trial in trials], done)
        if len(noted) < len(trials):
            raise KeyboardInterrupt

    def end(self, trial: Trial) -> None:
        for key in [key for key in self._runs if key[0] == trial.number]:
            clear(self._runs.pop(key).folder)

    def _folder(self, trial: Trial, seed: int) -> Path:
        return self._root / f"trial-{trial.number}-seed-{seed}"

    def _result(self, ended: Ended) -> Result:
        folder, said = ended.run.folder, " ".join("; ".join(ended.outcome.causes[:1]).split())[:300]
        of_seed = f"seed {ended.run.config.seed}: "
        try:
            run = summarize(folder)
        except RunFolderError as error:
            return Result(state="failed", reason=of_seed + (said or f"{error}"))
        grown = run.divergence is not None and run.divergence.kind == "diverged"
        if grown or has_diverged(folder):
            return Result(state="diverged", reason=of_seed + (said or f"{run.divergence}"))
        if run.status != "finished" or run.final is None or not math.isfinite(run.final.mean):
            return Result(state="failed", reason=of_seed + (said or "no client has a final metric"))
        return self._too_much(run.traffic.payload_bytes) or Result(run.final.mean, run.metric)


def clear_trials(root: Path) -> None:
    """Removes what a search that was interrupted has left of its runs."""
    for folder in root.iterdir() if root.exists() else ():
        if _OF_A_TRIAL.fullmatch(folder.name):
            clear(folder)


# -- a search that is kept ---------------------------------------------------------------------------------------------


def searched(config: RunConfig, space: Space) -> dict[str, Distribution]:
    """Returns the part of the space that the configuration's method has, and that has an effect. Raises ConfigError."""
    own = {f"algorithm.{name}" for name in keys_of(type(config.algorithm))}
    found = {key: what for key, what in space.items() if key in own or not key.startswith("algorithm.")}
    return {key: what for key, what in found.items() if _has_effect(config, key, found)}


def _has_effect(config: RunConfig, key: str, space: Space) -> bool:
    """Tells whether it has, whatever its value, with some of the values that the others may have. Raises ConfigError
    where none of them is allowed."""
    found, why = list[bool](), ConfigError()
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        ends = [{each: what.at(0.99 * end if each == key else share) for each, what in space.items()} for end in (0, 1)]
        try:
            candidates = [with_values(config, {each: space[each].value(at[each]) for each in space}) for at in ends]
        except ConfigError as error:
            why = error
            continue
        found.append(not any(is_idle(key, candidate) for candidate in candidates))
    if not found:
        raise why
    return any(found)


def is_idle(key: str, config: RunConfig) -> str:
    """Returns why a key has no effect, if that is so."""
    try:
        refuse({key: ""}, [config])
    except ConfigError as error:
        return str(error)
    return ""


def tune(
    config: RunConfig,
    space: Space,
    budget: Budget,
    root: Path,
    jobs: Jobs,
    tell: Callable[[Trial], None] = lambda trial: None,
) -> Tuned:
    """Searches one method; the trials are kept in ``root``, where the same call goes on after it was interrupted, and
    a larger budget of trials after its end. ``tell`` is told of each trial that has ended now. Raises ConfigError,
    NoneFinished, KeyboardInterrupt."""
    if config.times_a_step:
        raise ConfigError("compute.step_s is not set: all trials must count time alike")
    if budget.virtual_s < math.inf and not config.has_scenario:
        raise ConfigError(f"--max-seconds {budget.virtual_s:g}: without a scenario a run has no virtual seconds")
    load_optuna()
    budget = budget if space else replace(budget, trials=1)  # all would be the same
    with_values(config, {})  # on validation samples
    name, digest = config.label, _digest(config, space, budget)
    known = _known(root, name, digest)
    clear_trials(root)

    def keep(trial: Trial) -> None:
        with raised_as(f"{root / TRIALS}: cannot be written"), (root / TRIALS).open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(_row(name, trial, digest))
        if trial.state != "begun":
            tell(trial)

    runs = Runs(config, budget, root, jobs)
    try:
        trials = Search(space, budget, config.seed, runs, known, keep)()
    finally:
        clear_trials(root)
    _sort(root)
    return best_of(trials, budget)


def best_of(trials: Sequence[Trial], budget: Budget) -> Tuned:
    """Raises NoneFinished."""
    trials = trials[: budget.trials]
    finished = [trial for trial in trials if trial.state == "finished"]
    if not finished:
        first = trials[0]
        states = ", ".join(dict.fromkeys(trial.state for trial in trials))
        values = ", ".join(f"{key} = {value}" for key, value in first.values.items())
        raise NoneFinished(f"none of {len(trials)} trials has finished ({states}); the first, {values}: {first.reason}")
    best = min(finished, key=lambda trial: trial.loss)
    return Tuned(best.values, best.mean, best.metric, tuple(trials))


def _digest(config: RunConfig, space: Space, budget: Budget) -> str:
    keys = {key: str(what) for key, what in space.items()}
    spent = budget.seeds, budget.payload_bytes, budget.virtual_s
    about = config.but(name="").to_toml(), keys, own_code.digests(config.uses), spent
    return sha256(json.dumps(about, default=str).encode()).hexdigest()[:12]


def _row(method: str, trial: Trial, digest: str) -> list[str]:
    known = "" if math.isnan(trial.mean) else repr(trial.mean)
    texts = [json.dumps(trial.values, default=str), trial.metric, json.dumps(trial.of_seeds), known]
    return [method, str(trial.number), trial.state, *texts, " ".join(trial.reason.split()), digest]


def _known(root: Path, method: str, digest: str) -> dict[int, Trial]:
    """Returns the trials of a method by number; a line that was being written goes. Raises ConfigError."""
    rows = _rows(root)
    found = {}
    for row in (row for row in rows if row["method"] == method):
        if row["search"] != digest:
            raise ConfigError(f"--out {root}: holds the trials of another search of {method}; choose another name")
        with raised_as(f"--out {root}: {TRIALS} is damaged"):
            try:
                values, of_seeds = json.loads(row["values"]), json.loads(row["of_seeds"])
                number = int(row["number"])
                if row["state"] not in get_args(State):
                    raise ValueError(f"there is no state {row['state']}")
            except (ValueError, TypeError) as error:
                raise OSError(f"{error}") from None
        found[number] = Trial(number, values, cast(State, row["state"]), row["metric"], of_seeds, row["reason"])
    return found


def _rows(root: Path) -> list[dict[str, str]]:
    columns, *rows = rows_kept(root, TRIALS, _COLUMNS)
    if columns != [*_COLUMNS] or any(len(row) != len(_COLUMNS) for row in rows):
        raise ConfigError(f"--out {root}: {TRIALS} is none of a search; choose another name")
    return [dict(zip(_COLUMNS, row, strict=True)) for row in rows]


def _sort(root: Path) -> None:
    """Leaves one line a trial, in their order."""
    rows = {(row["method"], int(row["number"])): row for row in _rows(root)}
    methods = list(dict.fromkeys(method for method, _ in rows))
    path = root / f"{TRIALS}.part"
    with raised_as(f"{root / TRIALS}: cannot be written"):
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(_COLUMNS)
            order = sorted(rows, key=lambda key: (methods.index(key[0]), key[1]))
            writer.writerows([rows[key][name] for name in _COLUMNS] for key in order)
        path.replace(root / TRIALS)
