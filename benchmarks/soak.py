"""Whether anything grows over a very long run: memory, open files and threads of every process.

    .venv/bin/python benchmarks/soak.py [--rounds 5000]

64 clients take tiny steps for 5,000 rounds: as many exchanges as a day of rounds of 17 s. Every few seconds the kernel
is asked about every process of the run. Memory may settle in the first third; what counts is the growth from there on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

CONFIG = """
clients = 64
rounds = {rounds}
[topology]
p = 0.1
[data]
rotations = [0, 90, 180, 270]
[training]
work = "steps"
steps = 1
batch_size = 4
[evaluation]
every = 500
[algorithm]
name = "sheaf-fmtl"
gamma = 0.01
"""
EVERY_S = 3.0
GROWTH = 1.02
"""Of a process's own memory: as much as a few more pages of an allocator."""


@dataclass(frozen=True)
class Look:
    own_bytes: int
    files: int
    threads: int


def look(process: psutil.Process) -> Look:
    with process.oneshot():
        return Look(process.memory_full_info().uss, process.num_fds(), process.num_threads())


def watch(command: Sequence[str]) -> dict[int, list[Look]]:
    """What was seen of every process of the command, by its number."""
    seen: defaultdict[int, list[Look]] = defaultdict(list)
    launcher = psutil.Popen(command, stdout=subprocess.DEVNULL)
    while launcher.poll() is None:
        for process in [launcher, *launcher.children(recursive=True)]:
            try:
                seen[process.pid].append(look(process))
            except psutil.Error:  # it has just ended
                continue
        time.sleep(EVERY_S)
    if launcher.returncode:
        raise SystemExit("the run failed")
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.toml"
        config.write_text(CONFIG.format(rounds=arguments.rounds))
        command = [sys.executable, "-m", "sheafgossip.launcher.cli", "run", str(config), "--out", f"{folder}/run", "-q"]
        started = time.monotonic()
        seen = {pid: looks for pid, looks in watch(command).items() if len(looks) >= 6}
        seconds = time.monotonic() - started
    growth, files, threads = [], [], []
    for looks in seen.values():
        settled, last = looks[len(looks) // 3], looks[-2]  # the very last may be of a process that is leaving
        growth.append(last.own_bytes / settled.own_bytes)
        files.append(last.files - settled.files)
        threads.append(last.threads - settled.threads)
    flat = max(growth) <= GROWTH and max(files) <= 0 and max(threads) <= 0
    text = (
        f"{len(seen)} processes, {arguments.rounds} rounds in {seconds:.0f} s, {min(map(len, seen.values()))} looks or "
        f"more at each.\nFrom the first third to the end: own memory x {max(growth):.3f} at most (median "
        f"{sorted(growth)[len(growth) // 2]:.3f}), open files {max(files):+d}, threads {max(threads):+d}: "
        f"{'flat' if flat else 'NOT FLAT'}."
    )
    print(text)
    (Path(__file__).parent / "results" / "soak.md").write_text(f"Made by `make soak`.\n\n{text}\n")
    raise SystemExit(0 if flat else 1)


if __name__ == "__main__":
    main()
