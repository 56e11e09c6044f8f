"""Runs that differ in nothing but their seed, as one: means and standard errors over runs."""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from .config_file import read_config
from .fairness import mean, standard_error
from .figures import AVERAGED, COUNT, METRIC, Figure, plus_minus
from .summary import RunSummary, summarize
from .text import UNKNOWN, metric_number, short


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean over runs, with its standard error (nan for one run)."""

    mean: float
    standard_error: float


@dataclass(frozen=True, slots=True)
class Group:
    """One run, or finished runs that are equal but for seed and name."""

    name: str
    runs: tuple[RunSummary, ...]
    folders: tuple[Path, ...] = ()
    """Of each run."""

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
        if figure.key == "test_metric":
            return figure.missing if estimate is None else plus_minus(metric, estimate.mean, estimate.standard_error)
        if estimate is None:
            reached = sum(figure.of(run) is not None for run in self.runs)
            return f"by {reached} of {len(self.runs)}" if reached and figure.unit is COUNT else UNKNOWN
        if figure.unit is METRIC:
            return metric_number(metric, estimate.mean)
        whole = figure.unit is COUNT and len(self.runs) == 1
        return figure.unit.text(estimate.mean) if whole else short(estimate.mean / figure.unit.size)

    @property
    def flaw(self) -> str:
        """What is said of runs that have finished and learned nothing; empty where all have learned."""
        kinds = Counter(run.divergence.kind for run in self.runs if run.divergence)
        if len(self.runs) == 1:
            return "".join(kinds)
        return ", ".join(f"{count} {kind}" for kind, count in kinds.items())

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
        return {
            "name": self.name,
            "algorithm": self.runs[0].algorithm,
            "metric": self.runs[0].metric,
            "seeds": [run.seed for run in self.runs],
            "mean": {name: found and found.mean for name, found in figures.items()},
            "standard_error": {
                name: None if found is None or math.isnan(found.standard_error) else found.standard_error
                for name, found in figures.items()
            },
        }


def summarize_all(run_folders: Sequence[Path], target: float | None = None) -> list[Group]:
    """Groups runs in the order given, a group standing where its first run stands. Raises RunFolderError.

    A run that has not finished stays alone, and so does one whose seed its group has already: the same seed gives the
    same run, which is no further sample.
    """
    groups: list[tuple[str | None, list[RunSummary], list[Path]]] = []
    for folder in run_folders:
        run, config = summarize(folder, target), read_config(folder)
        same = {key: value for key, value in config.items() if key not in ("seed", "name")}
        setting = json.dumps(same, sort_keys=True, default=str) if config and run.status == "finished" else None
        for other, runs, folders in groups:
            if setting is not None and setting == other and all(run.seed != earlier.seed for earlier in runs):
                runs.append(run)
                folders.append(folder)
                break
        else:
            groups.append((setting, [run], [folder]))
    return [Group(_name(runs), tuple(runs), tuple(folders)) for _, runs, folders in groups]


def _name(runs: Sequence[RunSummary]) -> str:
    """Returns what the names have in common, without a seed's beginnings; else the algorithm's name."""
    if len({run.name for run in runs}) == 1:
        return runs[0].name
    letters = zip(*(run.name for run in runs), strict=False)
    common = "".join(letter for letter, *others in takewhile(lambda column: len(set(column)) == 1, letters))
    if any(run.name[len(common) :][:1].isalnum() for run in runs):
        common = re.sub(r"[^\W_]+$", "", common)  # half a word
    return re.sub(r"[\W_]*(?<![^\W_])(seed)?[\W_]*$", "", common, flags=re.IGNORECASE) or runs[0].algorithm
