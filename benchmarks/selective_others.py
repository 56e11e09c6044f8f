"""Selective sheaf where clients differ in their labels instead of their images, and on School.

Digits with 2 and with 5 of the 10 classes a client, as benchmarks/selective.py otherwise (20 clients, p = 0.2, half of
them with a fifth of their data); School as in benchmarks/school.py where --data-root is a folder with school.mat, with
the lambdas that were chosen there.
"""

import statistics
from functools import partial
from pathlib import Path
from typing import Any

import school
import selective
from common import options, table, write
from study import algorithms, over_seeds, payload, read, run_grid

from sheafgossip.metrics import open_run

ROTATING = {"name": "sheaf-fmtl", "start": "shared", "rotate_every": 1, "eta": 0.0}


def methods(dfedu: float, gamma: float, lam: float, thresholds: tuple[float, ...]) -> dict[str, dict[str, Any]]:
    selective_sheaf = {"name": "selective-sheaf", "gamma": gamma, "lam": lam}
    return {
        "local": {"name": "local"},
        "dFedU": {"name": "dfedu", "lam": dfedu},
        f"shared + rotating, gamma {gamma}": ROTATING | {"gamma": gamma, "lam": lam},
        f"selective, gamma {gamma}": selective_sheaf,
        **{f"selective, gamma {gamma}, threshold {c}": selective_sheaf | {"threshold": c} for c in thresholds},
    }


def label_skew(classes: int, seed: int) -> dict[str, Any]:
    tree = selective.problem(1, 0.2, seed)
    return tree | {"data": tree["data"] | {"partition": "classes", "classes_per_client": classes}}


def on_at_the_end(folders: list[Path]) -> str:
    """The share of edges that pull in the last round, in percent, a mean over runs."""
    query = "SELECT avg(weight > 0) AS share FROM edge WHERE round = (SELECT max(round) FROM edge)"
    shares = [open_run(folder).sql(query)["share"][0] for folder in folders]
    return "" if None in shares else f"{100 * statistics.mean(shares):.0f}"


def main() -> None:
    parser = options(__doc__, seeds=3, out="bench-selective-others")
    parser.add_argument("--data-root", type=Path, help="folder with school.mat")
    arguments = parser.parse_args()
    out = arguments.out
    scenes = {
        f"digits, {classes} classes a client (accuracy %)": (
            100,
            partial(label_skew, classes),
            methods(0.3, 0.1, 1.0, (0.2,)),
        )
        for classes in (2, 5)
    }
    if arguments.data_root:
        school.write_shares(arguments.data_root, out / "school.npz")
        scenes["School (MSE)"] = 1, partial(school.problem, out / "school.npz", 0.5), methods(0.1, 0.3, 0.3, ())
    rows = []
    for number, (title, (scale, problem, settings)) in enumerate(scenes.items()):
        for name, each in run_grid(out / str(number), arguments.seeds, problem, algorithms(settings)).items():
            results = [read(folder) for folder in each]
            found = over_seeds(scale * result.mean for result in results)
            rows.append((title, name, found, on_at_the_end(each), f"{payload(results):.2f}"))
    header = f"problem|method|mean ± s.e. over {arguments.seeds} seeds|edges on, %|payload MB"
    command = f"python benchmarks/selective_others.py --data-root FOLDER --seeds {arguments.seeds}"
    write("selective-others", f"`{command}`", table(header, rows))


if __name__ == "__main__":
    main()
