"""How soon clients are ready, and how much memory they take.

    .venv/bin/python benchmarks/scale.py [--data-root FOLDER_WITH_MNIST_FILES] [--thousands]

Runs the command line as a user would: 20 and 200 logistic clients on rotated digits (Erdős–Rényi), where MNIST is at
hand 40 clients with the CNN of 34,826 parameters, and with --thousands 1,000 and 3,000 logistic clients on a
Barabási–Albert graph (m = 2). Seconds until ready count from the start of the command to the moment when every client
has met its neighbours. Total memory (PSS) is the sum of what every process, the launcher's included, says at its end;
pages that several share are counted once.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LOGISTIC = """
clients = {clients}
rounds = 20
[topology]
p = {p}
[data]
rotations = [0, 90, 180, 270]
[training]
alpha = 0.5
[algorithm]
name = "dfedu"
lam = 0.03
"""
THOUSANDS = """
clients = {clients}
rounds = {rounds}
[topology]
kind = "barabasi-albert"
m = 2
[data]
rotations = [0, 90, 180, 270]
partition = "overlapping"
samples_each = 20
[evaluation]
every = 0
[algorithm]
name = "d-psgd"
"""
CNN = """
clients = 40
rounds = 3
[topology]
p = 0.15
[data]
dataset = "mnist"
root = "{root}"
rotations = [0, 90, 180, 270]
reduced_clients = 0.5
[model]
kind = "cnn"
[training]
work = "epochs"
alpha = 0.05
[algorithm]
name = "dfedu"
"""


CLI = (sys.executable, "-m", "sheafgossip.launcher.cli")


def measure(name: str, text: str) -> str:
    """A row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        config, out = Path(folder) / "config.toml", Path(folder) / "run"
        config.write_text(text)
        command = [*CLI, "run", str(config), "--out", str(out), "-q"]
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while not is_ready(out / "run.sqlite") and process.poll() is None:
            time.sleep(0.05)
        ready = time.monotonic() - started
        if process.wait() != 0:
            raise SystemExit(f"{name}: the run failed")
        total = time.monotonic() - started
        records = sqlite3.connect(out / "run.sqlite")
        uss = [row[0] / 1e6 for row in records.execute(LAST_USS)]
        total_pss = sum(row[0] for row in records.execute(LAST_PSS)) / 1e9
        clients, rounds = records.execute("SELECT count(DISTINCT node), max(round) FROM round").fetchone()
        records.close()
    memory = f"{statistics.median(uss):.1f} | {max(uss):.1f} | {total_pss:.2f}"
    return f"| {name} | {clients} | {ready:.1f} | {rounds} | {total:.1f} | {memory} |"


def is_ready(database: Path) -> bool:
    """The launcher's word that all clients have met reaches the database within half a second."""
    try:
        records = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        return bool(records.execute("SELECT count(*) FROM event WHERE kind = 'start'").fetchone()[0])
    except sqlite3.Error:
        return False


LAST_USS = """SELECT uss FROM resource JOIN (SELECT node, max(rowid) AS last FROM resource GROUP BY node) USING (node)
              WHERE resource.rowid = last AND node >= 0"""
LAST_PSS = """SELECT pss FROM resource JOIN (SELECT node, max(rowid) AS last FROM resource GROUP BY node) USING (node)
              WHERE resource.rowid = last"""


def seconds_of(command: list[str]) -> float:
    started = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-root", type=Path, help="folder with the MNIST files")
    parser.add_argument("--thousands", action="store_true", help="1,000 and 3,000 clients too; the latter take 23 GB")
    arguments = parser.parse_args()
    help_s = statistics.median(seconds_of([*CLI, "--help"]) for _ in range(5))
    lines = [
        "| run | clients | ready after s | rounds | whole command s | own memory (USS) MB, median | largest | PSS GB |",
        "|---|---|---|---|---|---|---|---|",
        measure("logistic, rotated digits", LOGISTIC.format(clients=20, p=0.3)),
        measure("logistic, rotated digits", LOGISTIC.format(clients=200, p=0.05)),
    ]
    if arguments.thousands:
        lines.append(measure("logistic, rotated digits", THOUSANDS.format(clients=1000, rounds=20)))
        lines.append(measure("logistic, rotated digits", THOUSANDS.format(clients=3000, rounds=5)))
    if arguments.data_root:
        lines.append(measure("CNN, rotated MNIST", CNN.format(root=arguments.data_root.resolve())))
    text = "\n".join([*lines, "", f"`sheafgossip --help` takes {help_s:.2f} s."])
    target = Path(__file__).parent / "results" / "scale.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text(f"Made by `make bench-scale`.\n\n{text}\n")
    print(text)


if __name__ == "__main__":
    main()
