"""Which runs a sweep is made of, one configuration with many values and seeds, and where each lives."""

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from ...metrics import lock
from ...metrics.config_file import differing, setting_of, short_names
from ...metrics.config_file import parse as parse_toml
from ..config.files import load, parse, refuse_without_effect
from ..config.sections import ConfigError, RunConfig, refuse
from ..run.earlier import PlannedRun, configuration, missing_of
from .folders import slug

_MOST_RUNS = 100_000
_NOT_HERE = {
    "seed": "how many seeds there are is told by --seeds",
    "name": "it changes nothing in a run",
    "compare": "[[compare]] tables are written in the file",
}

Grids = Mapping[str, tuple[Any, ...]]  # {key: the values that a sweep tries}


def parse_grids(texts: Sequence[str]) -> Grids:
    """Reads each "key=value,value"; values as in TOML, bare words need no quotes. Raises ConfigError."""
    grids: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        example = 'write it as key=value,value, for example --grid "algorithm.gamma=0.01,0.03"'
        try:
            found = parse_toml(f"values = [{values}]")["values"]
        except ValueError:
            found = [parse(value) for value in values.split(",")]
        for is_wrong, told in (
            (not (equals and key and values), example),
            (key in _NOT_HERE, f"{key} cannot be swept: {_NOT_HERE.get(key)}"),
            (key in grids, f"{key} has a grid already; write all its values in one"),
            ("" in found, "a value between the commas is missing"),
            (any(isinstance(value, dict) for value in found), "a value is a table; write a grid for each of its keys"),
        ):
            if is_wrong:
                raise ConfigError(f"--grid {text}: {told}")
        for number, value in enumerate(found):
            if any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in found[:number]):
                raise ConfigError(f"--grid {text}: {value} is there twice")
        grids[key] = tuple(found)
    return grids


@dataclass(frozen=True)
class Plan:
    """``runs`` go through all settings before the next seed. ``keys`` are those in which settings differ."""

    out: Path
    runs: tuple[PlannedRun, ...]
    keys: tuple[str, ...]
    naming: Callable[[RunConfig], str]

    def missing(self) -> list[PlannedRun]:
        """Returns the runs that have not finished. Raises ConfigError where the folder holds another sweep's, and
        RunFolderError where a run still goes on. Runs of other values or seeds may be there, and files beside them."""
        there = sorted(path for path in self.out.iterdir() if path.name != lock.NAME) if self.out.exists() else []
        folders = {run.folder for run in self.runs}
        own = [path for path in there if path in folders or self._is_kin(path)]
        for path in there:
            is_run = (path / "config.toml").exists() or (path / "run.sqlite").exists()
            if path not in own and (is_run or not own):
                raise ConfigError(f"--out {self.out}: {path.name} is no part of this sweep; choose another folder")
        return missing_of(self.runs)

    def _is_kin(self, folder: Path) -> bool:
        """Returns whether a run would be one of this sweep if there were more values or seeds."""
        config = configuration(folder)
        if config is None or folder.name != self.naming(config):
            return False
        kin = _flat(config, self.keys)
        return any(_flat(run.config, self.keys) == kin for run in self.runs)


def plan(file: Path, overrides: Sequence[str], grids: Grids, seeds: int, out: Path) -> Plan:
    """Makes the product of grids, [[compare]] tables and seeds, from the file's seed on. Raises ConfigError."""
    if (count := seeds * math.prod(map(len, grids.values()))) > _MOST_RUNS:
        raise ConfigError(f"sweep: these grids and seeds make {count:,} runs; at most {_MOST_RUNS:,} are made")
    points = [dict(zip(grids, values, strict=True)) for values in product(*grids.values())]  # the last turns fastest
    loaded = [load(file, overrides, point) for point in points]
    configs = [config for of_point in loaded for config in of_point]
    refuse_without_effect(overrides, configs)
    refuse({key: f"--grid {key}: " for key in grids}, configs)
    naming = partial(_name, list(grids), len(loaded[0]) > 1)
    names = [naming(config) for config in configs]
    if twice := [name for number, name in enumerate(names) if name in names[:number]]:
        raise ConfigError(
            f"sweep: two settings would share the folder {twice[0]}: every [[compare]] table needs a name of its own, "
            "and values must differ in letters or digits"
        )
    if any(config.has_scenario and config.compute.step_s is None for config in configs):
        raise ConfigError(
            "compute.step_s is not set: all runs of a sweep must count time alike; `sheafgossip plan` tells what a "
            "local step takes here"
        )
    seeded = [config.but(seed=config.seed + more) for more in range(seeds) for config in configs]
    runs = tuple(PlannedRun(config, out / naming(config)) for config in seeded)
    keys = dict.fromkeys([*grids, *differing([_flat(config) for config in configs])])
    return Plan(out, runs, tuple(keys), naming)


def _name(keys: Sequence[str], of_several: bool, config: RunConfig) -> str:
    """Returns a run's folder, by the grids' keys: of paths their last part, 1 for 1.0, and 1e16 for 1e+16."""
    words, values = [config.label] if of_several else [], _flat(config)
    for name, key in zip(short_names(keys), keys, strict=True):
        value = values.get(key)
        text = value.rpartition("/")[2] if isinstance(value, str) else str(value).removesuffix(".0").replace("e+", "e")
        words.append(f"{name} {text}")
    return slug(" ".join([*words, f"seed {config.seed}"]))


def _flat(config: RunConfig, without: Sequence[str] = ()) -> dict[str, Any]:
    return {key: value for key, value in setting_of(tomllib.loads(config.to_toml())).items() if key not in without}
