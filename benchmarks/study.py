"""What studies of several runs share: runs that are kept once they have ended, lambdas chosen without a look at the
test samples, and figures over seeds."""

import argparse
import math
import shutil
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import options, write, write_csv

from sheafgossip.launcher.config.sections import RunConfig, validate
from sheafgossip.launcher.run.earlier import PlannedRun, begin_anew, configuration, has_diverged, missing_of
from sheafgossip.launcher.studies.runner import Finished, Observer, run_each
from sheafgossip.metrics import open_run
from sheafgossip.metrics.summary import summarize

TUNING = (100, 101)
"""Seeds of the runs that choose lambda; those that are reported have others."""


@dataclass(frozen=True)
class Method:
    """``settings`` of the algorithm, all but lambda: that is chosen among ``lams``, or that of method ``lam_of``."""

    settings: dict[str, Any]
    lams: tuple[float, ...] = ()
    lam_of: str = ""


@dataclass(frozen=True)
class Result:
    """The last round of a run: the test metric of each client, its training samples, and the payload of the run."""

    metric: np.ndarray
    train_samples: np.ndarray
    payload_mb: float

    @property
    def mean(self) -> float:
        return float(self.metric.mean())

    @property
    def mean_of_reduced(self) -> float:
        """Over the clients whose training data was cut, where all had about as much before."""
        return float(self.metric[self.train_samples < self.train_samples.max() / 2].mean())


Changes = dict[str, Any] | Callable[[dict[str, Any]], dict[str, Any]]
"""What a method changes of a configuration, or how to tell from the configuration."""


class _Names(Observer):
    def has_ended(self, finished: Finished) -> None:
        print(finished.prepared.folder.name, flush=True)


def run_several(wanted: Mapping[Path, RunConfig], *, may_diverge: bool = False) -> bool:
    """Whether these runs, {folder: run}, went well; False: one diverged. Those that have ended are not run again; a run
    of another configuration makes way."""
    for folder, config in wanted.items():
        if folder.exists() and configuration(folder) != config:
            shutil.rmtree(folder)
    runs = missing_of([PlannedRun(config, folder) for folder, config in wanted.items()], accept_diverged=may_diverge)
    for done in run_each(begin_anew(runs), _Names()):
        folder, outcome = done.prepared.folder, done.outcome
        if outcome.status == "interrupt" or (
            outcome.status == "failure" and not (may_diverge and has_diverged(folder))
        ):
            raise SystemExit(f"{folder}: {outcome.status}: {'; '.join(outcome.causes)}")
    return not any(map(has_diverged, wanted))


def read(folder: Path) -> Result:
    clients = open_run(folder).sql(
        "SELECT test_metric, train_samples FROM round JOIN node USING (node)"
        " WHERE round = (SELECT max(round) FROM round) AND role = 'client' ORDER BY node"
    )
    payload_mb = summarize(folder).traffic.payload_bytes / 1e6
    return Result(clients["test_metric"].to_numpy(), clients["train_samples"].to_numpy(), payload_mb)


def run_grid(
    out: Path, seeds: int, problem: Callable[[int], dict[str, Any]], methods: Mapping[str, Changes]
) -> dict[str, list[Path]]:
    """{method: the folder of its run with each seed}; runs what is not there yet."""
    folders = {name: [out / f"{number}-{seed}" for seed in range(seeds)] for number, name in enumerate(methods)}
    wanted = {}
    for name, changes in methods.items():
        for seed, folder in enumerate(folders[name]):
            tree = problem(seed) | {"seed": seed, "name": f"{name}, seed {seed}"}
            wanted[folder] = validate(tree | (changes(tree) if callable(changes) else changes))
    run_several(wanted)
    return folders


def algorithms(methods: Mapping[str, dict[str, Any]]) -> dict[str, Changes]:
    """{name: settings} as what each changes of a configuration."""
    return {name: {"algorithm": settings} for name, settings in methods.items()}


def run_study(
    script: str, page: str | None, studies: Mapping[str, tuple[Callable[[argparse.Namespace, str], str], str]]
) -> None:
    """Runs the study that the command line names; ``studies`` is {name: (its table, the name of its results)}."""
    parser = options(page, seeds=5, out=f"bench-{script}")
    parser.add_argument("study", choices=studies, nargs="?", default=next(iter(studies)))
    parser.add_argument("--data-root", type=Path, help="folder with school.mat, where a study takes it")
    arguments = parser.parse_args()
    make_table, results = studies[arguments.study]
    arguments.out /= arguments.study
    text = make_table(arguments, f"accuracy %, mean ± s.e. over {arguments.seeds} seeds")
    root = " --data-root FOLDER" if arguments.data_root else ""
    write(results, f"`python benchmarks/{script}.py {arguments.study}{root} --seeds {arguments.seeds}`", text)


