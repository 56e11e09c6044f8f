"""Runs and groups of runs side by side: where their configurations differ, and which is best in what. Runs that differ
in nothing but their seed are one group: means and standard errors over runs."""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from .config_file import differing, read_config, setting_of
from .figures import AVERAGED, COUNT, METRIC, Figure, plus_minus
from .reader import open_records
from .store import CLIENTS
from .summary import RunSummary, mean, standard_error, summarize
from .text import UNKNOWN, short

Mark = Literal["", "best", "close"]


class Estimate(NamedTuple):
    mean: float  # over runs
    standard_error: float  # nan for one run


@dataclass(frozen=True, slots=True)
class Group:
    """One run, or finished runs that are equal but for seed and name."""

    name: str
    runs: tuple[RunSummary, ...]

    def estimate(self, figure: str) -> Estimate | None:
        """Estimates one of AVERAGED; None unless every run has it."""
        values = [value for run in self.runs if (value := AVERAGED[figure].of(run)) is not None]
        return Estimate(mean(values), standard_error(values)) if len(values) == len(self.runs) else None

    def with_error(self, figure: str) -> Estimate | None:
        """Estimates as far as one run tells an error: the metric varies over its clients, what is exact does not."""
        estimate, run = self.estimate(figure), self.runs[0]
        if estimate is None or len(self.runs) > 1:
            return estimate
        if figure == "test_metric" and run.final is not None:
            return Estimate(estimate.mean, run.final.standard_error)
        return Estimate(estimate.mean, 0.0 if AVERAGED[figure].exact else math.nan)

    def text(self, figure: Figure) -> str:
        """Returns what stands in the figure's column."""
        estimate, metric = self.with_error(figure.key), self.runs[0].metric
        if estimate is None:
            reached = sum(figure.of(run) is not None for run in self.runs)
            missing = figure.missing if figure.key == "test_metric" else UNKNOWN
            return f"by {reached} of {len(self.runs)}" if reached and figure.unit is COUNT else missing
        if figure.unit is METRIC:
            error = estimate.standard_error if figure.key == "test_metric" else math.nan
            return plus_minus(metric, estimate.mean, error)
        whole = figure.unit is COUNT and len(self.runs) == 1
        return figure.unit.text(estimate.mean) if whole else short(estimate.mean / figure.unit.size)

    @property
    def flaw(self) -> str:
        """What is said of runs that have finished and learned nothing; empty where all have learned."""
        kinds = Counter(run.divergence.kind for run in self.runs if run.divergence)
        return "".join(kinds) if len(self.runs) == 1 else ", ".join(f"{count} {kind}" for kind, count in kinds.items())

    @property
    def label(self) -> str:
        """The name with what a reader must know beside it."""
        run = self.runs[0]
        if len(self.runs) > 1:
            return f"{self.name} ({', '.join(filter(None, [f'{len(self.runs)} seeds', self.flaw]))})"
        if run.status != "finished":
            return f"{run.name} ({run.status} after {run.rounds} rounds)"
        return f"{run.name} ({self.flaw})" if self.flaw else run.name

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values that JSON can carry."""
        figures = {name: self.estimate(name) for name in AVERAGED}
        errors = {name: found.standard_error if found else math.nan for name, found in figures.items()}
        return {
            "name": self.name,
            "algorithm": self.runs[0].algorithm,
            "metric": self.runs[0].metric,
            "seeds": [run.seed for run in self.runs],
            "mean": {name: found and found.mean for name, found in figures.items()},
            "standard_error": {name: None if math.isnan(error) else error for name, error in errors.items()},
        }


def summarize_all(run_folders: Sequence[Path], target: float | None = None) -> list[Group]:
    """Groups runs in the order given, a group standing where its first run stands. A run that has not finished stays
    alone, and so does one whose seed its group has already: it is no further sample. Raises RunFolderError."""
    groups: list[tuple[str | None, dict[int, RunSummary]]] = []
    for folder in run_folders:
        run, config = summarize(folder, target), read_config(folder)
        same = {key: value for key, value in config.items() if key not in ("seed", "name")}
        setting = json.dumps(same, sort_keys=True, default=str) if config and run.status == "finished" else None
        for other, runs in groups:
            if setting is not None and setting == other and run.seed not in runs:
                runs[run.seed] = run
                break
        else:
            groups.append((setting, {run.seed: run}))
    return [Group(_name(list(runs.values())), tuple(runs.values())) for _, runs in groups]


def _name(runs: Sequence[RunSummary]) -> str:
    """Returns what the names have in common, without a seed's beginnings; else the algorithm's name."""
    names = [run.name for run in runs]
    if len(set(names)) == 1:
        return names[0]
    common = names[0]
    while not all(name.startswith(common) for name in names):
        common = common[:-1]
    if any(name[len(common) :][:1].isalnum() for name in names):
        common = re.sub(r"[^\W_]+$", "", common)  # half a word
    return re.sub(r"[\W_]*(?<![^\W_])(seed)?[\W_]*$", "", common, flags=re.IGNORECASE) or runs[0].algorithm


class Comparison:
    """``keys`` are those of the configuration in which groups differ, unless they are given, ``settings`` the
    configuration of each group. ``named``: someone has given them names that differ. Raises RunFolderError."""

    def __init__(self, groups: Sequence[Group], keys: Sequence[str] | None = None):
        configs = [read_config(group.runs[0].folder) for group in groups]
        self.groups = tuple(groups)
        self.settings = [setting_of(config) for config in configs]
        self.keys = differing(self.settings) if keys is None else keys
        self.named = len({config.get("name") for config in configs}) > 1

    def marks(self, figure: str) -> list[Mark]:
        """Returns for each group: alone best by more than the standard error of the difference, or too close to it.
        Nothing is marked where all are equal, where metrics differ, and where the standard error is not known. Runs
        that have not finished, or have learned nothing, are left out."""
        found = {
            number: estimate
            for number, group in enumerate(self.groups)
            if group.runs[0].status == "finished" and not group.flaw
            if (estimate := group.with_error(figure)) is not None
        }
        marks: list[Mark] = [""] * len(self.groups)
        metrics = {self.groups[number].runs[0].metric for number in found}
        unknown = any(math.isnan(each.standard_error) for each in found.values())
        if len({each.mean for each in found.values()}) < 2 or len(metrics) > 1 or unknown:
            return marks
        better = max if AVERAGED[figure].as_metric and metrics == {"accuracy"} else min
        best = better(found, key=lambda number: found[number].mean)
        close = []
        for number, each in found.items():
            paired = self.difference(figure, number, best) if number != best else None
            error = paired.standard_error if paired else math.hypot(each.standard_error, found[best].standard_error)
            if abs(each.mean - found[best].mean) <= error:
                close.append(number)
        for number in close:
            marks[number] = "best" if len(close) == 1 else "close"
        return marks

    def difference(self, figure: str, number: int, other: int) -> Estimate | None:
        """Estimates it from the figure in runs of the same seed; of single runs, from the test metric of the same
        client: clients are the same where seed and data are, for all that is drawn of them follows from these. None
        where runs or clients of one group have not their like in the other."""
        data, other_data = (
            {key: value for key, value in self.settings[group].items() if key == "clients" or key.startswith("data.")}
            for group in (number, other)
        )
        ours, theirs = ({run.seed: run for run in self.groups[group].runs} for group in (number, other))
        if data != other_data or "clients" not in data or ours.keys() != theirs.keys():
            return None
        values: list[dict[int, float | None]] = []
        if len(ours) > 1:
            values = [{seed: AVERAGED[figure].of(run) for seed, run in runs.items()} for runs in (ours, theirs)]
        elif figure == "test_metric":
            for run in (*ours.values(), *theirs.values()):
                with open_records(run.folder, check=("round",)) as records:
                    last = records.execute(f"SELECT node, test_metric FROM last_test_metric WHERE {CLIENTS}")
                    values.append(dict(last))
        if not values or values[0].keys() != values[1].keys():
            return None
        pairs = [(value, values[1][key]) for key, value in values[0].items()]
        found = [one - another for one, another in pairs if one is not None and another is not None]
        known = len(found) > 1 and all(map(math.isfinite, found))
        return Estimate(mean(found), standard_error(found)) if known else None
