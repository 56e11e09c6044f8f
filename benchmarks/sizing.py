"""What a run of 10^4, 10^5 or 10^6 clients would take, from constants that are measured.

Preparing is measured here, with two sizes of run: what the launcher takes for each client more. The other constants are
those of ``sheafgossip run``'s own estimate (launcher/prepare/prepared.py) and of the collector's benchmark
(make bench-measuring).
Clients learn logistic regression on digits by D-PSGD, on a graph with four neighbours each.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import options, table, write

from sheafgossip.launcher.prepare import prepared
from sheafgossip.transport.wire import message_wire_bytes

SIZES = (10_000, 100_000, 1_000_000)
MEASURED_AT = (1_000, 4_000)
NEIGHBOURS, PARAMETERS = 4, 650
RECORDS_A_ROUND = 1 + NEIGHBOURS  # its own figures, and its traffic with each neighbour
COLLECTOR_S = 3.0e-6  # CPU seconds of a record: make bench-measuring
FORK_S = 12e-3  # of a client, until it has met its neighbours, on two cores: make bench-scale
HOST_GB = 256
HEADER_BYTES = 40

CONFIG = """
clients = {clients}
topology = {{ kind = "watts-strogatz", k = 4 }}
data = {{ partition = "overlapping", samples_each = 20 }}
algorithm = {{ name = "d-psgd" }}
"""


def prepare(clients: int) -> dict[str, float]:
    """In this process: seconds, and the most memory that it took."""
    from sheafgossip.launcher.config.files import load
    from sheafgossip.launcher.prepare.assignments import Site
    from sheafgossip.launcher.prepare.preparation import prepare_run

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "config.toml").write_text(CONFIG.format(clients=clients))
        (config,) = load(place / "config.toml")
        start = time.monotonic()
        prepared = prepare_run(config, place / "run", Site(sockets=place, records="ipc:///nowhere"))
        lines = sum(len(json.dumps(each.to_json())) for each in prepared.assignments[:100]) / 100
        seconds = time.monotonic() - start
    return {"s": seconds, "bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "line": lines}


def measured() -> tuple[float, float, float]:
    """What one more client takes: seconds and bytes of the launcher, bytes of its assignment as text."""
    figures = []
    for clients in MEASURED_AT:
        command = [sys.executable, __file__, "--prepare", str(clients)]
        figures.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    few, many = figures
    step = MEASURED_AT[1] - MEASURED_AT[0]
    return (many["s"] - few["s"]) / step, (many["bytes"] - few["bytes"]) / step, many["line"]


def figures() -> str:
    prepare_s, launcher_bytes, line = measured()
    client = prepared.OF_A_CLIENT + prepared.OF_PAGE_TABLES + NEIGHBOURS * prepared.OF_A_LINK + 4 * 4 * PARAMETERS
    message = message_wire_bytes([HEADER_BYTES, 4 * PARAMETERS], sealed=True)
    host = HOST_GB * 1e9
    of_a_client: dict[str, tuple[float, str]] = {  # and how it is printed
        "memory of all clients, GB": (client / 1e9, ",.0f"),
        "wire bytes of a round, all clients, GB": (NEIGHBOURS * message / 1e9, ",.3g"),
        "launcher: seconds to prepare": (prepare_s, ",.0f"),
        "launcher: memory, GB": (launcher_bytes / 1e9, ",.2g"),
        "launcher: assignments sent, GB": (line / 1e9, ",.2g"),
        "collector: open connections": (1, ","),
        "collector: memory of connections, GB": (prepared.OF_A_LINK / 1e9, ",.2g"),
        "collector: CPU seconds a round": (RECORDS_A_ROUND * COLLECTOR_S, ",.2g"),
    }
    rows = [[name, *(f"{n * each:{form}}" for n in SIZES)] for name, (each, form) in of_a_client.items()]
    rows.append([f"hosts of {HOST_GB} GB", *(f"{math.ceil(n * client / host):,}" for n in SIZES)])
    start = [f"{min(n, host / client) * FORK_S:,.0f}" for n in SIZES]
    rows.append([f"seconds to start, {HOST_GB} GB hosts of 2 cores", *start])
    constants = (
        f"A client more: {1e3 * prepare_s:.2f} ms and {launcher_bytes / 1e3:.0f} kB of the launcher, "
        f"{line / 1e3:.1f} kB of assignment, {client / 1e6:.1f} MB on its host; "
        f"a record: {1e6 * COLLECTOR_S:.0f} us of the collector."
    )
    return f"{table('|'.join(['clients', *(f'{n:,}' for n in SIZES)]), rows)}\n\n{constants}"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--prepare", type=int, help=argparse.SUPPRESS)
    if clients := parser.parse_args().prepare:
        print(json.dumps(prepare(clients)))
        return
    write("sizing", "`make sizing`", figures())


if __name__ == "__main__":
    main()
