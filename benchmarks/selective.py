"""Does an edge find out by itself whether to pull? Three studies of selective sheaf, on digits with 20 clients.

groups: against all edges on, and against known groups. Half of the clients have a fifth of their training data; 1, 2
or 4 groups whose images are turned; 200 full-gradient rounds of logistic regression on Erdős–Rényi graphs with p =
0.2 and 0.5. "All edges on" and "groups known" are maps that are shared and rotate, with the same gamma and lambda;
the latter on the graph without its edges between groups, which nobody who learns could know.

others: clients that differ in their labels instead of their images, with 2 and with 5 of the 10 classes a client; and
School as in benchmarks/school.py where --data-root is a folder with school.mat, with the lambdas chosen there.

seeking: four groups at p = 0.2, on the graph as it is and with `seek`, where the graph is only the start: how many
better neighbours clients find, what it brings, and what it costs; beside it the groups known, also on a complete graph.
"""

import argparse
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import digits
import school
from common import table
from study import Changes, against, algorithms, over_seeds, payload, percent, read, run_grid, run_study

from sheafgossip.launcher.config.sections import validate
from sheafgossip.launcher.prepare.preparation import draw_graphs
from sheafgossip.metrics import open_run

LAM_OF_DFEDU = {0.2: 0.3, 0.5: 0.1}
"""With 0.3 it diverges on the denser graph."""
ANGLES = {1: [0], 2: [0, 90], 4: [0, 90, 180, 270]}
KNOWN = "groups known"
ON = digits.ROTATING
SELECTIVE = {
    "selective": {"name": "selective-sheaf", "lam": 1.0, "probe_every": 1},
    "selective, quiet edges": {"name": "selective-sheaf", "lam": 1.0},
}


def problem(groups: int, p: float, seed: int) -> dict[str, Any]:
    tree = digits.problem("upright", seed)
    tree["topology"]["p"], tree["data"]["rotations"] = p, ANGLES[groups]
    return tree


def known(groups: int, graphs: Path, algorithm: dict[str, Any], **others: Any) -> Changes:
    """The graph without its edges between groups, as a file in ``graphs``."""

    def changes(tree: dict[str, Any]) -> dict[str, Any]:
        edges = [edge for edge in draw_graphs(validate(tree | others)).union.edges if like(edge, groups)]
        graphs.mkdir(parents=True, exist_ok=True)
        path = graphs / f"{'-'.join(others)}{tree['seed']}.edges"
        path.write_text("".join(f"{i} {j}\n" for i, j in edges))
        return {"algorithm": algorithm, "topology": {"kind": "file", "path": str(path), "connected": False}}

    return changes


