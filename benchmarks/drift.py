"""A group of clients gets another task half-way: which edges pull before and after, and what it does to accuracy.

    .venv/bin/python benchmarks/drift.py [--seeds 3] [--out FOLDER]

examples/drifting-tasks.toml with a new start for clients whose loss tells that their task has changed, without it, with
all edges on, and alone. Writes benchmarks/results/drift.md and docs/pictures/selective-drift.svg. Runs that are already
in --out are not repeated.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot as plt
from study import RESULTS, over_seeds, run_several

from sheafgossip.launcher.config.files import load, read
from sheafgossip.launcher.config.sections import validate
from sheafgossip.metrics import open_run

HERE = Path(__file__).parent
EXAMPLE = HERE.parent / "examples" / "drifting-tasks.toml"
METHODS: dict[str, dict[str, Any]] = {
    "selective": {"name": "selective-sheaf", "restart": True},
    "selective, no new start": {"name": "selective-sheaf"},
    "all edges on": {"name": "sheaf-fmtl", "gamma": 0.1, "lam": 1.0, "eta": 0.0, "start": "shared", "rotate_every": 1},
    "alone": {"name": "local"},
}
LOOKS = {"selective": "#0072B2", "selective, no new start": "#D55E00", "all edges on": "#009E73", "alone": "#555555"}
CHANGED = 3
"""The group whose task becomes that of group 0, and was that of group 2."""
KINDS = {"old": "to clients of its old task", "new": "to clients of its new task", "wrong": "between other tasks"}
KIND_LOOKS = {"old": "#D55E00", "new": "#0072B2", "wrong": "#999999"}


def kind(i: int, j: int, groups: list[int], round: int, change: int) -> str:
    """Of an edge between clients i and j."""
    tasks = {0: 0, 1: 1, 2: 2, 3: 2 if round < change else 0}
    pair = {groups[i], groups[j]}
    if pair == {2, CHANGED}:
        return "old"
    if pair == {0, CHANGED}:
        return "new"
    return "" if tasks[groups[i]] == tasks[groups[j]] else "wrong"


def shares(folder: Path, change: int) -> dict[str, dict[int, float]]:
    """{kind of edges: {round: the share of them that pulls}}"""
    run = open_run(folder)
    clients = int(run.sql("SELECT count(*) AS n FROM node WHERE role = 'client'")["n"][0])
    groups = [client * 4 // clients for client in range(clients)]
    edges = run.sql(
        "SELECT round, node AS i, neighbour AS j, coalesce(weight, 0) AS weight FROM edge WHERE node < neighbour"
    )
    edges["kind"] = [kind(i, j, groups, k, change) for k, i, j in edges[["round", "i", "j"]].itertuples(index=False)]
    means = edges.groupby(["kind", "round"])["weight"].mean()
    return {name: means[name].to_dict() for name in KINDS}


def accuracy(folder: Path, changed: bool) -> dict[int, float]:
    """{round: mean accuracy in percent}, of the clients whose task changes, or of the others."""
    run = open_run(folder)
    rounds = run.sql("SELECT round, node, test_metric FROM round WHERE test_metric IS NOT NULL")
    clients = rounds["node"].nunique()
    chosen = rounds[(rounds["node"] * 4 // clients == CHANGED) == changed]
    return (100 * chosen.groupby("round")["test_metric"].mean()).to_dict()


def mean(found: list[dict[int, float]]) -> dict[int, float]:
    return {k: statistics.mean(each[k] for each in found) for k in found[0]}


def draw(folders: dict[str, list[Path]], change: int) -> None:
    matplotlib.rcParams |= {"font.size": 10, "svg.hashsalt": "sheafgossip"}
    figure, axes = plt.subplots(3, 1, figsize=(8, 8), layout="constrained", sharex=True)
    for axis, name in zip(axes, ("selective", "selective, no new start"), strict=False):
        found = [shares(folder, change) for folder in folders[name]]
        for part, label in KINDS.items():
            course = mean([each[part] for each in found])
            axis.plot(list(course), list(course.values()), color=KIND_LOOKS[part], label=label)
        axis.set(ylabel="edges that pull", ylim=(-0.03, 1.03), title=name)
    axes[1].legend(loc="center left", bbox_to_anchor=(0.06, 0.5), frameon=False)
    for name, colour in LOOKS.items():
        course = mean([accuracy(folder, changed=True) for folder in folders[name]])
        axes[2].plot(list(course), list(course.values()), color=colour, label=name)
    axes[2].set(ylabel="accuracy %", xlabel="round", title="of the clients whose task changes")
    axes[2].legend(loc="lower right", frameon=False)
    for axis in axes:
        axis.axvline(change, color="black", linewidth=0.6, linestyle=":")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    figure.savefig(HERE.parent / "docs" / "pictures" / "selective-drift.svg", metadata={"Date": None})
    plt.close(figure)


def table(folders: dict[str, list[Path]], change: int) -> str:
    moments = [change - 5, change + 10, change + 30, change + 60, change + 100]
    rounds = " | ".join(f"round {k}" for k in moments)
    lines = [
        f"| accuracy %, mean ± s.e. over {len(folders['alone'])} seeds | {rounds} | last | last, of the others |",
        f"|---|{'---|' * (len(moments) + 2)}",
    ]
    for name, each in folders.items():
        courses = [accuracy(folder, changed=True) for folder in each]
        others = [accuracy(folder, changed=False) for folder in each]
        last = max(courses[0])
        cells = [over_seeds(course[k] for course in courses) for k in (*moments, last)]
        lines.append(f"| {name} | {' | '.join(cells)} | {over_seeds(other[last] for other in others)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-drift"), help="folder of the runs")
    arguments = parser.parse_args()
    out, tree, (config,) = arguments.out.resolve(), read(EXAMPLE), load(EXAMPLE)
    folders: dict[str, list[Path]] = {name: [] for name in METHODS}
    wanted = {}
    for seed in range(arguments.seeds):
        for number, (name, algorithm) in enumerate(METHODS.items()):
            folder = out / f"{number}-{seed}"
            folders[name].append(folder)
            wanted[folder] = validate(tree | {"seed": seed, "name": f"{name}, seed {seed}", "algorithm": algorithm})
    run_several(wanted)
    text = table(folders, config.data.drift.at_round)
    (RESULTS / "drift.md").write_text(f"Made by `python benchmarks/drift.py --seeds {arguments.seeds}`.\n\n{text}\n")
    draw(folders, config.data.drift.at_round)
    print(text)


if __name__ == "__main__":
    main()
