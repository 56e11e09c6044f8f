"""Accuracy against bytes on digits, over several seeds: what each way of talking to neighbours buys.

    .venv/bin/python benchmarks/digits.py [--seeds 5] [--out FOLDER]

Twenty clients on an Erdős–Rényi graph (p = 0.2), half of them with a fifth of their training data, 200 full-gradient
rounds of logistic regression; once with all images upright, once with four groups of clients whose images are turned.
Writes a Markdown table to benchmarks/results/digits.md. Runs that are already in FOLDER are not repeated.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from study import RESULTS, over_seeds, run

from sheafgossip.launcher.config.sections import validate
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


def problem(name: str, seed: int) -> dict[str, Any]:
    """A configuration but for its algorithm."""
    return {
        "seed": seed,
        "clients": 20,
        "rounds": 200,
        "topology": {"kind": "erdos-renyi", "p": 0.2},
        "data": {"rotations": PROBLEMS[name], "reduced_clients": 0.5, "reduced_to": 0.2},
        "training": {"work": "full", "alpha": 0.5},
        "evaluation": {"every": 0},
    }


def results(name: str, seeds: int, out: Path) -> dict[str, list[RunSummary]]:
    """{method: a summary a seed}; runs what is not there yet."""
    found: dict[str, list[RunSummary]] = {method: [] for method in METHODS}
    for seed in range(seeds):
        for number, (method, algorithm) in enumerate(METHODS.items()):
            folder = out / f"{name}-{number}-{seed}"
            label = {"name": f"{name} {method} seed {seed}", "algorithm": algorithm}
            if not run(validate(problem(name, seed) | label), folder):
                raise SystemExit(f"{folder}: diverged")
            found[method].append(summarize(folder))
    return found


def table(problem: str, found: dict[str, list[RunSummary]]) -> str:
    lines = [
        f"| {problem} | accuracy %, mean ± s.e. over {len(found['local'])} seeds | worst 10% | payload MB |",
        "|---|---|---|---|",
    ]
    for method, runs in found.items():
        means = [100 * each.final.mean for each in runs if each.final]
        worst = [100 * each.final.worst_10 for each in runs if each.final]
        payload = statistics.mean(each.traffic.payload_bytes for each in runs) / 1e6
        lines.append(f"| {method} | {over_seeds(means)} | {statistics.mean(worst):.1f} | {payload:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-digits"), help="folder of the runs")
    arguments = parser.parse_args()
    text = "\n\n".join(table(problem, results(problem, arguments.seeds, arguments.out)) for problem in PROBLEMS)
    (RESULTS / "digits.md").write_text(f"Made by `python benchmarks/digits.py --seeds {arguments.seeds}`.\n\n{text}\n")
    print(text)


if __name__ == "__main__":
    main()
