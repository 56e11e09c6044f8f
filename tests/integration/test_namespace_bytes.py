"""Recorded bytes of a whole run against the counters of a loopback interface that carries nothing else.

The run has a network namespace of its own, so that the interface counts this run's packets alone. Linux counts a packet
of the loopback interface without a link header, and in the size in which TCP hands it over (up to 64 kB), so

    bytes = wire bytes + 52 a packet + 8 more a SYN - 12 less a refusal

52 are the IP header (20) and the TCP header with its timestamps (32). A SYN, and the SYN that answers it, has a TCP
header of 40 bytes: it also names the largest segment and the scale of the window. A refusal (RST) has one of 20 bytes;
it meets a client whose neighbour has left already, and who tries to connect again until it leaves too.
"""

import json
import subprocess
import sys

import pytest

from runs import CLI, RunFolder, small

PACKET, SYN, REFUSAL = 20 + 32, 8, -12

REGULAR = 'topology = {kind = "random-regular", k = 4}'
CONFIG = small(REGULAR, 'transport.protocol = "tcp"', clients=8, rounds=4, samples=160, topology="", algorithm="")
ALGORITHMS = {
    "whole models": 'algorithm = { name = "d-psgd" }',
    "whole models, without keys": 'algorithm = { name = "d-psgd" }\ntransport.keys = false',
    "short vectors": 'algorithm = { name = "sheaf-fmtl", gamma = 0.02, start = "orthogonal" }',
    "vectors of 360 kB": (
        'algorithm = { name = "sheaf-fmtl", gamma = 0.9, start = "orthogonal", exchange = "fused" }\n'
        'model = { kind = "mlp", hidden = [1334] }'
    ),
}

INSIDE = """
import json, subprocess, sys
from pathlib import Path

def counters():
    lines = [line.split() for line in Path("/proc/net/dev").read_text().splitlines()]
    (interface,) = [line for line in lines if line[0] == "lo:"]
    names, values = [line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line[:4] == "Tcp:"]
    tcp = dict(zip(names[1:], map(int, values[1:])))
    return {"bytes": int(interface[9]), "packets": int(interface[10])} | tcp

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
# A busy machine must not make TCP impatient: what is sent twice is counted twice, and told of in longer headers.
for name in ("tcp_early_retrans", "tcp_sack"):
    Path("/proc/sys/net/ipv4", name).write_text("0")
patient = ["dev", "lo", "table", "local", "rto_min", "20s"]
subprocess.run(["ip", "route", "replace", "local", "127.0.0.1", *patient], check=True)
before = counters()
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
after = counters()
print(json.dumps({"rc": done.returncode, "said": done.stdout} | {name: after[name] - before[name] for name in after}))
"""


@pytest.mark.parametrize("vectors", ALGORITHMS)
def test_an_interface_counts_the_recorded_bytes_and_the_headers_of_its_packets(isolated, tmp_path, vectors):
    (tmp_path / "config.toml").write_text(CONFIG + ALGORITHMS[vectors])
    for attempt in range(3):
        folder = tmp_path / f"run-{attempt}"
        command = [*CLI, "run", str(tmp_path / "config.toml"), "--out", str(folder), "--quiet"]
        done = subprocess.run([*isolated, sys.executable, "-c", INSIDE, *command], capture_output=True, text=True)
        counted = json.loads(done.stdout or "null")
        assert counted, done.stderr
        assert counted["rc"] == 0, counted["said"]
        if counted["PassiveOpens"] == 8 * 4 // 2:
            break  # else two have met once more: on a busy machine one that leaves may reach another that is about to

    ((wire,),) = RunFolder(folder).rows(
        "SELECT sum(wire_bytes) FROM (SELECT wire_bytes FROM traffic UNION ALL"
        " SELECT wire_bytes FROM overhead WHERE kind IN ('greeting', 'ready', 'handshake', 'hello'))"
    )
    assert counted["PassiveOpens"] == 8 * 4 // 2
    assert counted["RetransSegs"] == 0
    assert counted["OutRsts"] == counted["ActiveOpens"] - counted["PassiveOpens"]
    assert counted["AttemptFails"] <= counted["OutRsts"]  # who leaves before it has read its refusal has not failed
    opened = counted["ActiveOpens"] + counted["PassiveOpens"]
    headers = PACKET * counted["packets"] + SYN * opened + REFUSAL * counted["OutRsts"]
    assert counted["bytes"] - headers == wire
