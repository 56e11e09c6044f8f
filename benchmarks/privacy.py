"""Accuracy, bytes and what a curious neighbour learns, on digits, over several seeds, without and with differential
privacy.

The problems of benchmarks/digits.py: twenty clients on an Erdős–Rényi graph (p = 0.2), half of them with a fifth of
their training data, 200 full-gradient rounds of logistic regression; once with all images upright, once with four
groups of clients whose images are turned. With --data-root, the folder with MNIST's files, the latter on 6,000 images
of MNIST, too. All are attacked on 24 edges, with 16 shadow models each; on MNIST five methods, on 6 edges with 8 shadow
models. Where images are turned these five also have differential privacy, with each of two epsilons. The results go to
benchmarks/results/privacy.md and .csv, the picture to docs/pictures/privacy.svg.
"""

import argparse
import json
import math
import shutil
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import digits
from common import options, table, write, write_csv
from drawing import plt, save
from study import Changes, algorithms, over_seeds, read, run_grid

from sheafgossip.launcher.leak.meter import Asked, measure

FIXED = {"name": "sheaf-fmtl", "eta": 0.0}
MESSAGES = {"vectors": {"mb": 2000}}
METHODS: dict[str, Changes] = algorithms(
    {
        "local": {"name": "local"},
        "D-PSGD": {"name": "d-psgd"},
        "dFedU": {"name": "dfedu", "lam": 0.3},
        "Sheaf-FMTL (paper), gamma 0.1": digits.MAPS | {"start": "orthogonal", "gamma": 0.1},
        **{
            f"{name}, gamma {gamma}": FIXED | settings | {"gamma": gamma}
            for name, settings in {
                "private fixed maps": {"start": "orthogonal", "lam": 0.3},
                "shared fixed maps": {"start": "shared", "lam": 0.3},
            }.items()
            for gamma in (0.1, 0.5)
        },
        **{f"shared + rotating, gamma {gamma}": digits.ROTATING | {"gamma": gamma} for gamma in (0.03, 0.1)},
        "selective, gamma 0.1": {"name": "selective-sheaf", "lam": 1.0, "gamma": 0.1},
    }
)
PROTECTED = (
    "D-PSGD",
    "dFedU",
    "Sheaf-FMTL (paper), gamma 0.1",
    "shared + rotating, gamma 0.1",
    "selective, gamma 0.1",
)
EPSILONS = (100, 10)  # of every client, over all rounds
PRIVACY = {"clip": 1.0, "delta": 1e-3}
ASKED = Asked(("model", "membership", "lira", "inputs", "property"), shadows=16, looks=7, edges=24)
ON_MNIST = Asked(("model", "membership", "lira", "property"), shadows=8, looks=4, edges=6)
FIGURES = ("update", "auc", "lira_auc", "lira_tpr", "inputs", "property")
SHOWN = {  # in the picture
    "D-PSGD": "black",
    "dFedU": "tab:gray",
    "Sheaf-FMTL (paper), gamma 0.1": "tab:brown",
    "private fixed maps, gamma 0.1": "tab:green",
    "shared fixed maps, gamma 0.5": "tab:olive",
    "shared + rotating, gamma 0.03": "tab:cyan",
    "shared + rotating, gamma 0.1": "tab:blue",
    "selective, gamma 0.1": "tab:red",
}


def methods_of(name: str) -> dict[str, Changes]:
    """Of a problem; with differential privacy where clients differ."""
    found = {method: METHODS[method] for method in ("local", *PROTECTED)} if "MNIST" in name else dict(METHODS)
    for epsilon in EPSILONS if "rotated" in name else ():
        found |= {
            f"{method}, epsilon {epsilon}": METHODS[method] | {"privacy": PRIVACY | {"epsilon": float(epsilon)}}
            for method in PROTECTED
        }
    return found


def problem(name: str, root: Path | None, seed: int) -> dict[str, Any]:
    if name != "MNIST, rotated":
        return digits.problem(name.removeprefix("digits, "), seed) | {"measuring": MESSAGES}
    tree = digits.problem("rotated", seed) | {"measuring": MESSAGES}
    tree["data"] |= {"dataset": "mnist", "root": str(root), "samples": 6000}
    return tree


def leak_of(folder: Path, asked: Asked) -> dict[str, Any]:
    """What leaks in a run, measured once; then its messages are removed, which take some 100 MB."""
    kept = folder / "leak.json"
    if not kept.exists():
        leak = measure(folder, asked)
        rounds = sorted({row["round"] for edge in leak.edges for row in edge.rounds})
        every = [row for edge in leak.edges for row in edge.rounds]
        course = {
            round: {
                name: mean_of(row[name] for row in every if row["round"] == round and name in row) for name in FIGURES
            }
            for round in rounds
        }
        end = {name: leak.mean(name, last=True) for name in FIGURES}
        # an input is known once it has been found, in whatever round
        found = [min(values) for edge in leak.edges if (values := edge.figure("inputs"))]
        end["inputs"] = mean_of(found)
        own = mean_of(edge.own_inputs for edge in leak.edges if edge.own_inputs is not None)
        kept.write_text(json.dumps({"end": end, "course": course, "chance": leak.chance, "own_inputs": own}))
        shutil.rmtree(folder / "vectors")
    return json.loads(kept.read_text())


def mean_of(values) -> float | None:
    found = list(values)
    return statistics.mean(found) if found else None


