"""A group of clients gets another task half-way: which edges pull before and after, and what it does to accuracy.

examples/drifting-tasks.toml with a new start for clients whose loss tells that their task has changed, without it, with
all edges on, and alone. Draws docs/pictures/selective-drift.svg.
"""

from pathlib import Path
from typing import Any

from common import HERE, options, table, write
from drawing import Panels, keep, kept, plt, save
from pandas import Series
from study import algorithms, over_seeds, run_grid

from sheafgossip.launcher.config.files import load, read
from sheafgossip.metrics import open_run

EXAMPLE = HERE.parent / "examples" / "drifting-tasks.toml"
METHODS: dict[str, dict[str, Any]] = {
    "selective": {"name": "selective-sheaf", "restart": True},
    "selective, no new start": {"name": "selective-sheaf"},
    "all edges on": {"name": "sheaf-fmtl", "gamma": 0.1, "lam": 1.0, "eta": 0.0, "start": "shared", "rotate_every": 1},
    "alone": {"name": "local"},
}
LOOKS = {"selective": "#0072B2", "selective, no new start": "#D55E00", "all edges on": "#009E73", "alone": "#555555"}
SHARED = ("selective", "selective, no new start")  # of these, which edges pull is shown
CHANGED = 3
"""The group whose task becomes that of group 0, and was that of group 2."""
KINDS = {
    "old": ("to clients of its old task", "#D55E00"),
    "new": ("to clients of its new task", "#0072B2"),
    "wrong": ("between other tasks", "#999999"),
}


def kind(i: int, j: int, groups: list[int], round: int, change: int) -> str:
    """The kind of the edge between clients i and j."""
    tasks = {0: 0, 1: 1, 2: 2, 3: 2 if round < change else 0}
    pair = {groups[i], groups[j]}
    if pair == {2, CHANGED}:
        return "old"
    if pair == {0, CHANGED}:
        return "new"
    return "" if tasks[groups[i]] == tasks[groups[j]] else "wrong"


def shares(folder: Path, change: int) -> dict[str, Series]:
    """{kind of edges: the share of them that pulls, by round}"""
    run = open_run(folder)
    clients = int(run.sql("SELECT count(*) AS n FROM node WHERE role = 'client'")["n"][0])
    groups = [client * 4 // clients for client in range(clients)]
    edges = run.sql(
        "SELECT round, node AS i, neighbour AS j, coalesce(weight, 0) AS weight FROM edge WHERE node < neighbour"
    )
    edges["kind"] = [kind(i, j, groups, k, change) for k, i, j in edges[["round", "i", "j"]].itertuples(index=False)]
    means = edges.groupby(["kind", "round"])["weight"].mean()
    return {name: means[name] for name in KINDS}


def accuracy(folder: Path, changed: bool) -> Series:
    """Mean accuracy in percent, by round, of the clients whose task changes, or of the others."""
    run = open_run(folder)
    rounds = run.sql("SELECT round, node, test_metric FROM round WHERE test_metric IS NOT NULL")
    clients = rounds["node"].nunique()
    chosen = rounds[(rounds["node"] * 4 // clients == CHANGED) == changed]
    return 100 * chosen.groupby("round")["test_metric"].mean()


def courses(folders: dict[str, list[Path]]) -> Panels:
    """What the picture shows: means over seeds."""
    panels: Panels = {}
    for name in SHARED:
        found = [shares(folder, load(EXAMPLE)[0].data.drift.at_round) for folder in folders[name]]
        means = {part: sum(each[part] for each in found) / len(found) for part in KINDS}
        panels[name] = {part: list(mean.items()) for part, mean in means.items()}
    panels["accuracy"] = {
        name: list((sum(accuracy(folder, changed=True) for folder in folders[name]) / len(folders[name])).items())
        for name in LOOKS
    }
    return panels


def draw() -> None:
    """Draws what is kept."""
    panels, change = kept("selective-drift"), load(EXAMPLE)[0].data.drift.at_round
    figure, axes = plt.subplots(3, 1, figsize=(8, 8), layout="constrained", sharex=True)
    for axis, name in zip(axes, SHARED, strict=False):
        for part, (label, colour) in KINDS.items():
            axis.plot(*zip(*panels[name][part], strict=True), color=colour, label=label)
        axis.set(ylabel="edges that pull", ylim=(-0.03, 1.03), title=name)
    axes[1].legend(loc="center left", bbox_to_anchor=(0.06, 0.5), frameon=False)
    for name, colour in LOOKS.items():
        axes[2].plot(*zip(*panels["accuracy"][name], strict=True), color=colour, label=name)
    axes[2].set(ylabel="accuracy %", xlabel="round", title="of the clients whose task changes")
    axes[2].legend(loc="lower right", frameon=False)
    for axis in axes:
        axis.axvline(change, color="black", linewidth=0.6, linestyle=":")
    save(figure, "selective-drift")


def main() -> None:
    arguments = options(__doc__, seeds=3, out="bench-drift").parse_args()
    tree, (config,) = read(EXAMPLE), load(EXAMPLE)
    change = config.data.drift.at_round
    folders = run_grid(arguments.out, arguments.seeds, lambda seed: dict(tree), algorithms(METHODS))
    moments = [change - 5, change + 10, change + 30, change + 60, change + 100]
    rows = []
    for name, each in folders.items():
        theirs = [accuracy(folder, changed=True) for folder in each]
        others = [accuracy(folder, changed=False) for folder in each]
        cells = [over_seeds(course[k] for course in theirs) for k in (*moments, theirs[0].index.max())]
        rows.append((name, *cells, over_seeds(other.iloc[-1] for other in others)))
    rounds = "|".join(f"round {k}" for k in moments)
    header = f"accuracy %, mean ± s.e. over {arguments.seeds} seeds|{rounds}|last|last, of the others"
    write("drift", f"`python benchmarks/drift.py --seeds {arguments.seeds}`", table(header, rows))
    keep("selective-drift", courses(folders))
    draw()


if __name__ == "__main__":
    main()
