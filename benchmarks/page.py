"""Writes benchmarks/README.md: what each part of `make bench` measured last, on one page."""

import os
import platform

from common import HERE, RESULTS, options

HEAD = """# What a run costs

Put together on {machine} from the last results of each part, which names the command that made it;
`make bench` measures them all anew. Parts may differ in age, and a machine that does other work at the time gives worse
figures: ratios beside a floor, measured in the same minutes, hold better than seconds. The other benchmarks are listed
by `make help`; their results are in [results/](results/).
"""
PARTS = {
    "scale": "Start-up and memory",
    "efficiency": "CPU time of whole runs against the gradient steps alone",
    "ring": "A small run from start to end",
    "exchange": "Exchange rounds a second against bare pyzmq",
    "soak": "A very long run",
}


def main() -> None:
    options(__doc__).parse_args()
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    page = [HEAD.format(machine=machine)]
    for name, title in PARTS.items():
        if (result := RESULTS / f"{name}.md").exists():
            page.append(f"## {title}\n\n{result.read_text()}")
    (HERE / "README.md").write_text("\n".join(page))


if __name__ == "__main__":
    main()