def like(edge: tuple[int, int], groups: int) -> bool:
    i, j = (client * groups // digits.CLIENTS for client in edge)
    return i == j


def methods(groups: int, p: float, graphs: Path) -> dict[str, Changes]:
    found = algorithms({"local": {"name": "local"}, "dFedU": {"name": "dfedu", "lam": LAM_OF_DFEDU[p]}})
    for gamma in (0.1, 0.03):
        for name, settings in (SELECTIVE | {"all edges on": ON}).items():
            found[f"{name}, gamma {gamma}"] = {"algorithm": settings | {"gamma": gamma}}
        if groups > 1:
            found[f"{KNOWN}, gamma {gamma}"] = known(groups, graphs, ON | {"gamma": gamma})
    return found


def rows_of_groups(groups: int, p: float, folders: dict[str, list[Path]]) -> Iterator[tuple[object, ...]]:
    results = {name: [read(folder) for folder in each] for name, each in folders.items()}
    for name, runs in results.items():
        gamma = name.partition(", gamma ")[2]
        base = results.get(f"{KNOWN}, gamma {gamma}", results.get(f"all edges on, gamma {gamma}", runs))
        difference = against(base, runs, 100) if gamma and base is not runs else ""
        edges = ("", "")
        if name.startswith("selective"):
            both = [precision_and_recall(folder, groups) for folder in folders[name]]
            edges = tuple(f"{statistics.mean(part):.3f}" for part in zip(*both, strict=True))
        share = 100 * payload(runs) / payload(results["dFedU"])
        yield groups, p, name, percent(runs), difference, *edges, f"{share:.1f}"


def precision_and_recall(folder: Path, groups: int) -> tuple[float, float]:
    """Of the edges that pull in the last round, among those within groups."""
    edges = open_run(folder).sql(
        "SELECT node AS i, neighbour AS j, weight FROM edge WHERE round = (SELECT max(round) FROM edge)"
    )
    on = {(i, j) for i, j, weight in edges.itertuples(index=False) if weight}
    wanted = {(i, j) for i, j in edges[["i", "j"]].itertuples(index=False) if like((i, j), groups)}
    hits = len(on & wanted)
    return hits / len(on) if on else 1.0, hits / len(wanted) if wanted else 1.0


def study_groups(arguments: argparse.Namespace, accuracy: str) -> str:
    scenes = {
        (groups, p): run_grid(
            arguments.out / f"{groups}-{p}",
            arguments.seeds,
            partial(problem, groups, p),
            methods(groups, p, arguments.out / f"graphs-{groups}-{p}"),
        )
        for groups in ANGLES
        for p in LAM_OF_DFEDU
    }
    header = f"groups|p|method|{accuracy}|against groups known|precision|recall|payload, % of dFedU's"
    return table(header, (row for (groups, p), folders in scenes.items() for row in rows_of_groups(groups, p, folders)))


def label_skew(classes: int, seed: int) -> dict[str, Any]:
    tree = problem(1, 0.2, seed)
    return tree | {"data": tree["data"] | {"partition": "classes", "classes_per_client": classes}}


def others(dfedu: float, gamma: float, lam: float, thresholds: tuple[float, ...]) -> dict[str, Changes]:
    selective_sheaf = {"name": "selective-sheaf", "gamma": gamma, "lam": lam}
    found = {
        "local": {"name": "local"},
        "dFedU": {"name": "dfedu", "lam": dfedu},
        f"shared + rotating, gamma {gamma}": ON | {"gamma": gamma, "lam": lam},
        f"selective, gamma {gamma}": selective_sheaf,
    }
    return algorithms(
        found | {f"selective, gamma {gamma}, threshold {c}": selective_sheaf | {"threshold": c} for c in thresholds}
    )


def on_at_the_end(folders: list[Path]) -> str:
    """The share of edges that pull in the last round, in percent, a mean over runs."""
    query = "SELECT avg(weight > 0) AS share FROM edge WHERE round = (SELECT max(round) FROM edge)"
    shares = [open_run(folder).sql(query)["share"][0] for folder in folders]
    return "" if None in shares else f"{100 * statistics.mean(shares):.0f}"


def study_others(arguments: argparse.Namespace, accuracy: str) -> str:
    scenes: dict[str, tuple[float, Any, dict[str, Changes]]] = {
        f"digits, {classes} classes a client (accuracy %)": (
            100,
            partial(label_skew, classes),
            others(0.3, 0.1, 1.0, (0.2,)),
        )
        for classes in (2, 5)
    }
    if arguments.data_root:
        school.write_shares(arguments.data_root, arguments.out / "school.npz")
        posed = partial(school.problem, arguments.out / "school.npz", 0.5)
        scenes["School (MSE)"] = 1, posed, others(0.1, 0.3, 0.3, ())
    rows = []
    for number, (title, (scale, posed, changes)) in enumerate(scenes.items()):
        for name, each in run_grid(arguments.out / str(number), arguments.seeds, posed, changes).items():
            results = [read(folder) for folder in each]
            found = over_seeds(scale * result.mean for result in results)
            rows.append((title, name, found, on_at_the_end(each), f"{payload(results):.2f}"))
    return table(f"problem|method|{accuracy.replace('accuracy %, ', '')}|edges on, %|payload MB", rows)


def edges(folder: Path, moment: str) -> tuple[float, float]:
    """The edges used in the first ("min") or last ("max") round: the share between alike, in percent; how many."""
    ends = open_run(folder).sql(f"SELECT node, neighbour FROM edge WHERE round = (SELECT {moment}(round) FROM edge)")
    return 100 * statistics.mean(like((i, j), 4) for i, j in ends.itertuples(index=False)), len(ends) / 2


def study_seeking(arguments: argparse.Namespace, accuracy: str) -> str:
    graphs = arguments.out / "graphs"
    changes = algorithms({"dFedU": {"name": "dfedu", "lam": 0.3}} | SELECTIVE) | {
        "selective, seeking": {"algorithm": SELECTIVE["selective, quiet edges"] | {"seek": True}},
        KNOWN: known(4, graphs, ON | {"gamma": 0.1}),
        f"{KNOWN}, complete graph": known(4, graphs, ON | {"gamma": 0.1, "lam": 0.3}, topology={"kind": "complete"}),
    }
    folders = run_grid(arguments.out, arguments.seeds, partial(problem, 4, 0.2), changes)
    full = [read(folder).payload_mb for folder in folders["dFedU"]]
    rows = []
    for name, each in folders.items():
        results = [read(folder) for folder in each]
        found = [[edges(folder, moment) for folder in each] for moment in ("min", "max")]
        alike = [over_seeds((share for share, _ in ends), 0) for ends in found]
        many = [f"{statistics.mean(number for _, number in ends):.1f}" for ends in found]
        share = 100 * statistics.mean(r.payload_mb / mb for r, mb in zip(results, full, strict=True))
        rows.append((name, percent(results), *alike, *many, f"{share:.1f}"))
    moments = "edges between alike %, at first|at the end|edges at first|at the end"
    return table(f"method|{accuracy}|{moments}|payload, % of dFedU's", rows)


STUDIES = {
    "groups": (study_groups, "selective"),
    "others": (study_others, "selective-others"),
    "seeking": (study_seeking, "seeking"),
}


def main() -> None:
    run_study("selective", __doc__, STUDIES)


if __name__ == "__main__":
    main()
