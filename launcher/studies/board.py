"""The board: methods on problems, each tuned with the same budget, and what each came to. A method is a file with a
table [method] and the keys that it sets, a problem a configuration without an algorithm; ours are in examples/board."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from ...metrics.board import Board, Entry, Result, read_board
from ...metrics.config_file import flat
from ...metrics.store import RunFolderError
from ...node import own_code
from ...topology.errors import UserError
from ...topology.section import Section
from ..config.effect import tidy
from ..config.files import load_one, read, tables_of
from ..config.sections import ConfigError, RunConfig, as_section
from ..run.earlier import PlannedRun, clear, has_diverged
from ..run.folder import machine, remove_empty
from .folders import slug
from .search import Budget
from .space import parse_space
from .sweep import Ended, Jobs, prepare
from .tuning import NoneFinished, searched, tune

OURS = Path(str(files("sheafgossip.board")))  # examples/board, also where the program was installed from a wheel
ENTRY = "entry.json"
TUNING_SEED = 100  # the first one of the trials; runs that are reported have others


@dataclass(frozen=True)
class MethodSection(Section):
    """[method] of a method's file."""

    title: str
    family: str = "own"  # with which it stands
    search: dict[str, Any] = field(default_factory=dict)  # {key: what `sheafgossip tune` takes}


@dataclass(frozen=True)
class Method:
    name: str
    about: MethodSection
    keys: Mapping[str, Any]  # {key with dots: value}

    @classmethod
    def of(cls, path: Path) -> "Method":
        """Raises ConfigError."""
        tree = read(path)
        try:
            about = as_section(MethodSection, tree.pop("method", {}))
            if about.search:
                parse_space(about.search)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, ("method", *first["loc"])))
            raise ConfigError(f"{path}: {where}: {first['msg'].lower()}") from None
        except ConfigError as error:
            raise ConfigError(f"{path}: method.search: {error}") from None
        if "algorithm" not in tree:
            raise ConfigError(f"{path}: a method of the board needs a table [algorithm]")
        return cls(slug(path.stem), about, flat(tree))


@dataclass(frozen=True)
class Problem:
    name: str
    path: Path
    title: str

    @classmethod
    def of(cls, path: Path) -> "Problem":
        """Raises ConfigError."""
        return cls(slug(path.stem), path, f"{read(path).get('name') or path.stem}")


@dataclass(frozen=True)
class Plan:
    """All of ``problems`` with all of ``methods``, tuned with ``budget``, then run with so many ``seeds``."""

    problems: Sequence[Problem]
    methods: Sequence[Method]
    budget: Budget
    seeds: int

    def key(self, problem: Problem, method: Method) -> str:
        """Tells of what an entry depends on, but for the program itself."""
        about = read(problem.path), method.about, dict(method.keys), self.budget, self.seeds, TUNING_SEED
        config = None
        with suppress(UserError):
            config = load_one(problem.path, method.keys)
        codes = own_code.digests(config.uses) if config else {}
        return sha256(repr((about, codes)).encode()).hexdigest()[:16]


def ours(kind: type[Method] | type[Problem], wanted: Sequence[str]) -> list[Any]:
    """Returns those of examples/board, or the ``wanted`` of them, of "none" none. Raises ConfigError."""
    what = "methods" if kind is Method else "problems"
    found = {path.stem: path for path in sorted((OURS / what).glob("*.toml"))}
    if list(wanted) == ["none"]:
        return []
    if unknown := [name for name in wanted if name not in found]:
        raise ConfigError(
            f"--{what[:-1]} {unknown[0]}: allowed are none, {', '.join(found)}; or give your own as a file"
        )
    return [kind.of(found[name]) for name in wanted or found]


