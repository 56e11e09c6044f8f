"""Selective sheaf with a CNN: rotated MNIST over 40 clients, accuracy against rounds and against bytes.

Four groups of clients whose digits are turned, half of the clients with a fifth of their training data, a CNN of 34,826
parameters, ten mini-batch steps a round at alpha 0.05. The lambda of each method is the one of its candidates that does
best on the validation samples of a seed that is not reported, after 40 rounds. Draws docs/pictures/selective-mnist.svg.
It can be stopped at any time and called again (three hours on two cores).
"""

from functools import partial
from pathlib import Path
from typing import Any

from common import options, table, write
from drawing import Panels, keep, kept, plt, save
from study import TUNING, Method, Study, comparison, over_seeds

from sheafgossip.metrics import open_run

PAPER = {"name": "sheaf-fmtl", "gamma": 0.03, "eta": 1.0, "start": "orthogonal", "start_scale": 18.66}
ROTATING = {"name": "sheaf-fmtl", "gamma": 0.1, "eta": 0.0, "start": "shared", "rotate_every": 1}
SELECTIVE = {"name": "selective-sheaf", "gamma": 0.1}
METHODS = {
    "local": Method({"name": "local"}),
    "D-PSGD": Method({"name": "d-psgd"}),
    "dFedU": Method({"name": "dfedu"}, (0.003, 0.01, 0.05, 0.2)),
    "Sheaf-FMTL (paper), gamma 0.03": Method(PAPER, (0.00003, 0.0001, 0.0003)),
    "shared + rotating (ours), gamma 0.1": Method(ROTATING, (0.03, 0.1, 0.3, 1.0)),
    "selective (ours), gamma 0.1": Method(SELECTIVE, (0.1, 0.3, 1.0, 3.0)),
    "selective, seeking (ours), gamma 0.1": Method(SELECTIVE | {"seek": True}, lam_of="selective (ours), gamma 0.1"),
}
CLIENTS_A_GROUP = 10
COLOURS = ("#555555", "#CC79A7", "#009E73", "#E69F00", "#56B4E9", "#0072B2", "#D55E00")


def problem(root: Path, rounds: int, seed: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "clients": 40,
        "rounds": rounds,
        "topology": {"kind": "erdos-renyi", "p": 0.15},
        "data": {"dataset": "mnist", "root": str(root)}
        | {"rotations": [0, 90, 180, 270], "reduced_clients": 0.5, "reduced_to": 0.2},
        "model": {"kind": "cnn", "filters": [32, 64]},
        "training": {"work": "steps", "steps": 10, "batch_size": 32, "alpha": 0.05},
        "evaluation": {"every": 5},
    }


def edges_between_alike(study: Study, name: str, lam: float | None, seeds: int) -> str:
    """The share of the last round's edges, in percent."""
    shares = []
    for seed in range(seeds):
        edges = open_run(study.folder(name, lam, seed)).sql(
            "SELECT node AS i, neighbour AS j FROM edge WHERE round = (SELECT max(round) FROM edge)"
        )
        shares.append(100 * ((edges["i"] // CLIENTS_A_GROUP) == (edges["j"] // CLIENTS_A_GROUP)).mean())
    return over_seeds(shares, 0)


def courses(study: Study, lams: dict[str, float | None], seeds: int) -> Panels:
    """What the picture shows: means over seeds; ``lams`` are {method: lambda}."""
    panels: Panels = {"round": {}, "payload": {}}
    for name, lam in lams.items():
        found = [
            open_run(study.folder(name, lam, seed)).sql(
                "SELECT round, mean_test_metric AS accuracy, payload_bytes FROM round_cumulative WHERE evaluated > 0"
            )
            for seed in range(seeds)
        ]
        accuracy = sum(100 * each["accuracy"] for each in found) / seeds
        sent = sum(each["payload_bytes"] / 1e6 for each in found) / seeds
        panels["round"][name] = list(zip(found[0]["round"], accuracy, strict=True))
        panels["payload"][name] = [pair for pair in zip(sent, accuracy, strict=True) if pair[0] > 0]
    return panels


def draw() -> None:
    """Draws what is kept."""
    panels = kept("selective-mnist")
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained", sharey=True)
    for (name, course), colour in zip(panels["round"].items(), COLOURS, strict=True):
        axes[0].plot(*zip(*course, strict=True), color=colour, label=name)
        if name in panels["payload"]:
            axes[1].plot(*zip(*panels["payload"][name], strict=True), color=colour)
        else:  # it sends nothing
            axes[1].axhline(course[-1][1], color=colour, linestyle=":")
    axes[0].set(xlabel="round", ylabel="accuracy %, mean over clients", ylim=(75, 97))
    axes[1].set(xlabel="payload so far, MB", xscale="log")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    save(figure, "selective-mnist")


def main() -> None:
    parser = options(__doc__, seeds=3, out="bench-selective-mnist")
    parser.add_argument("--data-root", type=Path, required=True, help="folder with the files of MNIST")
    parser.add_argument("--rounds", type=int, default=100)
    arguments = parser.parse_args()
    posed = partial(problem, arguments.data_root.resolve(), arguments.rounds)
    study = Study(arguments.out, posed, METHODS, max, TUNING[:1], tuning_rounds=min(40, arguments.rounds))
    found = study.results(arguments.seeds)
    rows = []
    for (name, *figures), (lam, _) in zip(comparison(found), found.values(), strict=True):
        alike = edges_between_alike(study, name, lam, arguments.seeds) if "selective" in name else ""
        rows.append((name, *figures, alike))
    header = "against local|clients with little data|payload MB|edges between alike, %"
    text = table(f"method|lambda|accuracy %, mean ± s.e. over seeds|{header}", rows)
    command = "python benchmarks/selective_mnist.py --data-root FOLDER"
    write("selective-mnist", f"`{command} --rounds {arguments.rounds} --seeds {arguments.seeds}`", text)
    keep("selective-mnist", courses(study, {name: lam for name, (lam, _) in found.items()}, arguments.seeds))
    draw()


if __name__ == "__main__":
    main()
