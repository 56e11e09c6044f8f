"""Accuracy against bytes on digits, over several seeds: what each way of talking to neighbours buys.

Twenty clients on an Erdős–Rényi graph (p = 0.2), half of them with a fifth of their training data, 200 full-gradient
rounds of logistic regression; once with all images upright, once with four groups of clients whose images are turned.

tuned: the upright problem, where collaboration should help. The lambda of each method is the one of its six candidates
that does best on the validation samples of two seeds that are not reported. The results go to
benchmarks/results/collaboration.md, and those of all its runs to collaboration.csv.

codecs: the upright problem; what each codec saves of the bytes, and what it costs in accuracy.
"""

import argparse
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from common import table
from study import (
    Method,
    Study,
    against,
    algorithms,
    comparison,
    over_seeds,
    payload,
    percent,
    read,
    run_grid,
    run_study,
    write_runs,
)

from sheafgossip.metrics.summary import summarize

CLIENTS = 20
PROBLEMS = {"upright": [0], "rotated": [0, 90, 180, 270]}
MAPS = {"name": "sheaf-fmtl", "lam": 0.3, "eta": 0.03}
ROTATING = {"name": "sheaf-fmtl", "lam": 1.0, "eta": 0.0, "start": "shared", "rotate_every": 1}
SCALE = 0.04  # 1/sqrt(d), so that gaussian maps have about the size of orthonormal ones
METHODS = {
    "local": {"name": "local"},
    "D-PSGD": {"name": "d-psgd"},
    "dFedU": {"name": "dfedu", "lam": 0.3},
    **{
        f"{label}, gamma {gamma}": settings | {"gamma": gamma}
        for gamma in (0.03, 0.1)
        for label, settings in {
            "Sheaf-FMTL, gaussian (paper)": MAPS | {"start": "gaussian", "start_scale": SCALE},
            "Sheaf-FMTL, orthogonal (paper)": MAPS | {"start": "orthogonal"},
            "Sheaf-FMTL, shared (ours)": MAPS | {"start": "shared"},
            "shared + rotating (ours)": ROTATING,
        }.items()
    },
}
PAPER = {"name": "sheaf-fmtl", "gamma": 0.1, "eta": 0.03}
TUNED = {
    "local": Method({"name": "local"}),
    "D-PSGD": Method({"name": "d-psgd"}),
    "dFedU": Method({"name": "dfedu"}, (0.003, 0.01, 0.03, 0.1, 0.2, 0.3)),
    "Sheaf-FMTL, gaussian (paper)": Method(PAPER | {"start": "gaussian"}, (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3)),
    "Sheaf-FMTL, orthogonal (paper)": Method(PAPER | {"start": "orthogonal"}, (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)),
    "shared + rotating (ours)": Method(ROTATING | {"gamma": 0.1}, (0.03, 0.1, 0.3, 1.0, 2.0, 3.0)),
}


Codecs = dict[str, dict[str, Any]]
"""{name: the [transport] section}"""

ROUNDING: Codecs = {name: {"codec": name} for name in ("float16", "bfloat16", "int8")}
ENTRIES: Codecs = {f"top-k, keep {keep}": {"codec": "top-k", "keep": keep} for keep in (0.25, 0.1)}
TALKS: dict[str, tuple[dict[str, Any], Codecs]] = {
    "dFedU": (METHODS["dFedU"], ROUNDING | ENTRIES),
    "dFedU, lambda 0.1": ({"name": "dfedu", "lam": 0.1}, ENTRIES),
    "D-PSGD": (METHODS["D-PSGD"], {"float16": ROUNDING["float16"], "int8": ROUNDING["int8"]}),
    "shared + rotating (ours), gamma 0.1": (METHODS["shared + rotating (ours), gamma 0.1"], ROUNDING),
}


def problem(name: str, seed: int) -> dict[str, Any]:
    """A configuration but for its algorithm."""
    return {
        "seed": seed,
        "clients": CLIENTS,
        "rounds": 200,
        "topology": {"kind": "erdos-renyi", "p": 0.2},
        "data": {"rotations": PROBLEMS[name], "reduced_clients": 0.5, "reduced_to": 0.2},
        "training": {"work": "full", "alpha": 0.5},
        "evaluation": {"every": 0},
    }


def rows(name: str, seeds: int, out: Path) -> Iterator[tuple[str, ...]]:
    """Runs what is not there yet."""
    for method, folders in run_grid(out / name, seeds, partial(problem, name), algorithms(METHODS)).items():
        runs = [summarize(folder) for folder in folders]
        means = [100 * each.final.mean for each in runs if each.final]
        worst = [100 * each.final.worst_10 for each in runs if each.final]
        sent = statistics.mean(each.traffic.payload_bytes for each in runs) / 1e6
        yield method, over_seeds(means), f"{statistics.mean(worst):.1f}", f"{sent:.2f}"


def study_methods(arguments: argparse.Namespace, accuracy: str) -> str:
    header = f"{accuracy}|worst 10%|payload MB"
    return "\n\n".join(table(f"{name}|{header}", rows(name, arguments.seeds, arguments.out)) for name in PROBLEMS)


def study_tuned(arguments: argparse.Namespace, accuracy: str) -> str:
    study = Study(arguments.out, partial(problem, "upright"), TUNED, max)
    found = study.results(arguments.seeds)
    write_runs(study.runs, "collaboration")
    return table(f"method|lambda|{accuracy}|against local|clients with little data|payload MB", comparison(found))


def study_codecs(arguments: argparse.Namespace, accuracy: str) -> str:
    methods = {
        f"{method}|{codec}": {"algorithm": algorithm, "transport": transport}
        for method, (algorithm, codecs) in TALKS.items()
        for codec, transport in ({"none": {}} | codecs).items()
    }
    folders = run_grid(arguments.out, arguments.seeds, partial(problem, "upright"), methods)
    rows = []
    for name, each in folders.items():
        method, codec = name.split("|")
        base = folders[f"{method}|none"]
        results, plain = [[read(folder) for folder in some] for some in (each, base)]
        change = "" if codec == "none" else against(plain, results, 100)
        wire, whole = (
            statistics.mean(summarize(folder).traffic.wire_bytes for folder in some) for some in (each, base)
        )
        sent = f"{payload(results):.2f}", f"{wire / 1e6:.2f}", f"{100 * wire / whole:.0f}"
        rows.append((method, codec, percent(results), change, *sent))
    return table(f"method|codec|{accuracy}|against none, points|payload MB|wire MB|wire, % of none", rows)


STUDIES = {
    "methods": (study_methods, "digits"),
    "tuned": (study_tuned, "collaboration"),
    "codecs": (study_codecs, "codecs"),
}


def main() -> None:
    run_study("digits", __doc__, STUDIES)


if __name__ == "__main__":
    main()
