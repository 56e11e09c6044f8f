"""What five viewers of ``watch --web`` cost a run, and how old what they see is. Writes benchmarks/results/watching.md.

A run goes on; in turns nobody and five viewers look at it, as the page does, once a second. The run's CPU time is that
of all its processes; each turn with viewers is compared with the two beside it, as the machine's speed drifts. Only the
collector shares anything with viewers, the database. What a viewer is told is as old as the first record that it does
not tell of."""

import json
import os
import re
import sqlite3
import statistics
import subprocess
import threading
import time
import urllib.request
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psutil
from common import CLI, new_folder, options, run_command, spread, table, write

CONFIG = """
clients = 8
rounds = 1_000_000
topology.kind = "ring"
algorithm.name = "d-psgd"
evaluation.every = 10
{more}
"""
RUNS = {
    "a run that trains": 'model = { kind = "mlp", hidden = [256] }\ntraining = { work = "steps", steps = 100 }',
    "one that does nearly nothing but write records": "data.samples = 800",
}
VIEWERS, TURN_S, EVERY_S = 5, 5.0, 1.0


class Committed:
    """When the slowest client's last round stood on record, followed from outside."""

    def __init__(self, folder: Path):
        self.rounds, self.moments, self._ended = [0], [time.monotonic()], threading.Event()
        self._folder = folder
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        query = "SELECT min(last) FROM (SELECT max(round) AS last FROM round WHERE node >= 0 GROUP BY node)"
        with closing(sqlite3.connect(f"file:{self._folder}/run.sqlite?mode=ro", uri=True)) as records:
            while not self._ended.wait(0.1):
                last = records.execute(query).fetchone()[0] or 0
                if last > self.rounds[-1]:
                    self.rounds.append(last)
                    self.moments.append(time.monotonic())

    def age(self, told: int, asked: float) -> float:
        """Seconds since there was more on record than is told; 0: there was not."""
        later = bisect_right(self.rounds, told)
        return max(0.0, asked - self.moments[later]) if later < len(self.rounds) else 0.0


def look(address: str, since: int, until: float, told: list[tuple[int, float]]) -> int:
    """What a page asks; ``told`` are rounds of the slowest client, and when they were told. Returns what it knows."""
    while time.monotonic() < until:
        with urllib.request.urlopen(f"{address}news?since={since}") as answer:
            news = json.load(answer)
        if found := re.search(r"round (\d+)", news["text"]):
            told.append((int(found[1]), time.monotonic()))
        since = news["version"]
        time.sleep(0 if news["more"] else EVERY_S)
    return since


def main() -> None:
    arguments = options(__doc__, repeats=30).parse_args()
    load, rows = os.getloadavg()[0], []
    for name, more in RUNS.items():
        rows += [(f"{name}: {what}", *rest) for what, *rest in measure(CONFIG.format(more=more), arguments.repeats)]
    made_by = f"`python benchmarks/watching.py --repeats {arguments.repeats}`, load {load:.0f} on 2 cores before"
    write("watching", made_by, table("|measured|aim", rows))


def measure(config: str, repeats: int) -> list[tuple[str, str, str]]:
    """Rows of the table."""
    # CPU ms of a round, turn by turn: without viewers first and last, and with them in between
    costs, of_collector = list[float](), list[float]()
    told: list[tuple[int, float]] = []
    with new_folder() as root:
        words, folder = run_command(root, config)
        run = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        watching = subprocess.Popen([*CLI, "watch", str(folder), "--web"], stdout=subprocess.PIPE, text=True)
        try:
            address = watching.stdout.readline().strip()
            while not (folder / "state" / "round-000000").exists() and run.poll() is None:
                time.sleep(0.1)
            committed, program = Committed(folder), psutil.Process(watching.pid)
            while committed.rounds[-1] < 20 and run.poll() is None:
                time.sleep(0.1)
            processes = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
            collector = [each for each in processes if "sheafgossip.metrics.collector" in each.cmdline()]
            watched_s, cpu_s, known = 0.0, 0.0, [0] * VIEWERS
            for turn in range(2 * repeats + 1):
                viewed = turn % 2 == 1
                before, spent, collected, its = committed.rounds[-1], *map(_cpu, (processes, collector, [program]))
                until = time.monotonic() + TURN_S
                with ThreadPoolExecutor(VIEWERS) as viewers:
                    looks = [viewers.submit(look, address, since, until, told) for since in known if viewed]
                    time.sleep(TURN_S)
                    done = committed.rounds[-1] - before
                    costs.append(1e3 * (_cpu(processes) - spent) / done)
                    of_collector.append(1e3 * (_cpu(collector) - collected) / done)
                    known = [look.result() for look in looks] or known
                watched_s, cpu_s = watched_s + TURN_S * viewed, cpu_s + (_cpu([program]) - its) * viewed
        finally:
            for process in (run, watching):
                process.terminate()
                process.wait()
    rate = committed.rounds[-1] / (committed.moments[-1] - committed.moments[0])
    ages = sorted(committed.age(*each) for each in told)
    more = [
        100 * (viewed / statistics.mean(beside) - 1)
        for viewed, *beside in zip(costs[1::2], costs[:-2:2], costs[2::2], strict=True)
    ]
    error = 1.25 * statistics.stdev(more) / len(more) ** 0.5  # of the median of values that are about normal
    return [
        ("rounds a second", f"{rate:.0f}", ""),
        ("CPU ms of the run for a round, nobody looks", spread(costs[::2], ".2f", " to "), ""),
        (f"the same with {VIEWERS} viewers", spread(costs[1::2], ".2f", " to "), ""),
        ("more, %", f"{statistics.median(more):+.1f} ± {error:.1f}", "1"),
        ("CPU ms of the collector for a round, nobody looks", spread(of_collector[::2], ".2f", " to "), ""),
        (f"the same with {VIEWERS} viewers", spread(of_collector[1::2], ".2f", " to "), ""),
        ("age of what a viewer is told, s: median", f"{statistics.median(ages):.2f}", ""),
        ("the same, 99 of 100", f"{ages[int(0.99 * len(ages))]:.2f}", "2"),
        ("cores that serving takes meanwhile", f"{cpu_s / watched_s:.2f}", "0.2"),
    ]


def _cpu(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


if __name__ == "__main__":
    main()
