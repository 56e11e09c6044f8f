"""How soon clients are ready, and how much memory each takes of its own.

    .venv/bin/python benchmarks/scale.py [--data-root FOLDER_WITH_MNIST_FILES]

Runs the command line as a user would: 200 logistic clients on rotated digits (Erdős–Rényi 0.05, 20 rounds), and, where
MNIST is at hand, 40 clients with the CNN of 34,826 parameters (Erdős–Rényi 0.15, 3 rounds). Seconds until ready count
from the start of the command to the moment when every client has met its neighbours.
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
clients = 200
rounds = 20
[topology]
p = 0.05
[data]
rotations = [0, 90, 180, 270]
[training]
alpha = 0.5
[algorithm]
name = "dfedu"
lam = 0.03
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


def measure(name: str, text: str) -> str:
    """A row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        config, out = Path(folder) / "config.toml", Path(folder) / "run"
        config.write_text(text)
        command = [sys.executable, "-m", "sheafgossip.launcher.cli", "run", str(config), "--out", str(out), "-q"]
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
        clients, rounds = records.execute("SELECT count(DISTINCT node), max(round) FROM round").fetchone()
        records.close()
    return (
        f"| {name} | {clients} | {ready:.1f} | {rounds} | {total:.1f} | {statistics.median(uss):.1f} | {max(uss):.1f} |"
    )


def is_ready(database: Path) -> bool:
    """The launcher's word that all clients have met reaches the database within half a second."""
    try:
        records = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        return bool(records.execute("SELECT count(*) FROM event WHERE kind = 'start'").fetchone()[0])
    except sqlite3.Error:
        return False


LAST_USS = """SELECT uss FROM resource JOIN (SELECT node, max(rowid) AS last FROM resource GROUP BY node) USING (node)
              WHERE resource.rowid = last AND node >= 0"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-root", type=Path, help="folder with the MNIST files")
    arguments = parser.parse_args()
    lines = [
        "| run | clients | ready after s | rounds | whole command s | own memory (USS) MB, median | largest |",
        "|---|---|---|---|---|---|---|",
        measure("logistic, rotated digits", LOGISTIC),
    ]
    if arguments.data_root:
        lines.append(measure("CNN, rotated MNIST", CNN.format(root=arguments.data_root.resolve())))
    text = "\n".join(lines)
    target = Path(__file__).parent / "results" / "scale.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text(f"Made by `python benchmarks/scale.py --data-root FOLDER`.\n\n{text}\n")
    print(text)


if __name__ == "__main__":
    main()
