"""What can be reproduced of papers: the configurations of examples/paper, their runs, and how those ended.

A table or figure is one part a data set: ``table4.toml`` and ``table4-cifar.toml`` at the paper's size, files that end
in ``-small.toml`` at the small one.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal

from ...metrics.comparison import Group, summarize_all
from ...topology.section import Section
from ..config.files import load, read
from ..config.sections import ConfigError, RunConfig, as_section
from ..data.pool import DataError
from ..data.sets import load as load_data
from ..run.earlier import PlannedRun, has_diverged, is_finished
from .folders import slug

_NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "vehicle": "Vehicle", "har": "HAR", "school": "School",
          "gleam": "GLEAM"}  # fmt: skip
COLUMNS = {
    "accuracy": ("accuracy %", "test_metric"),
    "mse": ("MSE", "test_metric"),
    "worst_10": ("worst\n10%", "worst_10"),
    "sent": ("sent\nMB", "payload_bytes"),
    "wall": ("time\ns", "wall_s"),
    "tflop": ("TFLOP", "flops"),
    "memory": ("memory\nMB", "clients_pss"),
    "busiest": ("kB", ""),
    "rounds_to": ("rounds\nto {target}", "rounds_to_reach"),
    "kbit_to": ("kbit\nto {target}", ""),
    "rounds_past_local": ("rounds to\npass Local", ""),
    "norm_least": ("least\nnorm", ""),
    "norm_median": ("median\nnorm", ""),
    "norm_most": ("largest\nnorm", ""),
    "norm_change": ("largest\nchange %", ""),
}
"""A column's title, and which of the figures of a run it shows; the others are computed for it."""


@dataclass(frozen=True, kw_only=True)
class ReproductionSection(Section):
    """The table [reproduction] of a configuration in examples/paper."""

    title: str
    published: str = ""  # section of published.toml; by default the one with the file's name
    runs: str = ""  # folder of the runs; by default one with the file's name
    columns: tuple[str, ...]
    across: tuple[str, ...] = ()  # endings of runs' names that stand side by side in one line
    seeds: int = 1  # how many, where the command does not say
    target: float | None = None  # mean test metric, for the columns that tell what it took to reach it
    picture: Literal["none", "rounds", "rounds and bits", "maps"] = "none"
    differs: tuple[str, ...] = ()  # what is not as in the paper
    notes: tuple[str, ...] = ()  # how to read the figures

    def __post_init__(self) -> None:
        if unknown := set(self.columns) - COLUMNS.keys():
            raise ValueError(f"columns: {', '.join(sorted(unknown))}: allowed are {', '.join(COLUMNS)}")


@dataclass(frozen=True)
class Part:
    """One configuration and what is published of it: {run: {column: figure or words}}."""

    stem: str
    about: ReproductionSection
    published: Mapping[str, Mapping[str, float | str]]
    configs: tuple[RunConfig, ...]

    @property
    def data(self) -> str:
        return self.configs[0].data.dataset


def paper_folder() -> Path:
    """Returns examples/paper, also where the program was installed from a wheel."""
    return Path(str(files("sheafgossip.paper")))


def names() -> list[str]:
    """Returns table4, table5, ..., figure6."""
    stems = {path.stem.partition("-")[0] for path in paper_folder().glob("*.toml")} - {"published"}
    return sorted(stems, key=lambda stem: (not stem.startswith("table"), stem))


def titles(what: str) -> list[str]:
    """Returns the titles of all parts, those at the small size last."""
    return [_about(path).title for small in (False, True) for path in _files(what, small)]


def parts_of(what: str, *, small: bool, data_root: Path | None, overrides: Sequence[str]) -> list[Part]:
    """Raises ConfigError where nothing is called so, or a key or the data is wrong."""
    if what not in names():
        raise ConfigError(f"{what}: not among what can be reproduced: {', '.join(names())}")
    if small and data_root is not None:
        raise ConfigError("--data-root is for the paper's size; leave it out with --small, which needs no files")
    published = tomllib.loads((paper_folder() / "published.toml").read_text())
    parts = []
    for path in _files(what, small):
        about, configs = _about(path), load(path, overrides)
        if data_root is not None:
            below = data_root / configs[0].data.dataset
            root = (below if below.is_dir() else data_root).resolve()
            configs = [each.but(data={"root": root}) for each in configs]
        parts.append(Part(path.stem, about, published.get(about.published or path.stem, {}), tuple(configs)))
    return parts


def with_data(what: str, parts: Sequence[Part]) -> tuple[list[Part], list[str]]:
    """Returns the parts whose data is there, and a line for each of the others. Raises ConfigError where none has."""
    problems = {}
    for part in parts:
        config = part.configs[0]
        try:
            if config.data.dataset in _NAMES and config.data.root is None:
                raise DataError("no --data-root")
            load_data(config.data, config.seed, config.clients)
        except DataError as error:
            problems[part.stem] = str(error)
    if len(problems) == len(parts):
        *others, last = dict.fromkeys(_NAMES.get(part.data, part.data) for part in parts)
        wanted = " or ".join(filter(None, [", ".join(others), last]))
        found = f" ({problems[parts[0].stem]})" if parts[0].configs[0].data.root else ""
        raise ConfigError(
            f"{what} at paper size needs the {wanted} data: --data-root FOLDER (docs/data.md says where it is "
            f"published), or --small{found}"
        )
    left_out = [f"{part.about.title}: left out: {problems[part.stem]}" for part in parts if part.stem in problems]
    return [part for part in parts if part.stem not in problems], left_out


def _files(what: str, small: bool) -> list[Path]:
    found = [*paper_folder().glob(f"{what}.toml"), *paper_folder().glob(f"{what}-*.toml")]
    return sorted((path for path in found if path.stem.endswith("-small") == small), key=lambda path: path.stem)


def _about(path: Path) -> ReproductionSection:
    return as_section(ReproductionSection, read(path)["reproduction"])


@dataclass(frozen=True)
class Result:
    """One run of a part in all its seeds; ``group`` and ``folders`` are of those that finished."""

    name: str
    group: Group | None
    folders: tuple[Path, ...]
    ended: str  # "finished" if any has, "diverged" if all have, "failed"


def planned(part: Part, seeds: int | None, out: Path) -> list[PlannedRun]:
    """Returns every run of every seed: OUT/PART/NAME-seed-0, ...; by default of as many seeds as a part has."""
    folder = out / (part.about.runs or part.stem)
    return [
        PlannedRun(config.but(seed=seed), folder / slug(f"{config.label} seed {seed}"))
        for seed in range(seeds or part.about.seeds)
        for config in part.configs
    ]


def results(part: Part, runs: Sequence[PlannedRun]) -> list[Result]:
    """Returns them in the order of the configuration; ``runs`` are those of the part."""
    found = []
    for config in part.configs:
        folders = [run.folder for run in runs if run.config.label == config.label]
        finished = tuple(filter(is_finished, folders))
        group = summarize_all(finished, part.about.target)[0] if finished else None
        ended = "finished" if finished else "diverged" if all(map(has_diverged, folders)) else "failed"
        found.append(Result(config.label, group, finished, ended))
    return found
