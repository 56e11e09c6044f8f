"""Writes benchmarks/README.md: what `make bench` measured last, on one page."""

from __future__ import annotations

import os
import platform
from pathlib import Path

HERE = Path(__file__).parent
HEAD = """# What a run costs

Made by `make bench` on {machine}. Each figure stands beside its floor measured in the same minutes, or beside the aim.
The other benchmarks are listed by `make help`; their results are in [results/](results/).
"""
PARTS = {
    "scale": "Start-up and memory",
    "efficiency": "CPU time of whole runs against the gradient steps alone",
    "ring": "A small run from start to end",
    "exchange": "Exchange rounds a second against bare pyzmq",
    "soak": "A very long run",
}


def main() -> None:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    page = [HEAD.format(machine=machine)]
    for name, title in PARTS.items():
        if (result := HERE / "results" / f"{name}.md").exists():
            page.append(f"## {title}\n\n{result.read_text()}")
    (HERE / "README.md").write_text("\n".join(page))


if __name__ == "__main__":
    main()
