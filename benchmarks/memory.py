"""The memory that the processes of a run report, compared with what the machine lost to them.

Each repeat starts a run of many rounds, stops all its processes (SIGSTOP) once every client has completed three of
them, reads both figures, and ends the run. What the machine lost is its available memory (MemAvailable) with the run,
against the mean of before and after. MemAvailable counts mapped files as available, so only the other parts of PSS are
compared; it includes page tables and stacks, which are read from /proc/PID/status (VmPTE; 16 kB a thread). What other
processes took or freed meanwhile is read likewise and subtracted. On a quiet machine both sides should agree within
5 %; on a busy one the figures mean little.
"""

import contextlib
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from common import count, options, run_command, table

CONFIG = """
clients = {clients}
rounds = 1000000
topology = {{ kind = "ring" }}
training = {{ work = "steps" }}
algorithm = {{ name = "d-psgd" }}
evaluation = {{ every = 0 }}
"""
RUNS = Path(__file__).parents[1] / "runs"
WARM_ROUNDS = 3
TIMEOUT_S = 180
SETTLE_S = 2.0  # the kernel brings its counters up to date once a second
STACK_BYTES = 16 << 10


class Machine(NamedTuple):
    """The machine at a moment: bytes available, and the memory of some processes and of all others, as ``reported``."""

    available: int
    chosen: np.ndarray
    others: np.ndarray


def measure(clients: int) -> tuple[np.ndarray, int, int]:
    """The run's memory, what the machine lost to it, and what of that loss was others' and was taken off."""
    RUNS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=RUNS, prefix="bench-memory-") as folder:  # /tmp may be memory itself
        command, run = run_command(Path(folder), CONFIG.format(clients=clients))
        before = look()
        launcher = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        processes: list[psutil.Process] = []
        try:
            wait_for_round(launcher, run / "run.sqlite", clients)
            root = psutil.Process(launcher.pid)
            processes = [root, *root.children(recursive=True)]
            for process in processes:
                process.send_signal(signal.SIGSTOP)
            during = look({process.pid for process in processes})
        finally:
            for process in processes:
                process.send_signal(signal.SIGCONT)
            launcher.send_signal(signal.SIGTERM)
            launcher.wait(timeout=TIMEOUT_S)
        after = look()
    lost = (before.available + after.available) / 2 - during.available
    rest = [moment.others[:2].sum() for moment in (before, during, after)]
    taken_by_others = rest[1] - (rest[0] + rest[2]) / 2
    return during.chosen, round(lost - taken_by_others), round(taken_by_others)


def wait_for_round(launcher: subprocess.Popen, database: Path, clients: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if launcher.poll() is not None:
            raise SystemExit(f"the run ended with {launcher.returncode}")
        time.sleep(0.25)
        if count(database, f"SELECT count(*) FROM round WHERE round = {WARM_ROUNDS}") >= clients:
            return
    raise SystemExit(f"round {WARM_ROUNDS} was not reached within {TIMEOUT_S} s")


def look(chosen: Collection[int] = ()) -> Machine:
    time.sleep(SETTLE_S)
    free = [available()]
    found = np.zeros((2, 3), int)
    for process in psutil.pids():
        with contextlib.suppress(OSError):  # it has ended, or is none of ours
            found[int(process in chosen)] += reported(process)
    free.append(available())  # looking takes a moment, in which others go on
    return Machine(sum(free) // 2, found[1], found[0])


def available() -> int:
    """MemAvailable, and the free pages that wait in lists of each core."""
    lists = re.findall(r"^ +count: +(\d+)$", Path("/proc/zoneinfo").read_text(), re.MULTILINE)
    return fields(Path("/proc/meminfo"))["MemAvailable"] + sum(map(int, lists)) * resource.getpagesize()


def reported(process: int) -> tuple[int, int, int]:
    """Bytes: PSS that is not from files, what the kernel keeps for it, PSS that is from files."""
    folder = Path("/proc") / str(process)
    memory, status = fields(folder / "smaps_rollup"), fields(folder / "status")
    threads = sum(1 for _ in (folder / "task").iterdir())
    own = memory.get("Pss_Anon", 0) + memory.get("Pss_Shmem", 0)
    return own, status.get("VmPTE", 0) + threads * STACK_BYTES, memory.get("Pss_File", 0)


def fields(path: Path) -> dict[str, int]:
    """{name: bytes} of the lines that end in kB."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[-2]) * 1024 for words in lines if words[-1:] == ["kB"]}


def main() -> None:
    parser = options(__doc__, repeats=3)
    parser.add_argument("--clients", type=int, default=40)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no run is left behind
    header = "MB|PSS: files|PSS: rest|kernel|others|lost|rest/lost|(rest + kernel)/lost"
    ratios, rows = [], []
    for number in range(1, arguments.repeats + 1):
        (own, kernel, from_files), lost, others = measure(arguments.clients)
        ratios.append((own + kernel) / lost)
        sizes = [f"{size / 1e6:,.1f}" for size in (from_files, own, kernel, others, lost)]
        rows.append((f"repeat {number}", *sizes, f"{own / lost:.3f}", f"{ratios[-1]:.3f}"))
    print(table(header, rows))
    print(f"median of (rest + kernel)/lost: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
