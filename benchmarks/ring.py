"""CPU seconds and memory of a small run from start to end: eight clients on a ring, D-PSGD, GN-LeNet.

    .venv/bin/python benchmarks/ring.py [--repeats 3]

80 rounds of three steps on mini-batches of 8 images of 32x32x3 pixels; the model has 89,834 parameters. decentralizepy
takes 64 CPU seconds and about 400 MB a client for this work. The images are noise: time does not depend on them. "Steps
alone" are the same in one plain loop, as in benchmarks/efficiency.py: what they take tells how fast the machine is.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import tempfile
from pathlib import Path

import numpy as np
from efficiency import CLI, cpu_of, cpu_of_steps, over, spread

CONFIG = """
clients = 8
rounds = 80
[topology]
kind = "ring"
[data]
dataset = "npz"
root = "{data}"
[model]
kind = "cnn"
filters = [32, 32, 64]
kernel = 5
padding = true
norm_groups = 2
[training]
work = "steps"
steps = 3
batch_size = 8
alpha = 0.01
[evaluation]
every = 20
[algorithm]
name = "d-psgd"
"""
LAST_PSS = """SELECT sum(pss) FROM resource WHERE node >= 0 AND rowid IN
              (SELECT max(rowid) FROM resource GROUP BY node)"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    cpu, alone, memory = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        data, config = Path(folder) / "noise.npz", Path(folder) / "config.toml"
        rng = np.random.default_rng(0)
        np.savez(data, x=rng.random((800, 3, 32, 32), dtype=np.float32), y=np.arange(800) % 10)
        config.write_text(CONFIG.format(data=data))
        for repeat in range(arguments.repeats):
            out = Path(folder) / str(repeat)
            cpu.append(cpu_of([*CLI, "run", str(config), "--out", str(out), "-q"]))
            alone.append(cpu_of_steps("plain", config))
            records = sqlite3.connect(out / "run.sqlite")
            memory.append(records.execute(LAST_PSS).fetchone()[0] / 1e6)
            records.close()
    text = (
        "| | measured | aim |\n|---|---|---|\n"
        f"| CPU seconds of everything, start to end | {spread(cpu)} | 20 |\n"
        f"| of the steps alone | {spread(alone)} | |\n"
        f"| everything / steps alone | {spread(over(cpu, alone))} | |\n"
        f"| memory (PSS) of the 8 clients together, MB | {spread(memory)} | 600 |"
    )
    print(text)
    target = Path(__file__).parent / "results" / "ring.md"
    target.write_text(f"Made by `make bench-ring`: medians of {arguments.repeats} (smallest to largest).\n\n{text}\n")


if __name__ == "__main__":
    sys.exit(main())
