"""School: what 139 schools gain from each other, by each way of talking, over several seeds.

139 clients on an Erdős–Rényi graph (p = 0.2), linear regression of the scores as they are, three quarters of a school's
students for training and a quarter for testing; half of the schools keep a fifth of their training data. The lambda of
each method is the one of its candidates that does best on the validation samples of a seed that is not reported. Writes
a Markdown table and a CSV file of all runs to benchmarks/results/.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import options, table, write
from study import TUNING, Method, Study, comparison, write_runs

from sheafgossip.launcher.config.data import DataSection
from sheafgossip.launcher.data.sets import load

ROUNDS = 60
ALPHA = 0.1
"""Near the largest that the steepest loss allows: 2/L = 0.12."""
PERCENTAGES = [3, 4]
"""Features that run to 100, where all others are 0 or 1: as they are, only an alpha of 0.0001 suits them."""

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


def main() -> None:
    parser = options(__doc__, seeds=5, out="bench-school")
    parser.add_argument("--data-root", type=Path, required=True, help="folder with school.mat")
    arguments = parser.parse_args()
    data = arguments.out / "school.npz"
    write_shares(arguments.data_root, data)
    study = Study(arguments.out, partial(problem, data, 0.5), METHODS, min, TUNING[:1])
    whole = Study(arguments.out / "whole", partial(problem, data, 0.0), {UNCUT: METHODS["local"]}, min)
    found = study.results(arguments.seeds) | whole.results(arguments.seeds)
    write_runs([*study.runs, *whole.runs], "school")
    command = f"`python benchmarks/school.py --data-root FOLDER --seeds {arguments.seeds}`"
    header = f"method|lambda|MSE, mean ± s.e. over {arguments.seeds} seeds|against local|payload MB"
    made_by = f"{command}: {ROUNDS} full-gradient rounds, alpha {ALPHA}"
    write("school", made_by, table(header, comparison(found, 1, reduced=False)))


if __name__ == "__main__":
    main()
