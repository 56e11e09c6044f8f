"""Whether anything grows over a very long run: memory, open files and threads of every process.

64 clients take tiny steps for 5,000 rounds: as many exchanges as a day of rounds of 17 s. Every few seconds the kernel
is asked about every process of the run. Memory may settle in the first third; what counts is the growth from the
second third to the last one, of what was usual in each (the median: a file may be open for the moment of a look).
"""

import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median

import psutil
from common import CLI, options, write

CONFIG = """
clients = 64
rounds = {rounds}
topology = {{ p = 0.1 }}
data = {{ rotations = [0, 90, 180, 270] }}
training = {{ work = "steps", steps = 1, batch_size = 4 }}
evaluation = {{ every = 500 }}
algorithm = {{ name = "sheaf-fmtl", gamma = 0.01 }}
"""
EVERY_S = 3.0
GROWTH = 1.02
"""Tolerated growth of a process's own memory: a few more pages of an allocator."""


@dataclass(frozen=True)
class Look:
    own_bytes: float
    files: float
    threads: float


def look(process: psutil.Process) -> Look:
    with process.oneshot():
        return Look(process.memory_full_info().uss, process.num_fds(), process.num_threads())


def role(process: psutil.Process, launcher: psutil.Process) -> str:
    if process == launcher:
        return "launcher"
    if "collector" in " ".join(process.cmdline()):
        return "collector"
    return "fork server" if process.ppid() == launcher.pid else "client"


def usual(looks: Sequence[Look]) -> Look:
    return Look(*(median(getattr(look, field.name) for look in looks) for field in fields(Look)))


def watch(command: Sequence[str]) -> dict[str, list[Look]]:
    """What was seen of every process of the command, by its name and number."""
    seen: defaultdict[str, list[Look]] = defaultdict(list)
    launcher = psutil.Popen(command, stdout=subprocess.DEVNULL)
    while launcher.poll() is None:
        for process in [launcher, *launcher.children(recursive=True)]:
            try:
                seen[f"{role(process, launcher)} {process.pid}"].append(look(process))
            except psutil.Error:  # it has just ended
                continue
        time.sleep(EVERY_S)
    if launcher.returncode:
        raise SystemExit("the run failed")
    return seen


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.toml"
        config.write_text(CONFIG.format(rounds=arguments.rounds))
        command = [*CLI, "run", str(config), "--out", f"{folder}/run", "-q"]
        started = time.monotonic()
        seen = {name: looks for name, looks in watch(command).items() if len(looks) >= 6}
        seconds = time.monotonic() - started
    growth, files, threads = {}, {}, {}
    for name, looks in seen.items():
        third = len(looks) // 3
        settled, last = usual(looks[third : 2 * third]), usual(looks[2 * third : -1])  # the very last may be leaving
        growth[name] = last.own_bytes / settled.own_bytes
        files[name] = last.files - settled.files
        threads[name] = last.threads - settled.threads
    worst = max(growth, key=lambda name: growth[name])
    whose = worst.rsplit(" ", 1)[0]
    flat = growth[worst] <= GROWTH and max(files.values()) <= 0 and max(threads.values()) <= 0
    for name in sorted(seen, key=lambda name: -growth[name])[:4]:
        series = " ".join(f"{look.own_bytes / 1e6:.1f}" for look in seen[name][:: max(1, len(seen[name]) // 12)])
        print(f"{name}: x {growth[name]:.3f}, open files {files[name]:+.0f}; MB over time: {series}")
    text = (
        f"{len(seen)} processes, {arguments.rounds} rounds in {seconds:.0f} s, {min(map(len, seen.values()))} looks or "
        f"more at each.\nFrom the second third to the last: own memory x {growth[worst]:.3f} at most (the "
        f"{whose}; median {median(growth.values()):.3f}), open files {max(files.values()):+.0f}, threads "
        f"{max(threads.values()):+.0f}: {'flat' if flat else 'NOT FLAT'}."
    )
    write("soak", "`make soak`", text)
    raise SystemExit(0 if flat else 1)


if __name__ == "__main__":
    main()
