"""What can be reproduced of papers: the configurations of examples/paper, and what is shown of their runs. A table or
figure is one part a data set: ``table4.toml`` and ``table4-cifar.toml`` at the paper's size, files that end in
``-small.toml`` at the small one."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from statistics import mean
from textwrap import fill
from typing import TYPE_CHECKING, Literal

from ...metrics import open_run
from ...metrics.comparison import Group, summarize_all
from ...metrics.figures import AVERAGED, plus_minus, target_text
from ...metrics.text import UNKNOWN, short
from ...topology.section import Section
from ..config.files import load, read
from ..config.sections import ConfigError, RunConfig, as_section
from ..data.pool import DataError
from ..data.sets import load as load_data
from ..run.earlier import PlannedRun, has_diverged, is_finished
from .encoders import NO_FILES, EncoderTable, placed
from .folders import slug
from .part_figures import ALONE, curves, map_norms, maps, panels, save
from .states import communities, draw_states

if TYPE_CHECKING:
    from rich.table import Table

PAPER = Path(str(files("sheafgossip.paper")))  # examples/paper, also where the program was installed from a wheel
_BESIDE = {"published", "sources"}  # files of examples/paper that are no parts
ALL_PAPERS = "all-papers"
COLUMNS = {
    "accuracy": ("accuracy %", "test_metric"),
    "mse": ("MSE", "test_metric"),
    "variance": ("variance\n%²", ""),
    "train_accuracy": ("training\naccuracy %", ""),
    "communities": ("communities\nin rounds kept", ""),
    "worst_10": ("worst\n10%", "worst_10"),
    "worst_20": ("worst\n20%", "worst_20"),
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
    """[reproduction] of a configuration."""

    title: str
    published: str = ""  # section of published.toml; by default the one with the file's name
    place: str = ""  # of the data below --data-root; by default the data set's name
    runs: str = ""  # folder of the runs; by default one with the file's name
    columns: tuple[str, ...]
    across: tuple[str, ...] = ()  # endings of runs' names that stand side by side in one line
    seeds: int = 1  # how many, where the command does not say
    target: float | None = None  # mean test metric, for the columns that tell what it took to reach it
    minutes: float | None = None  # of one seed on two cores, where that was measured
    picture: Literal["none", "rounds", "rounds and bits", "maps"] = "none"
    encoders: tuple[EncoderTable, ...] = ()  # that are trained before the runs
    states: tuple[str, ...] = ()  # what the runs kept that is drawn as well: states.draw_states
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


def names() -> list[str]:
    """Returns table4, table5, ..., figure6."""
    stems = {path.stem.partition("-")[0] for path in PAPER.glob("*.toml")} - _BESIDE
    return sorted(stems, key=lambda stem: (not stem.startswith("table"), stem))


def named(what: str) -> list[str]:
    """Returns the tables and figures that it stands for: itself, or those of all papers. Raises ConfigError."""
    if what != ALL_PAPERS and what not in names():
        raise ConfigError(f"{what}: not among what can be reproduced: {', '.join([*names(), ALL_PAPERS])}")
    return [name for name in names() if name != "all"] if what == ALL_PAPERS else [what]


def titles(what: str) -> list[str]:
    return [_about(path).title for small in (False, True) for path in _files(what, small)]


@cache
def sources() -> dict[str, dict[str, str]]:
    """Returns {data set: its name, the files that are read, and where they are published}."""
    return tomllib.loads((PAPER / "sources.toml").read_text())


def parts_of(what: str, *, small: bool, data_root: Path | None, overrides: Sequence[str]) -> list[Part]:
    """Raises ConfigError."""
    paths = [path for name in named(what) for path in _files(name, small)]
    if small and data_root is not None:
        raise ConfigError("--data-root is for the paper's size; leave it out with --small, which needs no files")
    published = tomllib.loads((PAPER / "published.toml").read_text())
    parts = []
    for path in paths:
        try:
            about, configs = _about(path), load(path, overrides)
        except ConfigError as error:
            where = f"{path.stem}: " if what == ALL_PAPERS else ""
            raise ConfigError(*(f"{where}{line}" for line in error.args)) from None
        if data_root is not None:
            below = data_root / (about.place or configs[0].data.dataset)
            root = (below if below.exists() else data_root).resolve()
            configs = [each.but(data={"root": root}) for each in configs]
            about = replace(about, encoders=tuple(each.below(data_root) for each in about.encoders))
        parts.append(Part(path.stem, about, published.get(about.published or path.stem, {}), tuple(configs)))
    return parts


def with_data(what: str, parts: Sequence[Part]) -> tuple[list[Part], list[str]]:
    """Returns the parts whose data is there, and a line for each of the others. Raises ConfigError where none has."""
    problems = {}
    for part in parts:
        config = part.configs[0]
        try:
            if config.data.dataset not in NO_FILES and config.data.root is None:
                raise DataError("no --data-root")
            load_data(config.data, config.seed, config.clients)
        except DataError as error:
            problems[part.stem] = str(error)
    if len(problems) == len(parts):
        wanted = " or ".join(dict.fromkeys(sources()[part.data]["name"] for part in parts))
        found = f" ({problems[parts[0].stem]})" if parts[0].configs[0].data.root else ""
        raise ConfigError(
            f"{what} at paper size needs the {wanted} data: --data-root FOLDER (docs/data.md says where it is "
            f"published), or --small{found}"
        )
    left_out = [f"{part.about.title}: left out: {problems[part.stem]}" for part in parts if part.stem in problems]
    there = []
    for part in (part for part in parts if part.stem not in problems):
        lacking = {encoder: why for encoder in part.about.encoders if (why := encoder.lacks())}
        without = [config for config in part.configs if any(encoder.of(config) for encoder in lacking)]
        left_out += [f"{part.about.title}: {config.label}: left out, its encoder: {why}"
                     for config in without for encoder, why in lacking.items() if encoder.of(config)]  # fmt: skip
        there.append(replace(part, configs=tuple(config for config in part.configs if config not in without)))
    return there, left_out


def _files(what: str, small: bool) -> list[Path]:
    found = [*PAPER.glob(f"{what}.toml"), *PAPER.glob(f"{what}-*.toml")]
    return sorted((path for path in found if path.stem.endswith("-small") == small), key=lambda path: path.stem)


def _about(path: Path) -> ReproductionSection:
    return as_section(ReproductionSection, read(path)["reproduction"])


@dataclass(frozen=True)
class Result:
    """One run of a part in all its seeds; ``group`` and ``folders`` are of those that finished."""

    name: str
    group: Group | None
    folders: tuple[Path, ...]
    ended: str  # "finished" if any has, "diverged" if all have, else "failed"


def planned(part: Part, seeds: int | None, out: Path) -> list[PlannedRun]:
    """Returns the runs OUT/PART/NAME-seed-0, ...; by default of as many seeds as the part says."""
    folder = out / (part.about.runs or part.stem)
    return [
        PlannedRun(placed(config, out).but(seed=seed), folder / slug(f"{config.label} seed {seed}"))
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


# -- what is shown of them --------------------------------------------------------------------------------------------


def render(part: Part, results: list[Result]) -> Table:
    """Makes a line a run; where runs stand side by side (``across``), a line for each beginning of a name."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    columns, endings = part.about.columns, part.about.across or ("",)
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)  # 80 columns hold the widest
    table.add_column("", overflow="fold")
    published = {column for line in part.published.values() for column in line}
    target = target_text(["mse" if "mse" in columns else "accuracy"], part.about.target or 0.0)
    for ending in endings:
        for column in columns:
            above = f"{ending}\n" if ending and column == columns[0] else ""
            title = above + COLUMNS[column][0].format(target=target)
            for each in [f"{title}\npaper", "ours"] if column in published else [title]:
                table.add_column(each, justify="right", vertical="bottom", no_wrap=True)
    by_name, heading = {result.name: result for result in results}, ""
    ending_of = re.compile(f" ({'|'.join(map(re.escape, endings))})$")
    for line in dict.fromkeys(ending_of.sub("", name) for name in by_name):
        label = line
        if part.about.across:
            above, _, value = line.rpartition(" ")
            label = f"  {value}"
            if above != heading:
                table.add_row(heading := above)
        runs, cells = [by_name[f"{line} {ending}".rstrip()] for ending in endings], []
        for run in runs:
            for column in columns:
                theirs = part.published.get(run.name, {}).get(column, "")
                cells += [theirs if isinstance(theirs, str) else f"{theirs:g}"] if column in published else []
                otherwise = run.ended if column == columns[0] else UNKNOWN
                cells.append(_ours(results, run, run.group, column) if run.group else otherwise)
        flaws = [f"({run.group.flaw})" for run in runs if run.group and run.group.flaw]
        table.add_row(" ".join([label, *flaws]), *cells)
    return table