class Maker:
    """Makes the entries of a plan below ``root``, a folder each; what is there already is kept."""

    def __init__(self, plan: Plan, root: Path, jobs: Jobs):
        self._plan, self._root, self._jobs = plan, root, jobs

    def made(self, problem: Problem, method: Method) -> Entry | None:
        """Returns the entry that is there, if it came from the very same."""
        with suppress(UserError):
            entry = read_board(self._root / problem.name / method.name / ENTRY).entries[0]
            if entry.key == self._plan.key(problem, method):
                return entry
        return None

    def make(self, problem: Problem, method: Method) -> Entry:
        """Tunes, runs, and keeps what it came to: figures and hashes, not the runs. Raises KeyboardInterrupt."""
        plan, folder = self._plan, self._root / problem.name / method.name
        key, about = plan.key(problem, method), method.about
        entry = Entry(problem.name, problem.title, method.name, about.title, about.family, "", key=key)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            entry = self._tuned_and_run(entry, problem, method, folder / f"trials-{key}")
        except UserError as error:
            entry = replace(entry, flaw=f"refused: {error}".splitlines()[0])
        Board({}, (entry,)).save(folder / ENTRY)
        return entry

    def _tuned_and_run(self, entry: Entry, problem: Problem, method: Method, folder: Path) -> Entry:
        config = load_one(problem.path, method.keys)
        space = searched(config, parse_space(method.about.search)) if method.about.search else {}
        require_possible(config.but(seed=TUNING_SEED), folder)
        try:
            tuned = tune(config.but(seed=TUNING_SEED), space, self._plan.budget, folder, self._jobs)
        except NoneFinished as error:
            return replace(entry, flaw=f"{error}".splitlines()[0])
        counts = Counter[str](trial.state for trial in tuned.trials)
        keys = {**method.keys, **tuned.values}
        entry = replace(
            entry, toml=tomli_w.dumps(tidy(tables_of(problem.path, keys))), tuned=tuned.values, trials=dict(counts),
            metric=tuned.metric,
        )  # fmt: skip
        results, flaw = results_of(load_one(problem.path, keys), range(self._plan.seeds), folder, self._jobs)
        return replace(entry, results=results, flaw=flaw)


def require_possible(config: RunConfig, folder: Path) -> None:
    """Raises ConfigError where the method refuses the problem."""
    run = PlannedRun(config, folder / "seed-first")
    try:
        prepare([run])
    except ConfigError as error:
        raise ConfigError(f"{error}".removeprefix(f"{run.folder.name}: ")) from None
    finally:
        clear(run.folder)
        remove_empty(folder)


def results_of(config: RunConfig, seeds: Sequence[int], folder: Path, jobs: Jobs) -> tuple[tuple[Result, ...], str]:
    """Runs it with each seed, in folders that go again. Returns what they came to, or nothing and why, where one has
    failed. Raises ConfigError, KeyboardInterrupt."""
    runs = [PlannedRun(config.but(seed=seed), folder / f"seed-{seed}") for seed in seeds]
    found, flaws = dict[int, Result](), dict[int, str]()

    def done(ended: Ended) -> None:
        seed = ended.run.config.seed
        if ended.outcome.status == "finish" and not has_diverged(ended.run.folder):
            with suppress(RunFolderError):
                found[seed] = Result.of(ended.run.folder, seed)
        if seed not in found:
            flaws[seed] = "; ".join(ended.outcome.causes[:1]) or ended.outcome.status
        clear(ended.run.folder)

    prepare(runs)
    try:
        jobs.make(runs, done)
    finally:
        for run in runs:
            clear(run.folder)
    if len(found) + len(flaws) < len(runs) or any(flaw == "interrupt" for flaw in flaws.values()):
        raise KeyboardInterrupt
    if flaws:
        seed = min(flaws)
        return (), f"seed {seed}: {flaws[seed]}"
    return tuple(found[seed] for seed in seeds), ""


def board_of(plan: Plan, entries: Sequence[Entry], facts: Mapping[str, str]) -> Board:
    budget = plan.budget
    about = {
        "budget": f"{budget.trials} trials of each method on each problem, on validation samples, "
        f"{budget.seeds} seed{'s' * (budget.seeds > 1)} each; then {plan.seeds} other seeds on test samples",
        "with": ", ".join(f"{name} {text}" for name, text in machine().items() if name != "host"),
    }
    return Board({**facts, **about}, tuple(entries))
