"""Whom does a client listen to, and what does it bring? Prototype sheaf beside selective sheaf, which goes by updates,
dFedU, which listens to all neighbours, and local training, on problems with and without groups.

Digits, 20 clients on Erdős–Rényi graphs with p = 0.4, logistic regression, 200 full-gradient rounds; nothing is tuned:
dFedU has lambda 0.1, all others theirs by default, gamma 0.1. Turned images: half of the clients have a fifth of their
training data."""

import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import digits
from common import options, table, write
from study import against, algorithms, over_seeds, payload, percent, read, run_grid

from sheafgossip.metrics import open_run

CLIENTS = digits.CLIENTS
PROBLEMS: dict[str, dict[str, Any]] = {
    "all alike": {"rotations": [0]},
    "four rotations": {"rotations": [0, 90, 180, 270]},
    "groups of 12, 5, 2 and 1": {"rotations": [0] * 12 + [90] * 5 + [180] * 2 + [270]},
    "one alone": {"rotations": [0] * 19 + [90]},
    "20 angles from 0 to 180": {"rotations": [round(180 * i / 19) for i in range(20)]},
    "2 classes a client": {"partition": "classes", "classes_per_client": 2},
    "5 classes a client": {"partition": "classes", "classes_per_client": 5},
    "Dirichlet 0.1": {"partition": "dirichlet", "beta": 0.1},
    "Dirichlet 0.3": {"partition": "dirichlet", "beta": 0.3},
}
METHODS = algorithms(
    {
        "local": {"name": "local"},
        "dFedU": {"name": "dfedu", "lam": 0.1},
        "selective": {"name": "selective-sheaf"},
        "prototypes": {"name": "prototype-sheaf"},
        "prototypes, seeking": {"name": "prototype-sheaf", "seek": 10},
    }
)


def problem(data: dict[str, Any], seed: int) -> dict[str, Any]:
    tree = digits.problem("upright", seed)
    tree["topology"]["p"] = 0.4
    skewed = "partition" in data
    kept = {key: value for key, value in tree["data"].items() if not (skewed and key.startswith("reduced"))}
    return tree | {"data": kept | data}


def pulls(folders: list[Path]) -> str:
    """How many neighbours a client is pulled towards in the last round; a mean over clients and runs."""
    query = "SELECT sum(weight > 0) AS n FROM edge WHERE round = (SELECT max(round) FROM edge)"
    found = [float(open_run(folder).sql(query)["n"][0]) / CLIENTS for folder in folders]
    return f"{statistics.mean(found):.1f}"


def rows(out: Path, seeds: int) -> Iterator[list[str]]:
    for number, (name, data) in enumerate(PROBLEMS.items()):
        folders = run_grid(out / f"{number}", seeds, partial(problem, data), METHODS)
        results = {method: [read(folder) for folder in each] for method, each in folders.items()}
        for method, found in results.items():
            worst = over_seeds(100 * min(each.metric) for each in found)
            compared = against(results["prototypes"], found, 100) if method != "prototypes" else ""
            edges = pulls(folders[method]) if method not in ("local", "dFedU") else ""
            yield [name, method, percent(found), compared, worst, edges, f"{payload(found):.2f}"]


def main() -> None:
    given = options(__doc__, seeds=5, out="bench-alike").parse_args()
    accuracy = f"accuracy %, mean ± s.e. over {given.seeds} seeds"
    header = f"problem|method|{accuracy}|against prototypes|worst client|neighbours that pull|payload MB"
    text = table(header, rows(given.out, given.seeds))
    write("alike", f"`python benchmarks/alike.py --seeds {given.seeds}`", text)


if __name__ == "__main__":
    main()
