"""What placements send between hosts: the same run, placed in each way, with this machine standing for four hosts.

make bench-placement
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from sheafgossip.metrics.summary import summarize

HOSTS = 4
CONFIG = f"""
clients = 200
rounds = 5
[topology]
kind = "watts-strogatz"
k = 4
p = 0.1
[data]
partition = "overlapping"
[algorithm]
name = "d-psgd"
[placement]
hosts = {HOSTS}
"""


def main() -> None:
    rows = [["placement", "wire MB", "between hosts", "share", "to random"], ["---"] * 5]
    between = {}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.toml"
        config.write_text(CONFIG)
        for by in ("random", "round-robin", "partition"):
            out = Path(folder) / by
            command = [sys.executable, "-m", "sheafgossip.launcher.cli", "run", str(config), "--out", str(out), "-q"]
            subprocess.run([*command, "--set", f"placement.by={by}"], check=True, stdout=subprocess.DEVNULL)
            run = summarize(out)
            assert run.between_hosts
            total, between[by] = run.traffic.wire_bytes, run.between_hosts.wire_bytes
            share, ratio = between[by] / total, between[by] / between["random"]
            rows.append([by, f"{total / 1e6:.2f}", f"{between[by] / 1e6:.2f}", f"{100 * share:.1f} %", f"{ratio:.2f}"])
    text = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    print(text)
    (Path(__file__).parent / "results" / "placement.md").write_text(f"Made by `make bench-placement`.\n\n{text}\n")


if __name__ == "__main__":
    main()
