"""CPU seconds and memory of a small run from start to end: eight clients on a ring, D-PSGD, GN-LeNet.

80 rounds of three steps on mini-batches of 8 images of 32x32x3 pixels; the model has 89,834 parameters. decentralizepy
takes 64 CPU seconds and about 400 MB a client for this work. The images are noise: time does not depend on them. "Steps
alone" are the same in one plain loop, as in benchmarks/efficiency.py: what they take tells how fast the machine is.
"""

import tempfile
from pathlib import Path

import numpy as np
from common import CLI, LAST_SAMPLES, options, reading, spread, table, write
from efficiency import cpu_of, cpu_of_steps, over

CONFIG = """
clients = 8
rounds = 80
topology = {{ kind = "ring" }}
data = {{ dataset = "npz", root = "{data}" }}
model = {{ kind = "cnn", filters = [32, 32, 64], kernel = 5, padding = true, norm_groups = 2 }}
training = {{ work = "steps", steps = 3, batch_size = 8, alpha = 0.01 }}
evaluation = {{ every = 20 }}
algorithm = {{ name = "d-psgd" }}
"""
LAST_PSS = f"SELECT sum(pss) FROM resource WHERE node >= 0 AND rowid IN {LAST_SAMPLES}"


def main() -> None:
    arguments = options(__doc__, repeats=3).parse_args()
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
            with reading(out / "run.sqlite") as records:
                memory.append(records.execute(LAST_PSS).fetchone()[0] / 1e6)
    rows = [
        ("CPU seconds of everything, start to end", spread(cpu), 20),
        ("of the steps alone", spread(alone), ""),
        ("everything / steps alone", spread(over(cpu, alone)), ""),
        ("memory (PSS) of the 8 clients together, MB", spread(memory), 600),
    ]
    made_by = f"`make bench-ring`: medians of {arguments.repeats} (smallest to largest)"
    write("ring", made_by, table("|measured|aim", rows))


if __name__ == "__main__":
    main()
