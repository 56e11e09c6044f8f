"""Clients that look for better neighbours: how many of them they find, what it brings, and what it costs.

    .venv/bin/python benchmarks/seeking.py [--seeds 5] [--out FOLDER]

The problem of benchmarks/selective.py with four groups on an Erdős–Rényi graph with p = 0.2: selective sheaf on the
graph as it is, and with `seek`, where the graph is only the start; beside it the groups told on that graph, and on the
complete one. Writes benchmarks/results/seeking.md. Runs that are already in --out are not repeated.
"""

from __future__ import annotations

import argparse
import statistics
from itertools import combinations
from pathlib import Path
from typing import Any

from selective import CLIENTS, ON, SELECTIVE, like, problem, within_groups
from study import RESULTS, over_seeds, read, run_several

from sheafgossip.launcher.config.sections import validate
from sheafgossip.metrics import open_run

GROUPS, P = 4, 0.2
METHODS: dict[str, dict[str, Any]] = {
    "dFedU": {"name": "dfedu", "lam": 0.3},
    **SELECTIVE,
    "selective, seeking": SELECTIVE["selective, quiet edges"] | {"seek": True},
    "groups told": ON | {"gamma": 0.1},
    "groups told, complete graph": ON | {"gamma": 0.1, "lam": 0.3},
}


def edges_between_alike(folder: Path, moment: str) -> float:
    """The share of the edges talked over in the first ("min") or last ("max") round, in percent."""
    edges = open_run(folder).sql(f"SELECT node, neighbour FROM edge WHERE round = (SELECT {moment}(round) FROM edge)")
    return 100 * statistics.mean(like((i, j), GROUPS) for i, j in edges.itertuples(index=False))


def edges(folder: Path, moment: str) -> float:
    counted = f"SELECT count(*) AS n FROM edge WHERE round = (SELECT {moment}(round) FROM edge)"
    return open_run(folder).sql(counted)["n"][0] / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-seeking"), help="folder of the runs")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    folders: dict[str, list[Path]] = {name: [] for name in METHODS}
    wanted = {}
    for seed in range(arguments.seeds):
        for number, (name, algorithm) in enumerate(METHODS.items()):
            tree = problem(GROUPS, P, seed) | {"name": f"{name}, seed {seed}", "algorithm": algorithm}
            if name == "groups told":
                tree["topology"] = within_groups(tree, GROUPS, out / "graphs" / f"{seed}.edges")
            if name == "groups told, complete graph":
                path = out / "graphs" / "complete.edges"
                path.parent.mkdir(parents=True, exist_ok=True)
                pairs = [pair for pair in combinations(range(CLIENTS), 2) if like(pair, GROUPS)]
                path.write_text("".join(f"{i} {j}\n" for i, j in pairs))
                tree["topology"] = {"kind": "file", "path": str(path), "connected": False}
            folders[name].append(out / f"{number}-{seed}")
            wanted[folders[name][-1]] = validate(tree)
    run_several(wanted)
    full = [read(folder).payload_mb for folder in folders["dFedU"]]
    lines = [
        f"| method | accuracy %, mean ± s.e. over {arguments.seeds} seeds | edges between alike %, at first"
        " | at the end | edges at first | at the end | payload, % of dFedU's |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, each in folders.items():
        results = [read(folder) for folder in each]
        accuracy = over_seeds(100 * result.mean for result in results)
        alike = [over_seeds((edges_between_alike(f, moment) for f in each), 0) for moment in ("min", "max")]
        many = [f"{statistics.mean(edges(f, moment) for f in each):.1f}" for moment in ("min", "max")]
        share = 100 * statistics.mean(r.payload_mb / mb for r, mb in zip(results, full, strict=True))
        lines.append(f"| {name} | {accuracy} | {' | '.join(alike)} | {' | '.join(many)} | {share:.1f} |")
    text = "\n".join(lines)
    (RESULTS / "seeking.md").write_text(
        f"Made by `python benchmarks/seeking.py --seeds {arguments.seeds}`.\n\n{text}\n"
    )
    print(text)


if __name__ == "__main__":
    main()
