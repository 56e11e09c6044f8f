"""Holds the values that `sheafgossip tune` finds against the best of a grid that is ten times as large.

Three methods learn regression of related tasks, each with one weight that matters: where it is small clients learn
alone, where it is large all get one model, and beyond that a step is too large. Grid and search are judged on the same
validation samples and seeds; the grid is made as trials are, and makes the runs of every value with every seed."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from common import options, table, write

from sheafgossip.launcher.config.files import load_one
from sheafgossip.launcher.config.sections import RunConfig
from sheafgossip.launcher.studies.search import Note, Result, Search, Trial
from sheafgossip.launcher.studies.sweep import Jobs, alone_in
from sheafgossip.launcher.studies.tuning import Budget, Runs, Tuned, clear_trials, parse_space, tune

PROBLEM = {
    "clients": 4,
    "rounds": 30,
    "evaluation.every": 0,
    "data": {"dataset": "synthetic", "task": "regression"},
    "data.synthetic": {"groups": 1, "samples": 80, "deviation": 1.0, "noise": 1.2},
    "model.kind": "linear",
    "training.alpha": 0.1,
}
COMPLETE = {"topology.kind": "complete"}
METHODS = {
    "dfedu": {"algorithm.name": "dfedu"} | COMPLETE,
    "sheaf-fmtl": {"algorithm": {"name": "sheaf-fmtl", "gamma": 0.5}} | COMPLETE,
    "ditto": {"algorithm.name": "ditto"},
}
KEY, LOW, HIGH = "algorithm.lam", 1e-3, 10.0
TRIALS, AS_LARGE, SEARCHES = 12, 10, 200
SPACE = {KEY: f"log:{LOW:g}..{HIGH:g}"}


def grid() -> list[float]:
    count = TRIALS * AS_LARGE
    return [float(f"{LOW * (HIGH / LOW) ** (number / (count - 1)):.4g}") for number in range(count)]


def judged(config: RunConfig, seeds: int, root: Path, jobs: Jobs) -> dict[float, float]:
    """{value: mean over seeds; infinite where a run diverged}, as far as grid.csv does not tell it."""
    path, found = root / "grid.csv", dict[float, float]()
    if path.exists():
        found = {float(value): float(figure) for value, figure in csv.reader(path.read_text().splitlines())}
    runs = Runs(config, Budget(1, seeds), root, jobs)

    def note(trial: Trial, result: Result) -> None:
        trial.state = result.state
        if result.state == "begun":
            trial.metric = result.metric
            trial.of_seeds.append(result.value)

    left = [value for value in grid() if value not in found]
    for start in range(0, len(left), 8):
        trials = [Trial(number, {KEY: value}) for number, value in enumerate(left[start : start + 8], 1)]
        for trial in trials:
            if refused := runs.admit(trial):
                raise SystemExit(f"{trial.values}: {refused.reason}")
        for step in range(seeds):
            runs.run([trial for trial in trials if trial.state == "begun"], step, note)
        with path.open("a", newline="") as file:
            for trial in trials:
                runs.end(trial)
                found[trial.values[KEY]] = trial.loss
                csv.writer(file).writerow([trial.values[KEY], repr(trial.loss)])
    return found


class Curve:
    """Judges trials by the figures of a grid, straight between two of its values on a logarithmic scale."""

    def __init__(self, figures: dict[float, float]):
        self.values = sorted(figures)
        self.figures = [min(figures[value], 1e9) for value in self.values]

    def admit(self, trial: Trial) -> None: ...

    def end(self, trial: Trial) -> None: ...

    def run(self, trials: Sequence[Trial], step: int, note: Note) -> None:
        for trial in trials:
            figure = np.interp(np.log(trial.values[KEY]), np.log(self.values), self.figures)
            note(trial, Result(float(figure), "mse"))


def share_near(figures: dict[float, float]) -> float:
    """The share of searches with other seeds that come within a factor of 3 of the best of the grid."""
    best, curve = min(figures, key=lambda value: figures[value]), Curve(figures)
    near = 0
    for seed in range(SEARCHES):
        trials = Search(parse_space(SPACE), Budget(TRIALS), seed, curve)()
        found = min(trials, key=lambda trial: trial.loss).values[KEY]
        near += 1 / 3 <= found / best <= 3
    return near / SEARCHES


def line(name: str, tuned: Tuned, figures: dict[float, float]) -> list[str]:
    best, mine = min(figures, key=lambda value: figures[value]), tuned.values[KEY]
    factor = max(mine / best, best / mine)
    as_good = [value for value, figure in figures.items() if figure <= tuned.value]
    print(f"{name}: {mine:g} of the search, {best:g} of the grid, a factor of {factor:.2f}", flush=True)
    runs, all_runs = sum(len(trial.of_seeds) for trial in tuned.trials), len(figures)
    good = sum(figure <= 1.01 * figures[best] for figure in figures.values())
    return [
        name,
        f"{best:.3g}: {figures[best]:.4f}",
        f"{mine:.3g}: {tuned.value:.4f}",
        f"{factor:.2f}",
        f"{len(as_good)} of {all_runs}",
        f"{good} of {all_runs}",
        f"{runs}",
        f"{100 * share_near(figures):.0f}%",
    ]


def main() -> None:
    parser = options(__doc__, seeds=2, out="bench-tuning")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    rows = []
    for name, changes in METHODS.items():
        config, root = load_one(PROBLEM | changes), arguments.out / name
        with alone_in(root) as claim, Jobs(arguments.jobs, claim.descriptor) as jobs:
            clear_trials(root)
            space, budget = parse_space(SPACE), Budget(TRIALS, arguments.seeds)
            tuned = tune(config, space, budget, root, jobs)
            rows.append(line(name, tuned, judged(config, arguments.seeds, root, jobs)))
    about = (
        f"{TRIALS} trials of {KEY} = log:{LOW:g}..{HIGH:g}, {arguments.seeds} seeds, against a logarithmic grid of "
        f"{len(grid())} values ({len(grid()) * arguments.seeds} runs of a method), on the same validation samples. The "
        "last columns: how many values of the grid are at least as good as that of the search, how many are within 1% "
        f"of the best; the runs of the search; and of {SEARCHES} searches with other seeds, judged by the figures of "
        "the grid, the share that comes within a factor of 3: the first eight trials alone leave no gap of more than a "
        "decade. These problems have one clear optimum; where figures are flat, the best value is chance.\n\n"
    )
    head = "method|grid: best, mse|search: best, mse|factor|as good|within 1%|runs|of 200"
    write("tuning", f"`python benchmarks/tuning.py --seeds {arguments.seeds}`", about + table(head, rows))


if __name__ == "__main__":
    main()
