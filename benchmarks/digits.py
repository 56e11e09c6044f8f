"""Accuracy against bytes on digits, over several seeds: what each way of talking to neighbours buys.

    .venv/bin/python benchmarks/digits.py [--seeds 5] [--out FOLDER]

Twenty clients on an Erdős–Rényi graph (p = 0.2), half of them with a fifth of their training data, 200 full-gradient
rounds of logistic regression; once with all images upright, once with four groups of clients whose images are turned.
Writes a Markdown table to benchmarks/results/digits.md. Runs that are already in FOLDER are not repeated.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path

from sheafgossip.launcher.config import RunConfig, validate
from sheafgossip.launcher.session import run_all
from sheafgossip.metrics.summary import RunSummary, summarize

PROBLEMS = {"upright": [0], "rotated": [0, 90, 180, 270]}
MAPS = {"name": "sheaf-fmtl", "lam": 0.3, "eta": 0.03}
ROTATING = {"name": "sheaf-fmtl", "lam": 1.0, "eta": 0.0, "start": "shared", "rotate_every": 1}
SCALE = 0.04  # 1/sqrt(d), so that gaussian maps have about the size of orthonormal ones
METHODS = {
    "local": {"name": "local"},
    "D-PSGD": {"name": "d-psgd"},
    "dFedU": {"name": "dfedu", "lam": 0.3},
    **{
        f"{label}, gamma {gamma}": settings | {"gamma": gamma}
        for gamma in (0.03, 0.1)
        for label, settings in {
            "Sheaf-FMTL, gaussian (paper)": MAPS | {"start": "gaussian", "start_scale": SCALE},
            "Sheaf-FMTL, orthogonal (paper)": MAPS | {"start": "orthogonal"},
            "Sheaf-FMTL, shared (ours)": MAPS | {"start": "shared"},
            "shared + rotating (ours)": ROTATING,
        }.items()
    },
}


def configuration(problem: str, method: str, seed: int) -> RunConfig:
    return validate(
        {
            "name": f"{problem} {method} seed {seed}",
            "seed": seed,
            "clients": 20,
            "rounds": 200,
            "topology": {"kind": "erdos-renyi", "p": 0.2},
            "data": {"rotations": PROBLEMS[problem], "reduced_clients": 0.5, "reduced_to": 0.2},
            "training": {"work": "full", "alpha": 0.5},
            "algorithm": METHODS[method],
            "evaluation": {"every": 0},
        }
    )


def results(problem: str, seeds: int, out: Path) -> dict[str, list[RunSummary]]:
    """{method: a summary a seed}; runs what is not there yet."""
    folders = {}
    for seed in range(seeds):
        missing = []
        for number, method in enumerate(METHODS):
            folder = out / f"{problem}-{number}-{seed}"
            folders[method, seed] = folder
            if not folder.exists():
                missing.append((method, folder))
        for method, folder in missing:
            print(f"{problem}, seed {seed}: {method}", flush=True)
            (done,) = run_all([configuration(problem, method, seed)], folder, lambda _: lambda: None, lambda _: None)
            if done.outcome.status != "finish":
                raise SystemExit(f"{folder}: {done.outcome.status}: {'; '.join(done.outcome.causes)}")
    return {method: [summarize(folders[method, seed]) for seed in range(seeds)] for method in METHODS}


def table(problem: str, found: dict[str, list[RunSummary]]) -> str:
    lines = [
        f"| {problem} | accuracy %, mean ± s.e. over {len(found['local'])} seeds | worst 10% | payload MB |",
        "|---|---|---|---|",
    ]
    for method, runs in found.items():
        means = [100 * run.final.mean for run in runs if run.final]
        worst = [100 * run.final.worst_10 for run in runs if run.final]
        error = statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else math.nan
        payload = statistics.mean(run.traffic.payload_bytes for run in runs) / 1e6
        lines.append(
            f"| {method} | {statistics.mean(means):.1f} ± {error:.1f} | {statistics.mean(worst):.1f} | {payload:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-digits"), help="folder of the runs")
    arguments = parser.parse_args()
    text = "\n\n".join(table(problem, results(problem, arguments.seeds, arguments.out)) for problem in PROBLEMS)
    target = Path(__file__).parent / "results" / "digits.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text(f"Made by `python benchmarks/digits.py --seeds {arguments.seeds}`.\n\n{text}\n")
    print(text)


if __name__ == "__main__":
    main()
