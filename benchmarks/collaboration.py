"""Where collaboration should help: related tasks, and half of the clients with a fifth of the data. Does it?

    .venv/bin/python benchmarks/collaboration.py [--seeds 5] [--out FOLDER]

The upright problem of benchmarks/digits.py, with one difference: the lambda of each method is the one of its six
candidates that does best on the validation samples of two seeds that are not reported. Writes a Markdown table and a
CSV file of all runs to benchmarks/results/. Runs that are already in --out are not repeated.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from pathlib import Path

from digits import problem
from study import RESULTS, Method, Result, Study, against, over_seeds, write_csv

PAPER = {"name": "sheaf-fmtl", "gamma": 0.1, "eta": 0.03}
ROTATING = {"name": "sheaf-fmtl", "gamma": 0.1, "eta": 0.0, "start": "shared", "rotate_every": 1}
METHODS = {
    "local": Method({"name": "local"}),
    "D-PSGD": Method({"name": "d-psgd"}),
    "dFedU": Method({"name": "dfedu"}, (0.003, 0.01, 0.03, 0.1, 0.2, 0.3)),
    "Sheaf-FMTL, gaussian (paper)": Method(PAPER | {"start": "gaussian"}, (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3)),
    "Sheaf-FMTL, orthogonal (paper)": Method(PAPER | {"start": "orthogonal"}, (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)),
    "shared + rotating (ours)": Method(ROTATING, (0.03, 0.1, 0.3, 1.0, 2.0, 3.0)),
}


def table(found: dict[str, tuple[float | None, list[Result]]]) -> str:
    lines = [
        f"| method | lambda | accuracy %, mean ± s.e. over {len(found['local'][1])} seeds | against local"
        " | clients with little data | payload MB |",
        "|---|---|---|---|---|---|",
    ]
    for name, (lam, results) in found.items():
        chosen = "" if lam is None else f"{lam:g}"
        everyone = over_seeds(100 * result.mean for result in results)
        difference = against(found["local"][1], results, scale=100)
        reduced = over_seeds(100 * result.mean_of_reduced for result in results)
        payload = statistics.mean(result.payload_mb for result in results)
        lines.append(f"| {name} | {chosen} | {everyone} | {difference} | {reduced} | {payload:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-collaboration"), help="folder of the runs")
    arguments = parser.parse_args()
    study = Study(arguments.out.resolve(), partial(problem, "upright"), METHODS, max)
    text = table(study.results(arguments.seeds))
    write_csv(study.runs, RESULTS / "collaboration.csv")
    (RESULTS / "collaboration.md").write_text(
        f"Made by `python benchmarks/collaboration.py --seeds {arguments.seeds}`.\n\n{text}\n"
    )
    print(text)


if __name__ == "__main__":
    main()
