"""What placements send between hosts: the same run, placed in each way, with this machine standing for four hosts.

make bench-placement
"""

import subprocess

from common import new_folder, options, run_command, table, write

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
    with new_folder() as folder:
        for by in ("random", "round-robin", "partition"):
            command, out = run_command(folder, CONFIG, "--set", f"placement.by={by}", out=by)
            subprocess.run(command, check=True)
            run = summarize(out)
            assert run.between_hosts
            total, between[by] = run.traffic.wire_bytes, run.between_hosts.wire_bytes
            share, ratio = between[by] / total, between[by] / between["random"]
            rows.append((by, f"{total / 1e6:.2f}", f"{between[by] / 1e6:.2f}", f"{100 * share:.1f} %", f"{ratio:.2f}"))
    write("placement", "`make bench-placement`", table("placement|wire MB|between hosts|share|to random", rows))


if __name__ == "__main__":
    main()
