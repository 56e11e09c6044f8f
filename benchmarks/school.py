"""School: what 139 schools gain from each other, by each way of talking, over several seeds.

    .venv/bin/python benchmarks/school.py --data-root FOLDER [--seeds 5] [--out FOLDER]

139 clients on an Erdős–Rényi graph (p = 0.2), linear regression of the scores as they are, three quarters of a school's
students for training and a quarter for testing; half of the schools keep a fifth of their training data. The lambda of
each method is the one of its candidates that does best on the validation samples of a seed that is not reported. Writes
a Markdown table and a CSV file of all runs to benchmarks/results/. Runs that are already in --out are not repeated.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from study import RESULTS, TUNING, Method, Result, Study, against, over_seeds, write_csv

from sheafgossip.launcher.config.data import DataSection
from sheafgossip.launcher.data import load

ROUNDS = 60
ALPHA = 0.1
"""Near the largest that the steepest loss bears: 2/L = 0.12."""
PERCENTAGES = [3, 4]
"""Features that run to 100, where all others are 0 or 1: as they are, only an alpha of 0.0001 would bear them."""

PAPER = {"name": "sheaf-fmtl", "start": "gaussian", "eta": 0.01, "exchange": "fused"}
SHARED = {"name": "sheaf-fmtl", "start": "shared", "eta": 0.0}
METHODS = {
    "local": Method({"name": "local"}),
    "dFedU": Method({"name": "dfedu"}, (0.01, 0.03, 0.1)),
    "Sheaf-FMTL, gaussian (paper), gamma 0.1": Method(PAPER | {"gamma": 0.1}, (0.0003, 0.001, 0.003)),
    "Sheaf-FMTL, gaussian (paper), gamma 0.3": Method(PAPER | {"gamma": 0.3}, (0.0003, 0.001, 0.003)),
    "shared (ours), gamma 0.1": Method(SHARED | {"gamma": 0.1}, (0.1, 0.3, 1.0)),
    "shared (ours), gamma 0.3": Method(SHARED | {"gamma": 0.3}, (0.03, 0.1, 0.3)),
    "shared + rotating (ours), gamma 0.1": Method(SHARED | {"gamma": 0.1, "rotate_every": 1}, (0.1, 0.3, 1.0)),
    "shared + rotating (ours), gamma 0.3": Method(SHARED | {"gamma": 0.3, "rotate_every": 1}, (0.03, 0.1, 0.3)),
}
UNCUT = "local, no school's data cut"


def problem(data: Path, reduced: float, seed: int) -> dict[str, Any]:
    return {
        "clients": 139,
        "rounds": ROUNDS,
        "topology": {"kind": "erdos-renyi", "p": 0.2},
        "data": {"dataset": "npz", "root": str(data), "task": "regression", "reduced_clients": reduced},
        "model": {"kind": "linear", "init": "zeros"},
        "training": {"work": "full", "alpha": ALPHA},
        "evaluation": {"every": 0},
    }


def write_shares(root: Path, path: Path) -> None:
    """School with its percentages as shares: then all features run from 0 to 1."""
    pool = load(DataSection(dataset="school", root=root), 0)
    x = pool.x.copy()
    x[:, PERCENTAGES] /= 100
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, x=x, y=pool.y, client=pool.client)


def table(found: dict[str, tuple[float | None, list[Result]]]) -> str:
    lines = [
        f"| method | lambda | MSE, mean ± s.e. over {len(found['local'][1])} seeds | against local | payload MB |",
        "|---|---|---|---|---|",
    ]
    for name, (lam, results) in found.items():
        chosen = "" if lam is None else f"{lam:g}"
        error = over_seeds(result.mean for result in results)
        difference = against(found["local"][1], results)
        payload = statistics.mean(result.payload_mb for result in results)
        lines.append(f"| {name} | {chosen} | {error} | {difference} | {payload:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-root", type=Path, required=True, help="folder with school.mat")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-school"), help="folder of the runs")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    write_shares(arguments.data_root, out / "school.npz")
    study = Study(out, partial(problem, out / "school.npz", 0.5), METHODS, min, TUNING[:1])
    whole = Study(out / "whole", partial(problem, out / "school.npz", 0.0), {UNCUT: METHODS["local"]}, min)
    text = table(study.results(arguments.seeds) | whole.results(arguments.seeds))
    write_csv([*study.runs, *whole.runs], RESULTS / "school.csv")
    (RESULTS / "school.md").write_text(
        f"Made by `python benchmarks/school.py --data-root FOLDER --seeds {arguments.seeds}`: {ROUNDS} full-gradient "
        f"rounds, alpha {ALPHA}.\n\n{text}\n"
    )
    print(text)


if __name__ == "__main__":
    main()
