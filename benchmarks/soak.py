"""Whether anything grows over a very long run: memory, open files and threads of every process.

64 clients take tiny steps for 5,000 rounds: as many exchanges as a day of rounds of 17 s. Every few seconds the kernel
is asked about every process of the run. Memory may settle in the first third; what counts is the growth from the
second third to the last one, of what was usual in each (the median: a file may be open for the moment of a look).
"""

import subprocess
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from statistics import median

import numpy as np
import psutil
from common import new_folder, options, run_command, write

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


def role(process: psutil.Process, launcher: psutil.Process) -> str:
    if process == launcher:
        return "launcher"
    if "collector" in " ".join(process.cmdline()):
        return "collector"
    return "fork server" if process.ppid() == launcher.pid else "client"


def watch(command: Sequence[str]) -> dict[str, np.ndarray]:
    """Looks at every process of the command, by its name and number: own bytes, open files, threads, a row a look."""
    seen: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    launcher = psutil.Popen(command, stdout=subprocess.DEVNULL)
    while launcher.poll() is None:
        for process in [launcher, *launcher.children(recursive=True)]:
            with suppress(psutil.Error), process.oneshot():  # it may just have ended
                look = process.memory_full_info().uss, process.num_fds(), process.num_threads()
                seen[f"{role(process, launcher)} {process.pid}"].append(look)
        time.sleep(EVERY_S)
    if launcher.returncode:
        raise SystemExit("the run failed")
    return {name: np.array(looks) for name, looks in seen.items() if len(looks) >= 6}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5000)
    arguments = parser.parse_args()
    with new_folder() as folder:
        command, _ = run_command(folder, CONFIG.format(rounds=arguments.rounds))
        started = time.monotonic()
        seen = watch(command)
        seconds = time.monotonic() - started
    growth, files, threads = {}, {}, {}
    for name, looks in seen.items():
        third = len(looks) // 3
        settled = np.median(looks[third : 2 * third], axis=0)
        last = np.median(looks[2 * third : -1], axis=0)  # the very last may be leaving
        growth[name] = last[0] / settled[0]
        _, files[name], threads[name] = last - settled
    worst = max(growth, key=lambda name: growth[name])
    whose = worst.rsplit(" ", 1)[0]
    flat = growth[worst] <= GROWTH and max(files.values()) <= 0 and max(threads.values()) <= 0
    for name in sorted(seen, key=lambda name: -growth[name])[:4]:
        series = " ".join(f"{own / 1e6:.1f}" for own in seen[name][:: max(1, len(seen[name]) // 12), 0])
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
