"""Runs and groups of runs side by side: where their configurations differ, and which is best in what."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .conditions import CLIENTS
from .config_file import flat, read_config
from .fairness import mean, standard_error
from .figures import AVERAGED
from .reader import open_records
from .seeds import Estimate, Group

Mark = Literal["", "best", "close"]


@dataclass(frozen=True)
class Comparison:
    """``keys`` are those of the configuration in which groups differ, ``settings`` the configuration of each group.
    ``named``: someone has given them names that differ.
    """

    groups: tuple[Group, ...]
    keys: tuple[str, ...]
    settings: tuple[Mapping[str, Any], ...]
    named: bool

    @classmethod
    def of(cls, groups: Sequence[Group], keys: Sequence[str] | None = None) -> "Comparison":
        """``keys``: by default those that differ. Raises RunFolderError."""
        configs = [read_config(group.folders[0]) for group in groups]
        settings = [setting_of(config) for config in configs]
        named = len({config.get("name") for config in configs}) > 1
        return cls(tuple(groups), tuple(differing(settings) if keys is None else keys), tuple(settings), named)

    def marks(self, figure: str) -> list[Mark]:
        """Returns for each group: alone best by more than the standard error of the difference, or too close to the
        best.

        Nothing is marked where all are equal, where metrics differ, and where the standard error is not known. Runs
        that have not finished, or have learned nothing, are left out.
        """
        found = {
            number: estimate
            for number, group in enumerate(self.groups)
            if group.runs[0].status == "finished"
            and not any(run.divergence for run in group.runs)
            and (estimate := group.with_error(figure)) is not None
        }
        marks: list[Mark] = [""] * len(self.groups)
        values = {estimate.mean for estimate in found.values()}
        metrics = {self.groups[number].runs[0].metric for number in found}
        if len(values) < 2 or len(metrics) > 1 or any(math.isnan(each.standard_error) for each in found.values()):
            return marks
        best = (max if AVERAGED[figure].as_metric and metrics == {"accuracy"} else min)(
            found, key=lambda n: found[n].mean
        )
        close = [
            number
            for number, each in found.items()
            if abs(each.mean - found[best].mean) <= self._error_of_difference(figure, number, best, found)
        ]
        for number in close:
            marks[number] = "best" if len(close) == 1 else "close"
        return marks

    def difference(self, figure: str, number: int, other: int) -> Estimate | None:
        """Estimates it between two groups, with its standard error where each run or client of one has its like in the
        other; None where that is not so."""
        pairs = self._pairs(figure, number, other)
        if len(pairs) < 2:
            return None
        found = [one - another for one, another in pairs]
        return Estimate(mean(found), standard_error(found)) if all(map(math.isfinite, found)) else None

    def _error_of_difference(self, figure: str, number: int, other: int, found: Mapping[int, Estimate]) -> float:
        if number != other and (paired := self.difference(figure, number, other)) is not None:
            return paired.standard_error
        return math.hypot(found[number].standard_error, found[other].standard_error)

    def _pairs(self, figure: str, number: int, other: int) -> list[tuple[float, float]]:
        """Returns the figure in runs of the same seed; of single runs, the test metric of the same client. Clients are
        the same where seed and data are: all that is drawn of them follows from these."""
        one, another = self.groups[number], self.groups[other]
        if _data_of(self.settings[number]) != _data_of(self.settings[other]) or not _data_of(self.settings[other]):
            return []
        ours, theirs = ({run.seed: run for run in group.runs} for group in (one, another))
        if ours.keys() != theirs.keys() or any(len(group.runs) > len(group.folders) for group in (one, another)):
            return []
        if len(ours) > 1:
            values = [(AVERAGED[figure].of(run), AVERAGED[figure].of(theirs[seed])) for seed, run in ours.items()]
            return [(x, y) for x, y in values if x is not None and y is not None]
        if figure != "test_metric":
            return []
        of_one, of_other = last_metrics(one.folders[0]), last_metrics(another.folders[0])
        return [(of_one[client], of_other[client]) for client in of_one] if of_one.keys() == of_other.keys() else []


def _data_of(setting: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the clients' samples follow from, beside the seed; empty where the configuration does not tell."""
    found = {key: value for key, value in setting.items() if key == "clients" or key.startswith("data.")}
    return found if "clients" in found else {}


def last_metrics(folder: Path) -> dict[int, float]:
    """Returns {client: its last test metric}. Raises RunFolderError."""
    with open_records(folder, check=("round",)) as records:
        return dict(records.execute(f"SELECT node, test_metric FROM last_test_metric WHERE {CLIENTS}"))


def setting_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns {key with dots: value} of a configuration, without seed and name."""
    return {key: value for key, value in flat(config).items() if key not in ("seed", "name")}


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the keys that do not have the same value everywhere, or are not everywhere.

    Settings that only one algorithm has go without saying: the algorithm's name tells of them.
    """
    found = []
    for key in dict.fromkeys(key for setting in settings for key in setting):
        first, *others = [setting[key] for setting in settings if key in setting]
        lacking = len(others) + 1 < len(settings) and not key.startswith("algorithm.")
        if lacking or any(value != first for value in others):
            found.append(key)
    return found


def short_names(keys: Sequence[str]) -> list[str]:
    """Returns each without its sections, where that tells it from the others."""
    last = [key.rpartition(".")[2] for key in keys]
    return [name if last.count(name) == 1 else key for name, key in zip(last, keys, strict=True)]
