"""Does an edge find out by itself whether to pull? Selective sheaf against all edges on, and against the groups told.

Digits, 20 clients, half of them with a fifth of their training data, in 1, 2 or 4 groups whose images are turned; 200
full-gradient rounds of logistic regression on Erdős–Rényi graphs with p = 0.2 and 0.5. "All edges on" and "groups told"
are maps that are shared and rotate, with the same gamma and lambda; the latter on the graph without its edges between
groups, which nobody who learns could know. --only runs one number of groups and writes nothing.
"""

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import digits
from common import options, table, write
from study import against, payload, percent, read, run_several

from sheafgossip.launcher.config.sections import validate
from sheafgossip.launcher.prepare.graphs import draw_graphs
from sheafgossip.metrics import open_run

LAM = 1.0
LAM_OF_DFEDU = {0.2: 0.3, 0.5: 0.1}
"""With 0.3 it diverges on the denser graph."""
ANGLES = {1: [0], 2: [0, 90], 4: [0, 90, 180, 270]}
GAMMAS = (0.1, 0.03)
GRAPHS = (0.2, 0.5)
TOLD = "groups told"
ON = {"name": "sheaf-fmtl", "start": "shared", "rotate_every": 1, "eta": 0.0, "lam": LAM}
SELECTIVE = {
    "selective": {"name": "selective-sheaf", "lam": LAM, "probe_every": 1},
    "selective, quiet edges": {"name": "selective-sheaf", "lam": LAM},
}


def problem(groups: int, p: float, seed: int) -> dict[str, Any]:
    tree = digits.problem("upright", seed)
    tree["topology"]["p"], tree["data"]["rotations"] = p, ANGLES[groups]
    return tree


def within_groups(tree: dict[str, Any], groups: int, path: Path) -> dict[str, Any]:
    """The graph of ``tree`` without its edges between groups, as a file."""
    edges = [edge for edge in draw_graphs(validate(tree)).union.edges if like(edge, groups)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{i} {j}\n" for i, j in edges))
    return {"kind": "file", "path": str(path), "connected": False}


def like(edge: tuple[int, int], groups: int) -> bool:
    i, j = (client * groups // digits.CLIENTS for client in edge)
    return i == j


def methods(groups: int, p: float) -> dict[str, dict[str, Any]]:
    found = {"local": {"name": "local"}, "dFedU": {"name": "dfedu", "lam": LAM_OF_DFEDU[p]}}
    for gamma in GAMMAS:
        for name, settings in SELECTIVE.items():
            found[f"{name}, gamma {gamma}"] = settings | {"gamma": gamma}
        found[f"all edges on, gamma {gamma}"] = ON | {"gamma": gamma}
        if groups > 1:
            found[f"{TOLD}, gamma {gamma}"] = ON | {"gamma": gamma}
    return found


def run(groups: int, p: float, out: Path, seeds: int) -> dict[str, list[Path]]:
    """{method: the folder of its run with each seed}; runs what is missing."""
    folders: dict[str, list[Path]] = {}
    wanted = {}
    for name, algorithm in methods(groups, p).items():
        slug = name.replace(", ", "-").replace(" ", "-")
        folders[name] = [out / f"{groups}-{p}-{slug}-{seed}" for seed in range(seeds)]
        for seed, folder in enumerate(folders[name]):
            tree = problem(groups, p, seed) | {"name": folder.name, "algorithm": algorithm}
            if name.startswith(TOLD):
                tree["topology"] = within_groups(tree, groups, out / "graphs" / f"{groups}-{p}-{seed}.edges")
            wanted[folder] = validate(tree)
    run_several(wanted)
    return folders


def rows(groups: int, p: float, folders: dict[str, list[Path]]) -> Iterator[tuple[object, ...]]:
    results = {name: [read(folder) for folder in each] for name, each in folders.items()}
    for name, runs in results.items():
        gamma = name.partition(", gamma ")[2]
        told = results.get(f"{TOLD}, gamma {gamma}", results.get(f"all edges on, gamma {gamma}", runs))
        difference = against(told, runs, 100) if gamma and told is not runs else ""
        edges = ("", "")
        if name.startswith("selective"):
            both = [found(folder, groups) for folder in folders[name]]
            edges = tuple(f"{statistics.mean(part):.3f}" for part in zip(*both, strict=True))
        share = 100 * payload(runs) / payload(results["dFedU"])
        yield groups, p, name, percent(runs), difference, *edges, f"{share:.1f}"


def found(folder: Path, groups: int) -> tuple[float, float]:
    """Precision and recall of the edges that pull in the last round, among those within groups."""
    edges = open_run(folder).sql(
        "SELECT node AS i, neighbour AS j, weight FROM edge WHERE round = (SELECT max(round) FROM edge)"
    )
    on = {(i, j) for i, j, weight in edges.itertuples(index=False) if weight}
    wanted = {(i, j) for i, j in edges[["i", "j"]].itertuples(index=False) if like((i, j), groups)}
    hits = len(on & wanted)
    return hits / len(on) if on else 1.0, hits / len(wanted) if wanted else 1.0


def main() -> None:
    parser = options(__doc__, seeds=5, out="bench-selective")
    parser.add_argument("--only", type=int, choices=list(ANGLES), help="one number of groups")
    arguments = parser.parse_args()
    scenes = {
        (groups, p): run(groups, p, arguments.out, arguments.seeds)
        for groups in ([arguments.only] if arguments.only else ANGLES)
        for p in GRAPHS
    }
    if arguments.only:
        return
    accuracy = f"accuracy %, mean ± s.e. over {arguments.seeds} seeds"
    header = f"groups|p|method|{accuracy}|against groups told|precision|recall|payload, % of dFedU's"
    text = table(header, (row for (groups, p), folders in scenes.items() for row in rows(groups, p, folders)))
    write("selective", f"`python benchmarks/selective.py --seeds {arguments.seeds}`", text)


if __name__ == "__main__":
    main()
