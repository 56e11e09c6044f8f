"""Does an edge find out by itself whether to pull? Selective sheaf against all edges on, and against the groups told.

    .venv/bin/python benchmarks/selective.py [--seeds 5] [--out FOLDER] [--only GROUPS]

Digits, 20 clients, half of them with a fifth of their training data, in 1, 2 or 4 groups whose images are turned; 200
full-gradient rounds of logistic regression on Erdős–Rényi graphs with p = 0.2 and 0.5. "All edges on" and "groups told"
are maps that are shared and rotate, with the same gamma and lambda; the latter on the graph without its edges between
groups, which nobody who learns could know. Writes benchmarks/results/selective.md. Runs that are already in --out are
not repeated; --only runs one number of groups and writes nothing.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study import RESULTS, against, over_seeds, read, run_several

from sheafgossip.launcher.config.sections import validate
from sheafgossip.launcher.prepare.graphs import draw_graphs
from sheafgossip.metrics import open_run

CLIENTS, ROUNDS, LAM = 20, 200, 1.0
LAM_OF_DFEDU = {0.2: 0.3, 0.5: 0.1}
"""With 0.3 it diverges on the denser graph."""
ANGLES = {1: [0], 2: [0, 90], 4: [0, 90, 180, 270]}
GAMMAS = (0.1, 0.03)
GRAPHS = (0.2, 0.5)
ON = {"name": "sheaf-fmtl", "start": "shared", "rotate_every": 1, "eta": 0.0, "lam": LAM}
SELECTIVE = {
    "selective": {"name": "selective-sheaf", "lam": LAM, "probe_every": 1},
    "selective, quiet edges": {"name": "selective-sheaf", "lam": LAM},
}


def problem(groups: int, p: float, seed: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "clients": CLIENTS,
        "rounds": ROUNDS,
        "topology": {"kind": "erdos-renyi", "p": p},
        "data": {"rotations": ANGLES[groups], "reduced_clients": 0.5, "reduced_to": 0.2},
        "training": {"work": "full", "alpha": 0.5},
        "evaluation": {"every": 0},
    }


def group(client: int, groups: int) -> int:
    return client * groups // CLIENTS


def within_groups(tree: dict[str, Any], groups: int, path: Path) -> dict[str, Any]:
    """The graph of ``tree`` without its edges between groups, as a file."""
    edges = [edge for edge in draw_graphs(validate(tree)).union.edges if like(edge, groups)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{i} {j}\n" for i, j in edges))
    return {"kind": "file", "path": str(path), "connected": False}


def like(edge: tuple[int, int], groups: int) -> bool:
    i, j = edge
    return group(i, groups) == group(j, groups)


Method = tuple[dict[str, Any], bool]
"""Its settings, and whether it is told the groups."""


def methods(groups: int, p: float) -> dict[str, Method]:
    found: dict[str, Method] = {
        "local": ({"name": "local"}, False),
        "dFedU": ({"name": "dfedu", "lam": LAM_OF_DFEDU[p]}, False),
    }
    for gamma in GAMMAS:
        for name, settings in SELECTIVE.items():
            found[f"{name}, gamma {gamma}"] = settings | {"gamma": gamma}, False
        found[f"all edges on, gamma {gamma}"] = ON | {"gamma": gamma}, False
        if groups > 1:
            found[f"groups told, gamma {gamma}"] = ON | {"gamma": gamma}, True
    return found


@dataclass(frozen=True)
class Scene:
    groups: int
    p: float
    out: Path
    seeds: int

    def folders(self, method: str) -> list[Path]:
        """One a seed."""
        slug = method.replace(", ", "-").replace(" ", "-")
        return [self.out / f"{self.groups}-{self.p}-{slug}-{seed}" for seed in range(self.seeds)]

    def run(self) -> None:
        wanted = {}
        for name, (algorithm, told) in methods(self.groups, self.p).items():
            for seed, folder in enumerate(self.folders(name)):
                tree = problem(self.groups, self.p, seed) | {"name": folder.name, "algorithm": algorithm}
                if told:
                    path = self.out / "graphs" / f"{self.groups}-{self.p}-{seed}.edges"
                    tree["topology"] = within_groups(tree, self.groups, path)
                wanted[folder] = validate(tree)
        run_several(wanted)

    def lines(self) -> Iterator[str]:
        results = {name: [read(folder) for folder in self.folders(name)] for name in methods(self.groups, self.p)}
        full = statistics.mean(result.payload_mb for result in results["dFedU"])
        for name, runs in results.items():
            gamma = name.partition(", gamma ")[2]
            told = results.get(f"groups told, gamma {gamma}", results.get(f"all edges on, gamma {gamma}", runs))
            accuracy = over_seeds(100 * result.mean for result in runs)
            difference = against(told, runs, 100) if gamma and told is not runs else ""
            edges = ("", "")
            if name.startswith("selective"):
                both = [found(folder, self.groups) for folder in self.folders(name)]
                edges = tuple(f"{statistics.mean(part):.3f}" for part in zip(*both, strict=True))
            share = 100 * statistics.mean(result.payload_mb for result in runs) / full
            cells = [self.groups, self.p, name, accuracy, difference, *edges, f"{share:.1f}"]
            yield f"| {' | '.join(map(str, cells))} |"


def found(folder: Path, groups: int) -> tuple[float, float]:
    """Precision and recall of the edges that pull in the last round, among those within groups."""
    edges = open_run(folder).sql(
        "SELECT node AS i, neighbour AS j, weight FROM edge WHERE round = (SELECT max(round) FROM edge)"
    )
    on = {(i, j) for i, j, weight in edges.itertuples(index=False) if weight}
    wanted = {(i, j) for i, j in edges[["i", "j"]].itertuples(index=False) if like((i, j), groups)}
    hits = len(on & wanted)
    return hits / len(on) if on else 1.0, hits / len(wanted) if wanted else 1.0


HEAD = """\
| groups | p | method | accuracy %, mean ± s.e. over {seeds} seeds | against groups told | precision | recall \
| payload, % of dFedU's |
|---|---|---|---|---|---|---|---|"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-selective"), help="folder of the runs")
    parser.add_argument("--only", type=int, choices=list(ANGLES), help="one number of groups")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    scenes = [Scene(groups, p, out, arguments.seeds) for groups in ANGLES for p in GRAPHS]
    for scene in scenes:
        if arguments.only in (None, scene.groups):
            scene.run()
    if arguments.only:
        return
    text = "\n".join([HEAD.format(seeds=arguments.seeds), *(line for scene in scenes for line in scene.lines())])
    (RESULTS / "selective.md").write_text(
        f"Made by `python benchmarks/selective.py --seeds {arguments.seeds}`.\n\n{text}\n"
    )
    print(text)


if __name__ == "__main__":
    main()
