"""Codecs: what each of them saves of the bytes, and what it costs in accuracy.

The upright digits of benchmarks/digits.py: twenty clients, 200 rounds. A few ways of talking to neighbours, each with
codecs that it supports.
"""

import statistics
from functools import partial
from pathlib import Path
from typing import Any

from common import options, table, write
from digits import METHODS, problem
from study import against, percent, read, run_grid

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
    arguments = options(__doc__, seeds=3, out="bench-codecs").parse_args()
    methods = {
        (method, codec): {"algorithm": algorithm, "transport": transport}
        for method, (algorithm, codecs) in TALKS.items()
        for codec, transport in codecs.items()
    }
    named = {", ".join(key): changes for key, changes in methods.items()}
    found = run_grid(arguments.out, arguments.seeds, partial(problem, "upright"), named)
    folders = dict(zip(methods, found.values(), strict=True))
    rows = []
    for (method, codec), each in folders.items():
        results, plain = [[read(folder) for folder in some] for some in (each, folders[method, "none"])]
        change = "" if codec == "none" else against(plain, results, 100)
        sent, wire = _megabytes(each)
        share = 100 * wire / _megabytes(folders[method, "none"])[1]
        rows.append((method, codec, percent(results), change, f"{sent:.2f}", f"{wire:.2f}", f"{share:.0f}"))
    accuracy = f"accuracy %, mean ± s.e. over {arguments.seeds} seeds"
    header = f"method|codec|{accuracy}|against none, points|payload MB|wire MB|wire, % of none"
    write("codecs", f"`python benchmarks/codecs.py --seeds {arguments.seeds}`", table(header, rows))


def _megabytes(folders: list[Path]) -> tuple[float, float]:
    """Payload and wire, the mean of these runs."""
    traffic = [summarize(folder).traffic for folder in folders]
    return (
        statistics.mean(each.payload_bytes for each in traffic) / 1e6,
        statistics.mean(each.wire_bytes for each in traffic) / 1e6,
    )


if __name__ == "__main__":
    main()
