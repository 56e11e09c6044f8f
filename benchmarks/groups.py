"""Clients that come in groups: what FLT and SFMTL-Graph make of it, beside the figures of their papers.

The main tables of both papers in small, on the bundled digits: scenario 1 of FLT (five clusters of clients, each with
two classes of its own), and two classes a client, as in SFMTL-Graph's Heterogeneous CIFAR-10.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from common import options, table, write
from study import Result, algorithms, over_seeds, payload, percent, read, run_grid

from sheafgossip.launcher.config.sections import validate
from sheafgossip.launcher.prepare.preparation import train_encoder

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
GRAPH: dict[str, Any] = FLT | {
    "data": DIGITS | {"partition": "classes", "classes_per_client": 2},
    "training": {"work": "steps", "steps": 5, "batch_size": 32, "alpha": 0.05},
    "model": {"kind": "mlp", "hidden": [64]},
    "topology": {"kind": "complete"},
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


def rows(found: Mapping[str, list[Result]], published: Published) -> Iterator[tuple[str, ...]]:
    columns = len(next(iter(published.values())))
    for name, each in found.items():
        figures = [over_seeds((1e4 * result.metric.var() for result in each), 0)]
        if published is TABLE_2:
            count = len(each[0].metric)
            shares = (max(1, round(share * count)) for share in (0.1, 0.2))
            figures = [over_seeds(100 * float(np.sort(r.metric)[:worst].mean()) for r in each) for worst in shares]
            figures.append(over_seeds(100 * float(result.metric.std()) for result in each))
        yield name, percent(each), *figures, f"{payload(each):.2f}", *published.get(name, columns * ("–",))


def main() -> None:
    arguments = options(__doc__, seeds=3, out="bench-groups").parse_args()
    encoder = arguments.out / "encoder.safetensors"
    if not encoder.exists():
        for _ in train_encoder(validate({"data": DIGITS}), 100, TAXONOMY["embedding"], encoder):
            pass
    flt, graph = (
        {
            name: [read(folder) for folder in folders]
            for name, folders in run_grid(
                arguments.out / place, arguments.seeds, lambda _, tree=tree: dict(tree), algorithms(methods)
            ).items()
        }
        for place, tree, methods in (("flt", FLT, flt_methods(encoder)), ("graph", GRAPH, GRAPH_METHODS))
    )
    first = table("method|accuracy %|variance|payload MB|published (MNIST): accuracy %|variance", rows(flt, TABLE_1))
    figures = "worst 10%|worst 20%|deviation"
    second = table(
        f"method|accuracy %|{figures}|payload MB|published (CIFAR-10): accuracy %|{figures}", rows(graph, TABLE_2)
    )
    text = f"## FLT: five clusters of two classes\n\n{first}\n\n## SFMTL-Graph: two classes a client\n\n{second}"
    write("groups", f"`python benchmarks/groups.py --seeds {arguments.seeds}`", text)


if __name__ == "__main__":
    main()