def percent(results: Iterable[Result]) -> str:
    return over_seeds(100 * result.mean for result in results)


def payload(results: Iterable[Result]) -> float:
    return statistics.mean(result.payload_mb for result in results)


Run = tuple[str, str, float | None, int, Result | None]
"""Samples evaluated on, method, lambda, seed, result (None: diverged)."""


@dataclass
class Study:
    """Runs of several methods on one problem, their folders below ``out``.

    ``problem(seed)`` is the configuration without its algorithm; ``better`` is min or max, of the metric. The runs that
    choose lambda end after ``tuning_rounds``; 0: when the others do.
    """

    out: Path
    problem: Callable[[int], dict[str, Any]]
    methods: Mapping[str, Method]
    better: Callable[..., float]
    tuning_seeds: Sequence[int] = TUNING
    tuning_rounds: int = 0

    def __post_init__(self) -> None:
        self.runs: list[Run] = []

    def lam(self, name: str) -> float | None:
        """The lambda that does best on the validation samples, over all tuning seeds; None where there is none."""
        if self.methods[name].lam_of:
            return self.lam(self.methods[name].lam_of)
        worst = math.inf if self.better is min else -math.inf
        scores = {}
        for lam in self.methods[name].lams:
            found = [self._result(name, lam, seed, "validation") for seed in self.tuning_seeds]
            scores[lam] = statistics.mean(worst if result is None else result.mean for result in found)
        return self.better(scores, key=scores.__getitem__) if scores else None

    def results(self, seeds: int, names: Iterable[str] | None = None) -> dict[str, tuple[float | None, list[Result]]]:
        """{method: its lambda, and a result on the test samples a seed}, by default of all methods"""
        found: dict[str, tuple[float | None, list[Result]]] = {
            name: (self.lam(name), []) for name in names or self.methods
        }
        for seed in range(seeds):
            for name, (lam, results) in found.items():
                result = self._result(name, lam, seed, "test")
                if result is None:
                    raise SystemExit(f"{name}, lambda {lam}, seed {seed}: diverged")
                results.append(result)
        return found

    def folder(self, name: str, lam: float | None, seed: int, samples: str = "test") -> Path:
        return self.out / f"{list(self.methods).index(name)}-{'' if lam is None else f'{lam:g}-'}{seed}-{samples}"

    def _result(self, name: str, lam: float | None, seed: int, samples: str) -> Result | None:
        tree = self.problem(seed)
        tree["name"] = f"{name}{'' if lam is None else f', lambda {lam:g}'}, seed {seed}, {samples}"
        tree["seed"] = seed
        tree["algorithm"] = self.methods[name].settings | ({} if lam is None else {"lam": lam})
        tree["data"] = tree["data"] | {"evaluate_on": samples}
        tree["measuring"] = {"enabled": samples == "test"}
        if samples == "validation" and self.tuning_rounds:
            tree["rounds"] = self.tuning_rounds
        folder = self.folder(name, lam, seed, samples)
        result = read(folder) if run_several({folder: validate(tree)}, may_diverge=True) else None
        self.runs.append((samples, name, lam, seed, result))
        return result


def write_runs(runs: Iterable[Run], name: str) -> None:
    rows = []
    for samples, method, lam, seed, result in runs:
        figures: tuple[str, str] = ("diverged", "")
        if result is not None:
            figures = (f"{result.mean:.5g}", f"{result.payload_mb:.3f}" if samples == "test" else "")
        rows.append((samples, method, "" if lam is None else lam, seed, *figures))
    write_csv(name, ("samples", "method", "lambda", "seed", "mean", "payload_mb"), rows)


def over_seeds(values: Iterable[float], digits: int = 1) -> str:
    """Mean ± standard error, which a single value does not have."""
    found = list(values)
    mean = f"{statistics.mean(found):.{digits}f}"
    if len(found) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(found) / math.sqrt(len(found)):.{digits}f}"


def comparison(
    found: Mapping[str, tuple[float | None, list[Result]]], scale: float = 100, *, reduced: bool = True
) -> Iterator[list[str]]:
    """A row a method: lambda, mean, against "local", and of the clients with ``reduced`` data, payload MB."""
    for name, (lam, results) in found.items():
        row = [name, "" if lam is None else f"{lam:g}", over_seeds(scale * result.mean for result in results)]
        row.append(against(found["local"][1], results, scale))
        if reduced:
            row.append(over_seeds(scale * result.mean_of_reduced for result in results))
        yield [*row, f"{payload(results):.2f}"]


def against(base: Sequence[Result], results: Sequence[Result], scale: float = 1.0) -> str:
    """Mean ± standard error of the differences, seed by seed: what the seeds have in common cancels."""
    return over_seeds(scale * (result.mean - other.mean) for result, other in zip(results, base, strict=True))