def _ours(results: list[Result], result: Result, group: Group, column: str) -> str:
    if column == "train_accuracy":
        found = group.with_error(f"metric.{column}")
        return (
            UNKNOWN if found is None else plus_minus("accuracy", found.mean, found.standard_error).replace(" ± ", "±")
        )
    if of_a_run := COLUMNS[column][1]:
        figure = AVERAGED[of_a_run]
        return group.text(figure).replace(" ± ", "±") if group.estimate(figure.key) else UNKNOWN
    if column == "variance":
        estimate = group.estimate(column)
        return UNKNOWN if estimate is None else f"{1e4 * estimate.mean:.4g}"
    if column == "communities":
        return " ".join(map(str, communities(result.folders[0]))) or UNKNOWN
    if column == "kbit_to":
        estimate = group.estimate("payload_bytes_to_reach")
        return UNKNOWN if estimate is None else short(8e-3 * estimate.mean)
    if column == "busiest":
        return short(mean(open_run(folder).client_total.payload_bytes_sent.max() for folder in result.folders) / 1e3)
    if column == "rounds_past_local":
        found = curves(results)
        alone, own = found[found.run == ALONE].metric, found[found.run == result.name]
        above = own[own.metric > alone.iloc[-1]] if len(alone) and result.name != ALONE else alone[:0]
        return str(above["round"].iloc[0]) if len(above) else UNKNOWN  # the first round after which it is better
    norms = map_norms(result)
    change = 100 * (norms.norm / norms.norm_after_round_1 - 1).abs().max()
    return short({"norm_least": norms.norm.min(), "norm_median": norms.norm.median(), "norm_most": norms.norm.max(),
                   "norm_change": change}[column])  # fmt: skip