def cell(values: list[float | None], digits: int = 2) -> str:
    return "" if None in values else over_seeds([value for value in values if value is not None], digits)


def study(name: str, arguments: argparse.Namespace) -> tuple[str, dict[str, list[dict[str, Any]]], list[tuple]]:
    """The table of a problem, {method: leaks by seed}, and rows for the file of all figures."""
    out, posed = arguments.out / name.replace(", ", "-"), partial(problem, name, arguments.data_root)
    asked = ON_MNIST if "MNIST" in name else ASKED
    leaks, rows, csv = dict[str, list[dict[str, Any]]](), [], []
    for number, (method, changes) in enumerate(methods_of(name).items()):
        ((_, folders),) = run_grid(out / str(number), arguments.seeds, posed, {method: changes}).items()
        results = [read(folder) for folder in folders]
        leaks[method] = [] if method == "local" else [leak_of(folder, asked) for folder in folders]
        print(f"{name}: {method}", flush=True)
        accuracy, sent = [100 * result.mean for result in results], [result.payload_mb for result in results]
        ends = [leak["end"] for leak in leaks[method]]
        told = [cell([end[figure] for end in ends]) if ends else "" for figure in FIGURES]
        rows.append((method, over_seeds(accuracy), f"{statistics.mean(sent):.2f}", *told))
        for seed, result in enumerate(results):
            values = [ends[seed][figure] for figure in FIGURES] if ends else [""] * len(FIGURES)
            csv.append((name, method, seed, f"{100 * result.mean:.3f}", f"{result.payload_mb:.3f}", *values))
    every = [leak for several in leaks.values() for leak in several]
    chance = statistics.mean(leak["chance"] for leak in every)
    own = mean_of(leak["own_inputs"] for leak in every if leak["own_inputs"] is not None)
    header = f"{name}|accuracy %|payload MB|error of the update|AUC by loss|LiRA AUC|LiRA TPR at 5%"
    header += f"|error of an input{f' (own samples {own:.2f})' if own else ''}|property right (chance {chance:.2f})"
    return table(header, rows), leaks, csv


def draw(found: dict[str, tuple[str, dict[str, list[dict[str, Any]]], list[tuple]]]) -> None:
    """Above: how much of the update is unknown, by round; below: accuracy against membership."""
    figure, axes = plt.subplots(2, len(found), figsize=(5 * len(found), 8), layout="constrained", squeeze=False)
    for (name, (_, leaks, csv)), (above, below) in zip(found.items(), axes.T, strict=True):
        for method, colour in ((each, SHOWN[each]) for each in SHOWN if each in leaks):
            courses = [leak["course"] for leak in leaks[method]]
            rounds = sorted({int(k) for k in courses[0]} & {int(k) for course in courses for k in course})
            told = [
                (k, mean_of(c[str(k)]["update"] for c in courses if c.get(str(k), {}).get("update") is not None))
                for k in rounds
            ]
            told = [(k, value) for k, value in told if value is not None]
            above.plot(*zip(*told, strict=True), "o-", markersize=3, color=colour, label=method)
            points = [(float(row[7]), float(row[3]), float(row[4])) for row in csv if row[1] == method]
            x, y, mb = (statistics.mean(values) for values in zip(*points, strict=True))
            below.scatter(x, y, s=20 + 60 * math.sqrt(mb), color=colour, alpha=0.7, label=method)
            for epsilon in EPSILONS:
                private = [(float(r[7]), float(r[3])) for r in csv if r[1] == f"{method}, epsilon {epsilon}"]
                if private:
                    x, y = (statistics.mean(values) for values in zip(*private, strict=True))
                    below.scatter(x, y, s=30, facecolors="none", edgecolors=colour)
                    below.annotate(f"{epsilon}", (x, y), fontsize=6, xytext=(3, 3), textcoords="offset points")
        local = statistics.mean(float(row[3]) for row in csv if row[1] == "local")
        below.axhline(local, color="black", linewidth=0.6, linestyle=":")
        below.annotate("local", (0.5, local), fontsize=8, va="bottom")
        above.set(
            title=name, xscale="log", xlabel="round", ylabel="error of the update, to a neighbour", ylim=(-0.05, None)
        )
        below.set(xlabel="membership AUC (LiRA, at the end); area: payload; ring: epsilon", ylabel="accuracy %")
    axes[0][0].legend(fontsize=7, frameon=False)
    save(figure, "privacy")


def main() -> None:
    parser = options(__doc__, seeds=3, out="bench-privacy")
    parser.add_argument("--data-root", type=Path, help="folder with MNIST's files")
    arguments = parser.parse_args()
    names = ["digits, upright", "digits, rotated"] + ["MNIST, rotated"] * (arguments.data_root is not None)
    found = {name: study(name, arguments) for name in names}
    made_by = f"`python benchmarks/privacy.py --seeds {arguments.seeds}{' --data-root FOLDER' * (len(names) > 2)}`"
    means = (
        f"Means ± s.e. over {arguments.seeds} seeds; what is learned is the mean over edges, after the last round.\n\n"
    )
    write("privacy", made_by, means + "\n\n".join(text for text, _, _ in found.values()))
    header = ("problem", "method", "seed", "accuracy", "payload_mb", *FIGURES)
    write_csv("privacy", header, [row for _, _, csv in found.values() for row in csv])
    draw(found)


if __name__ == "__main__":
    main()
