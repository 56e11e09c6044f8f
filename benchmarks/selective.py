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
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study import RESULTS, against, over_seeds, read, run

from sheafgossip.launcher.config import RunConfig, validate
from sheafgossip.launcher.graphs import draw_graphs
from sheafgossip.metrics import open_run

CLIENTS, ROUNDS, LAM = 20, 200, 1.0
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


@dataclass(frozen=True)
class Scene:
    groups: int
    p: float
    out: Path
    seeds: int

    def results(self, name: str, algorithm: dict[str, Any], told: bool = False) -> list[Path]:
        """The run folders of all seeds."""
        return [self._run(name, algorithm, told, seed) for seed in range(self.seeds)]

    def _run(self, name: str, algorithm: dict[str, Any], told: bool, seed: int) -> Path:
        place = f"{self.groups}-{self.p}-{name}-{seed}"
        tree = problem(self.groups, self.p, seed) | {"name": place, "algorithm": algorithm}
        if told:
            graph = self.out / "graphs" / f"{self.groups}-{self.p}-{seed}.edges"
            tree["topology"] = within_groups(tree, self.groups, graph)
        config: RunConfig = validate(tree)
        if not run(config, self.out / place):
            raise SystemExit(f"{place}: diverged")
        return self.out / place

    def found(self, folder: Path) -> tuple[float, float]:
        """Precision and recall of the edges that pull in the last round, among those within groups."""
        edges = open_run(folder).sql(
            "SELECT node AS i, neighbour AS j, weight FROM edge WHERE round = (SELECT max(round) FROM edge)"
        )
        on = {(i, j) for i, j, weight in edges.itertuples(index=False) if weight}
        wanted = {(i, j) for i, j in edges[["i", "j"]].itertuples(index=False) if like((i, j), self.groups)}
        return len(on & wanted) / len(on) if on else 1.0, len(on & wanted) / len(wanted) if wanted else 1.0

    def lines(self) -> Iterable[str]:
        local = [read(folder) for folder in self.results("local", {"name": "local"})]
        dfedu = [read(folder) for folder in self.results("dfedu", {"name": "dfedu", "lam": 0.3})]
        full = statistics.mean(result.payload_mb for result in dfedu)

        def line(name: str, results, difference: str = "", edges: str = " | ") -> str:
            share = 100 * statistics.mean(result.payload_mb for result in results) / full
            accuracy = over_seeds(100 * result.mean for result in results)
            return f"| {self.groups} | {self.p} | {name} | {accuracy} | {difference} | {edges} | {share:.1f} |"

        yield line("local", local)
        yield line("dFedU, all edges", dfedu)
        for gamma in GAMMAS:
            on = [read(folder) for folder in self.results(f"on-{gamma}", ON | {"gamma": gamma})]
            told = on
            if self.groups > 1:
                told = [read(f) for f in self.results(f"told-{gamma}", ON | {"gamma": gamma}, told=True)]
            yield line(f"all edges on, gamma {gamma}", on, against(told, on, 100))
            yield line(f"groups told, gamma {gamma}", told)
            for name, settings in SELECTIVE.items():
                folders = self.results(
                    f"{name.replace(', ', '-').replace(' ', '-')}-{gamma}", settings | {"gamma": gamma}
                )
                results = [read(folder) for folder in folders]
                both = [self.found(folder) for folder in folders]
                edges = " | ".join(f"{statistics.mean(part):.3f}" for part in zip(*both, strict=True))
                yield line(f"{name}, gamma {gamma}", results, against(told, results, 100), edges)


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
    if arguments.only:
        for scene in scenes:
            if scene.groups == arguments.only:
                print("\n".join(scene.lines()), flush=True)
        return
    text = "\n".join([HEAD.format(seeds=arguments.seeds), *(line for scene in scenes for line in scene.lines())])
    (RESULTS / "selective.md").write_text(
        f"Made by `python benchmarks/selective.py --seeds {arguments.seeds}`.\n\n{text}\n"
    )
    print(text)


if __name__ == "__main__":
    main()
