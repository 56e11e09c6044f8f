"""What placements send between hosts: the same run, placed in each way, with this machine standing for four hosts.

make bench-placement
"""

import tempfile
from pathlib import Path

from common import options, seconds_of, table, write

from sheafgossip.metrics.summary import summarize

CONFIG = """
clients = 200
rounds = 5
topology = { kind = "watts-strogatz", k = 4, p = 0.1 }
data = { partition = "overlapping" }
algorithm = { name = "d-psgd" }
placement = { hosts = 4 }
"""


def main() -> None:
    options(__doc__).parse_args()
    rows, between = [], {}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.toml"
        config.write_text(CONFIG)
        for by in ("random", "round-robin", "partition"):
            out = Path(folder) / by
            seconds_of("run", str(config), "--out", str(out), "-q", "--set", f"placement.by={by}")
            run = summarize(out)
            assert run.between_hosts
            total, between[by] = run.traffic.wire_bytes, run.between_hosts.wire_bytes
            share, ratio = between[by] / total, between[by] / between["random"]
            rows.append((by, f"{total / 1e6:.2f}", f"{between[by] / 1e6:.2f}", f"{100 * share:.1f} %", f"{ratio:.2f}"))
    write("placement", "`make bench-placement`", table("placement|wire MB|between hosts|share|to random", rows))


if __name__ == "__main__":
    main()
