"""Clients that look for better neighbours: how many of them they find, what it brings, and what it costs.

The problem of benchmarks/selective.py with four groups on an Erdős–Rényi graph with p = 0.2: selective sheaf on the
graph as it is, and with `seek`, where the graph is only the start; beside it the groups told on that graph, and on the
complete one.
"""

import statistics
from pathlib import Path
from typing import Any

from common import options, table, write
from selective import ON, SELECTIVE, like, problem, within_groups
from study import over_seeds, percent, read, run_several

from sheafgossip.launcher.config.sections import validate
from sheafgossip.metrics import open_run

GROUPS, P = 4, 0.2
METHODS: dict[str, dict[str, Any]] = {
    "dFedU": {"name": "dfedu", "lam": 0.3},
    **SELECTIVE,
    "selective, seeking": SELECTIVE["selective, quiet edges"] | {"seek": True},
    "groups told": ON | {"gamma": 0.1},
    "groups told, complete graph": ON | {"gamma": 0.1, "lam": 0.3},
}


def edges(folder: Path, moment: str) -> tuple[float, float]:
    """The edges used in the first ("min") or last ("max") round: the share between alike, in percent; how many."""
    ends = open_run(folder).sql(f"SELECT node, neighbour FROM edge WHERE round = (SELECT {moment}(round) FROM edge)")
    return 100 * statistics.mean(like((i, j), GROUPS) for i, j in ends.itertuples(index=False)), len(ends) / 2


def main() -> None:
    arguments = options(__doc__, seeds=5, out="bench-seeking").parse_args()
    out = arguments.out
    folders: dict[str, list[Path]] = {name: [] for name in METHODS}
    wanted = {}
    for seed in range(arguments.seeds):
        for number, (name, algorithm) in enumerate(METHODS.items()):
            tree = problem(GROUPS, P, seed) | {"name": f"{name}, seed {seed}", "algorithm": algorithm}
            if name == "groups told":
                tree["topology"] = within_groups(tree, GROUPS, out / "graphs" / f"{seed}.edges")
            if name == "groups told, complete graph":
                complete = tree | {"topology": {"kind": "complete"}}
                tree["topology"] = within_groups(complete, GROUPS, out / "graphs" / "complete.edges")
            folders[name].append(out / f"{number}-{seed}")
            wanted[folders[name][-1]] = validate(tree)
    run_several(wanted)
    full = [read(folder).payload_mb for folder in folders["dFedU"]]
    rows = []
    for name, each in folders.items():
        results = [read(folder) for folder in each]
        found = [[edges(folder, moment) for folder in each] for moment in ("min", "max")]
        alike = [over_seeds((share for share, _ in ends), 0) for ends in found]
        many = [f"{statistics.mean(number for _, number in ends):.1f}" for ends in found]
        share = 100 * statistics.mean(r.payload_mb / mb for r, mb in zip(results, full, strict=True))
        rows.append((name, percent(results), *alike, *many, f"{share:.1f}"))
    header = (
        f"method|accuracy %, mean ± s.e. over {arguments.seeds} seeds|edges between alike %, at first|at the end"
        "|edges at first|at the end|payload, % of dFedU's"
    )
    write("seeking", f"`python benchmarks/seeking.py --seeds {arguments.seeds}`", table(header, rows))


if __name__ == "__main__":
    main()
