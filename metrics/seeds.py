"""Runs that differ in nothing but their seed, as one: means and standard errors over runs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from .config_file import read_config
from .fairness import mean, standard_error
from .summary import RunSummary, summarize

FIGURES: dict[str, Callable[[RunSummary], float | None]] = {
    "test_metric": lambda run: run.final.mean if run.final else None,
    "std": lambda run: run.final.std if run.final else None,
    "variance": lambda run: run.final.variance if run.final else None,
    "worst_10": lambda run: run.final.worst_10 if run.final else None,
    "worst_20": lambda run: run.final.worst_20 if run.final else None,
    "global_metric": lambda run: run.global_metric,
    "payload_bytes": lambda run: run.traffic.payload_bytes if run.measured else None,
    "message_bytes": lambda run: run.traffic.message_bytes if run.measured else None,
    "wire_bytes": lambda run: run.traffic.wire_bytes if run.measured else None,
    "flops": lambda run: run.flops,
    "clients_pss": lambda run: run.memory.clients_pss if run.processes_measured else None,
    "clients_cpu_s": lambda run: run.clients_cpu_s if run.processes_measured else None,
    "wall_s": lambda run: run.wall_s,
    "virtual_s": lambda run: run.conditions.virtual_s if run.conditions else None,
    "waited_share": lambda run: run.conditions.waited_share if run.conditions else None,
    "rounds_to_reach": lambda run: run.reached.round if run.reached else None,
    "payload_bytes_to_reach": lambda run: run.reached.payload_bytes if run.reached and run.measured else None,
    "wire_bytes_to_reach": lambda run: run.reached.wire_bytes if run.reached and run.measured else None,
    "wall_s_to_reach": lambda run: run.reached.wall_s if run.reached else None,
    "virtual_s_to_reach": lambda run: run.reached_virtually.virtual_s if run.reached_virtually else None,
}
"""What is averaged over the runs of a group; None where a run has no such figure."""


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
        """Of one of FIGURES; None unless every run has it."""
        values = [value for run in self.runs if (value := FIGURES[figure](run)) is not None]
        return Estimate(mean(values), standard_error(values)) if len(values) == len(self.runs) else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values that JSON can carry."""
        figures = {name: self.estimate(name) for name in FIGURES}
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
    """In the order given, a group standing where its first run stands. Raises RunFolderError.

    A run that has not finished stays alone, and so does one whose seed its group has already: the same seed gives the
    same run, which is no further sample.
    """
    groups: list[tuple[str | None, list[RunSummary], list[Path]]] = []
    for folder in run_folders:
        run, config = summarize(folder, target), read_config(folder)
        alike = _apart_from_seed(config) if config and run.status == "finished" else None
        for other, runs, folders in groups:
            if alike is not None and alike == other and all(run.seed != earlier.seed for earlier in runs):
                runs.append(run)
                folders.append(folder)
                break
        else:
            groups.append((alike, [run], [folder]))
    return [Group(_name(runs), tuple(runs), tuple(folders)) for _, runs, folders in groups]


def _apart_from_seed(config: dict[str, Any]) -> str:
    rest = {key: value for key, value in config.items() if key not in ("seed", "name")}
    return json.dumps(rest, sort_keys=True, default=str)


def _name(runs: Sequence[RunSummary]) -> str:
    """What the names have in common, without a seed's beginnings; else the algorithm's name."""
    if len({run.name for run in runs}) == 1:
        return runs[0].name
    letters = zip(*(run.name for run in runs), strict=False)
    common = "".join(letter for letter, *others in takewhile(lambda column: len(set(column)) == 1, letters))
    if any(run.name[len(common) :][:1].isalnum() for run in runs):
        common = re.sub(r"[^\W_]+$", "", common)  # half a word
    return re.sub(r"[\W_]*(?<![^\W_])(seed)?[\W_]*$", "", common, flags=re.IGNORECASE) or runs[0].algorithm
