"""Codecs: what each of them saves of the bytes, and what it costs in accuracy.

    .venv/bin/python benchmarks/codecs.py [--seeds 3] [--out FOLDER]

The upright digits of benchmarks/digits.py: twenty clients, 200 rounds. A few ways of talking to neighbours, each with
codecs that it bears. Writes benchmarks/results/codecs.md. Runs that are already in --out are not repeated.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from digits import METHODS, problem
from study import RESULTS, against, over_seeds, read, run_several

from sheafgossip.launcher.config.sections import validate
from sheafgossip.metrics.summary import summarize

Codecs = dict[str, dict[str, Any]]
"""{name: the [transport] section}"""

NONE: Codecs = {"none": {}}
ROUNDING = {name: {"codec": name} for name in ("float16", "bfloat16", "int8")}
ENTRIES = {f"top-k, keep {keep}": {"codec": "top-k", "keep": keep} for keep in (0.25, 0.1)}
TALKS: dict[str, tuple[dict[str, Any], Codecs]] = {
    "dFedU": (METHODS["dFedU"], NONE | ROUNDING | ENTRIES),
    "dFedU, lambda 0.1": ({"name": "dfedu", "lam": 0.1}, NONE | ENTRIES),
    "D-PSGD": (METHODS["D-PSGD"], NONE | {"float16": ROUNDING["float16"], "int8": ROUNDING["int8"]}),
    "shared + rotating (ours), gamma 0.1": (METHODS["shared + rotating (ours), gamma 0.1"], NONE | ROUNDING),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-codecs"), help="folder of the runs")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    folders: dict[tuple[str, str], list[Path]] = {}
    wanted = {}
    for number, (method, (algorithm, codecs)) in enumerate(TALKS.items()):
        for place, (codec, transport) in enumerate(codecs.items()):
            folders[method, codec] = [out / f"{number}-{place}-{seed}" for seed in range(arguments.seeds)]
            for seed, folder in enumerate(folders[method, codec]):
                tree = {"name": f"{method}, {codec}, seed {seed}", "algorithm": algorithm, "transport": transport}
                wanted[folder] = validate(problem("upright", seed) | tree)
    run_several(wanted)
    lines = [
        f"| method | codec | accuracy %, mean ± s.e. over {arguments.seeds} seeds | against none, points"
        " | payload MB | wire MB | wire, % of none |",
        "|---|---|---|---|---|---|---|",
    ]
    for (method, codec), each in folders.items():
        results, plain = [read(folder) for folder in each], [read(folder) for folder in folders[method, "none"]]
        accuracy = over_seeds(100 * result.mean for result in results)
        change = "" if codec == "none" else against(plain, results, 100)
        payload, wire = _megabytes(each)
        share = 100 * wire / _megabytes(folders[method, "none"])[1]
        lines.append(f"| {method} | {codec} | {accuracy} | {change} | {payload:.2f} | {wire:.2f} | {share:.0f} |")
    text = "\n".join(lines)
    (RESULTS / "codecs.md").write_text(f"Made by `python benchmarks/codecs.py --seeds {arguments.seeds}`.\n\n{text}\n")
    print(text)


def _megabytes(folders: list[Path]) -> tuple[float, float]:
    """Of payload and wire, the mean of these runs."""
    traffic = [summarize(folder).traffic for folder in folders]
    return (
        statistics.mean(each.payload_bytes for each in traffic) / 1e6,
        statistics.mean(each.wire_bytes for each in traffic) / 1e6,
    )


if __name__ == "__main__":
    main()