def remarks(part: Part, results: list[Result], changed: list[str]) -> str:
    notes = list(part.about.notes)
    if runs := [run for result in results if result.group for run in result.group.runs]:
        clients, rounds, seeds = ({getattr(run, what) for run in runs} for what in ("clients", "rounds", "seed"))
        over = "clients" if len(seeds) == 1 else f"{len(seeds)} seeds"
        of_all = f"{' / '.join(map(str, sorted(clients)))} clients, {' / '.join(map(str, sorted(rounds)))} rounds"
        notes.insert(0, f"ours: {of_all}; ± is the standard error over {over}")
    differs = [*part.about.differs, *(f"{key} (from the command line)" for key in changed)]
    lines: list[str] = []
    for heading, texts in (("To read it:", notes), ("Not as in the paper:", differs)):
        indented = [fill(text, 100, initial_indent="  - ", subsequent_indent="    ") for text in texts]
        lines += ["", heading, *indented] if texts else []
    return "\n".join(lines)


def draw(part: Part, results: list[Result], out: Path) -> list[Path]:
    """Returns the files written: .csv, .svg and .png. None where no run has finished."""
    there = [result for result in results if result.folders]
    runs, files = [(result.name, result.folders[0]) for result in there], list[Path]()
    for what in part.about.states:  # of one seed
        files += draw_states(what, runs, part.about.title, part.stem, out)
    if part.about.picture == "none" or not there:
        return files
    shown = map_norms(there[0]) if part.about.picture == "maps" else curves(there)
    drawn = partial(maps, shown) if part.about.picture == "maps" else partial(panels, shown, part)
    return [*save(shown, drawn, part.about.title, out / part.stem), *files]
