"""Clients that come in groups: what FLT and SFMTL-Graph make of it, beside the figures of their papers.

    .venv/bin/python benchmarks/groups.py [--seeds 3] [--out FOLDER]

The main tables of both papers in small, on the bundled digits: scenario 1 of FLT (five clusters of clients, each with
two classes of its own), and two classes a client, as in SFMTL-Graph's Heterogeneous CIFAR-10. Writes a Markdown table
to benchmarks/results/. Runs that are already in --out are not repeated.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from study import RESULTS, Result, over_seeds, read, run

from sheafgossip.launcher.config.sections import validate
from sheafgossip.launcher.prepare.encoders import train_encoder

DIGITS = {"dataset": "digits"}
FLT: dict[str, Any] = {
    "clients": 20,
    "rounds": 40,
    "data": DIGITS | {"partition": "clusters", "clusters": {"count": 5, "classes": 2}},
    "training": {"work": "epochs", "batch_size": 10, "alpha": 0.05},
    "model": {"kind": "mlp", "hidden": [50]},
    "evaluation": {"every": 0},
}
TAXONOMY = {"name": "flt", "fraction": 0.2, "embedding": 16, "centroids": 2, "manifold": "pca", "dimensions": 10}
GRAPH: dict[str, Any] = {
    "clients": 20,
    "rounds": 40,
    "data": DIGITS | {"partition": "classes", "classes_per_client": 2},
    "training": {"work": "steps", "steps": 5, "batch_size": 32, "alpha": 0.05},
    "model": {"kind": "mlp", "hidden": [64]},
    "topology": {"kind": "complete"},
    "evaluation": {"every": 0},
}
Published = Mapping[str, tuple[str, ...]]
TABLE_1: Published = {  # FLT, table 1, MNIST: accuracy %, variance over clients
    "FedAvg": ("82.73 ± 0.38", "44.65"),
    "local": ("97.41 ± 0.16", "3.44"),
    "FLT": ("97.98 ± 0.14", "2.17"),
}
TABLE_2: Published = {  # SFMTL-Graph, table II, Heterogeneous CIFAR-10: mean, worst 10%, worst 20%, deviation, in %
    "SFMTL-Graph": ("92 ± 6", "75 ± 11", "78 ± 10", "8 ± 3"),
    "dFedU": ("91 ± 8", "73 ± 13", "78 ± 12", "9 ± 3"),
    "pFedMe": ("78 ± 3", "59 ± 7", "61 ± 7", "13 ± 2"),
    "FedAvg": ("41 ± 8", "8 ± 8", "13 ± 8", "21 ± 3"),
    "local": ("–", "–", "–", "–"),
}


def flt_methods(encoder: Path) -> dict[str, dict[str, Any]]:
    trained = {"encoder": str(encoder), "gamma": 0.8, "clusters": 5}
    return {
        "FedAvg": {"name": "fedavg", "fraction": 0.2},
        "local": {"name": "local"},
        "FLT": TAXONOMY | trained,
        "FLT, case I": TAXONOMY | trained | {"case": "related"},
    }


GRAPH_METHODS: dict[str, dict[str, Any]] = {
    "SFMTL-Graph": {"name": "sfmtl-graph"},
    "dFedU": {"name": "dfedu", "lam": 0.002},
    "pFedMe": {"name": "pfedme", "lam": 15.0, "eta": 0.05, "inner_steps": 5},
    "FedAvg": {"name": "fedavg"},
    "local": {"name": "local"},
}


def results(
    problem: dict[str, Any], methods: Mapping[str, dict[str, Any]], seeds: int, out: Path
) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {name: [] for name in methods}
    for seed in range(seeds):
        for number, (name, algorithm) in enumerate(methods.items()):
            config = validate(problem | {"name": f"{name}, seed {seed}", "seed": seed, "algorithm": algorithm})
            folder = out / f"{number}-{seed}"
            if not run(config, folder):
                raise SystemExit(f"{config.name}: diverged")
            found[name].append(read(folder))
    return found


def worst(result: Result, share: float) -> float:
    count = max(1, round(share * len(result.metric)))
    return float(np.sort(result.metric)[:count].mean())


def flt_table(found: Mapping[str, list[Result]]) -> str:
    lines = [
        "| method | accuracy % | variance | payload MB | published (MNIST): accuracy % | variance |",
        "|---|---|---|---|---|---|",
    ]
    for name, each in found.items():
        accuracy = over_seeds(100 * result.mean for result in each)
        variance = over_seeds((1e4 * result.metric.var() for result in each), 0)
        payload = statistics.mean(result.payload_mb for result in each)
        lines.append(
            f"| {name} | {accuracy} | {variance} | {payload:.2f} | {' | '.join(TABLE_1.get(name, ('–', '–')))} |"
        )
    return "\n".join(lines)


def graph_table(found: Mapping[str, list[Result]]) -> str:
    lines = [
        "| method | accuracy % | worst 10% | worst 20% | deviation | payload MB | published (CIFAR-10): accuracy %"
        " | worst 10% | worst 20% | deviation |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, each in found.items():
        figures = [
            over_seeds(100 * result.mean for result in each),
            over_seeds(100 * worst(result, 0.1) for result in each),
            over_seeds(100 * worst(result, 0.2) for result in each),
            over_seeds(100 * float(result.metric.std()) for result in each),
            f"{statistics.mean(result.payload_mb for result in each):.2f}",
        ]
        lines.append(f"| {name} | {' | '.join((*figures, *TABLE_2[name]))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-groups"), help="folder of the runs")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    encoder = out / "encoder.safetensors"
    if not encoder.exists():
        for _ in train_encoder(validate({"data": DIGITS}), 100, TAXONOMY["embedding"], encoder):
            pass
    first = flt_table(results(FLT, flt_methods(encoder), arguments.seeds, out / "flt"))
    second = graph_table(results(GRAPH, GRAPH_METHODS, arguments.seeds, out / "graph"))
    text = f"## FLT: five clusters of two classes\n\n{first}\n\n## SFMTL-Graph: two classes a client\n\n{second}"
    (RESULTS / "groups.md").write_text(f"Made by `python benchmarks/groups.py --seeds {arguments.seeds}`.\n\n{text}\n")
    print(text)


if __name__ == "__main__":
    main()
