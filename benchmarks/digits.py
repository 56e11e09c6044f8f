"""Accuracy against bytes on digits, over several seeds: what each way of talking to neighbours buys.

Twenty clients on an Erdős–Rényi graph (p = 0.2), half of them with a fifth of their training data, 200 full-gradient
rounds of logistic regression; once with all images upright, once with four groups of clients whose images are turned.
"""

import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from common import options, table, write
from study import algorithms, over_seeds, run_grid

from sheafgossip.metrics.summary import summarize

CLIENTS = 20
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
        "clients": CLIENTS,
        "rounds": 200,
        "topology": {"kind": "erdos-renyi", "p": 0.2},
        "data": {"rotations": PROBLEMS[name], "reduced_clients": 0.5, "reduced_to": 0.2},
        "training": {"work": "full", "alpha": 0.5},
        "evaluation": {"every": 0},
    }


def rows(name: str, seeds: int, out: Path) -> Iterator[tuple[str, ...]]:
    """Runs what is not there yet."""
    for method, folders in run_grid(out / name, seeds, partial(problem, name), algorithms(METHODS)).items():
        runs = [summarize(folder) for folder in folders]
        means = [100 * each.final.mean for each in runs if each.final]
        worst = [100 * each.final.worst_10 for each in runs if each.final]
        sent = statistics.mean(each.traffic.payload_bytes for each in runs) / 1e6
        yield method, over_seeds(means), f"{statistics.mean(worst):.1f}", f"{sent:.2f}"


def main() -> None:
    arguments = options(__doc__, seeds=5, out="bench-digits").parse_args()
    header = f"accuracy %, mean ± s.e. over {arguments.seeds} seeds|worst 10%|payload MB"
    tables = (table(f"{name}|{header}", rows(name, arguments.seeds, arguments.out)) for name in PROBLEMS)
    write("digits", f"`python benchmarks/digits.py --seeds {arguments.seeds}`", "\n\n".join(tables))


if __name__ == "__main__":
    main()
