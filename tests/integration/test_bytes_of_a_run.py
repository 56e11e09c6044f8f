"""Traffic rows against closed forms that are worked out here, from the graph and the sizes alone."""

import json
import math
import subprocess
import sys

import pytest

from chaos.wire import frame, header
from oracles import both_directions
from runs import CLI, RunFolder, small

ROUNDS, D = 4, 650
CONFIG = small("evaluation.every = 0", clients=8, rounds=ROUNDS, samples=320, topology="", algorithm="")
RANDOM = f"{CONFIG}topology.p = 0.4\n"
FLOAT32, INT32, INT8 = 0, 3, 6
BYTES = {FLOAT32: 4, INT32: 4, INT8: 1}
K = math.ceil(0.05 * D)
CASES = {  # lines of a configuration, messages a round, code and length of the tensors of each
    "sheaf-fmtl": ('name = "sheaf-fmtl"\ngamma = 0.1\nstart_scale = 0.1', 2, [(FLOAT32, math.floor(0.1 * D))]),
    "fixed maps": ('name = "sheaf-fmtl"\ngamma = 0.5\nstart = "orthogonal"\neta = 0', 1, [(FLOAT32, D // 2)]),
    "d-psgd": ('name = "d-psgd"', 1, [(FLOAT32, D)]),
    "int8": ('name = "dfedu"\n[transport]\ncodec = "int8"', 1, [(FLOAT32, 1), (INT8, D)]),
    "top-k": ('name = "dfedu"\n[transport]\ncodec = "top-k"\nkeep = 0.05', 1, [(INT32, K), (FLOAT32, K)]),
    "local": ('name = "local"', 0, []),
}


@pytest.mark.parametrize("case", CASES)
def test_every_row_follows_from_the_sizes(run_in_threads, case):
    lines, phases, tensors = CASES[case]
    folder = run_in_threads(f"{RANDOM}[algorithm]\n{lines}")
    sizes = [BYTES[code] * length for code, length in tensors]
    expected = {}
    for i, j in both_directions(folder.edges()) if phases else ():
        for round in range(1, ROUNDS + 1):
            headers = [header(i, j, round, phase, [list(tensor) for tensor in tensors]) for phase in range(phases)]
            payload, wire = phases * sum(sizes), phases * sum(map(frame, sizes))
            expected[i, j, round] = (phases, payload, payload + sum(headers), wire + sum(map(frame, headers)))
    assert folder.payload() == expected
    assert bool(expected) == bool(phases)


def test_vectors_between_different_models_follow_the_smaller_one(run_in_threads):
    model = '[model]\nkind = "mlp"\nhidden = [12]\nmix = [{ kind = "logistic" }]'
    folder = run_in_threads(f"{RANDOM}[algorithm]\n{CASES['sheaf-fmtl'][0]}\n{model}")
    sizes = dict(folder.rows("SELECT node, parameters FROM node WHERE role = 'client'"))
    assert set(sizes.values()) == {D, 64 * 12 + 12 + 12 * 10 + 10}
    for (i, j, _), row in folder.sent().items():
        assert row[1] == 2 * 4 * math.floor(0.1 * min(sizes[i], sizes[j]))


def test_connections_hellos_records_and_control_lines_are_rows_of_their_own(run_in_processes):
    folder = run_in_processes(RANDOM + '[algorithm]\nname = "dfedu"')
    rows = folder.rows("SELECT src, dst, kind, messages, wire_bytes FROM overhead")
    overhead = {(src, dst, kind): size for src, dst, kind, _, size in rows}
    for src, dst in both_directions(folder.edges()):
        assert overhead[src, dst, "greeting"] == 64
        assert overhead[src, dst, "ready"] == 43 + len(b"node-0000")
        assert overhead[src, dst, "hello"] == frame(header(src, dst, 0, 0, []))
    assert {src for src, dst, kind in overhead if kind == "records" and dst == -2} == {-1, *range(8)}

    control = {(src, dst): (messages, size) for src, dst, kind, messages, size in rows if kind == "control"}
    lines = [(-1, -3), *((-3, node) for node in range(8))]
    assert set(control) == {*lines, *((there, here) for here, there in lines)}
    for node in range(8):
        assert control[-3, node][0] == 3  # where its neighbours are, go, exit
        assert control[node, -3][0] == 4  # bound, ready, done, left
    assert control[-1, -3][0] == 1 + 8 + 1 + 1  # one fork of them all, each client's neighbours, go, exit
    assert control[-3, -1][0] == 8 * (4 + 1)  # what each client said, and its end
    assert control[-3, -1][1] > sum(size for (src, _), (_, size) in control.items() if src >= 0)
    batches = {src: messages for src, _, kind, messages, _ in rows if kind == "records" and src >= 0}
    assert set(batches) == set(range(8))
    # itself, its connections, every round; those that follow each other quickly leave together
    assert all(1 <= count <= 1 + 1 + (ROUNDS + 1) for count in batches.values())
    assert folder.rows("SELECT count(*) FROM event WHERE kind = 'lost-records'") == [(0,)]


def test_planned_time_is_that_of_the_bytes_really_sent(run_in_threads):
    """Two clients, a second a step, 1,000 bytes a second each way: int8 takes a third of the time of float32."""
    timed = 'time.clock = "virtual"\ncompute.step_s = 1.0\nlinks.bandwidth = 1000.0\nalgorithm.name = "dfedu"\n'
    ends = {}
    for codec in ("none", "int8"):
        small = ("clients=2", "topology.kind=ring", "data.samples=100", f"transport.codec={codec}")
        folder = run_in_threads(timed + CONFIG, *small)
        (wire,) = {row[3] for row in folder.payload().values()}
        ((ends[codec],),) = folder.rows("SELECT max(virtual_s) FROM round")
        assert ends[codec] == pytest.approx(4 * (1 + wire / 1000), rel=1e-6)
    assert ends["none"] - 4 > 3.5 * (ends["int8"] - 4)


def test_both_ends_of_a_fused_edge_follow_the_same_disagreement_also_of_coded_vectors(run_in_threads):
    coded = ("rounds=30", "data.rotations=[0, 90]", "transport.codec=int8")
    folder = run_in_threads(f'{RANDOM}[algorithm]\n{CASES["sheaf-fmtl"][0]}\nexchange = "fused"', *coded)
    found = {(i, j, k): r for i, j, k, r in folder.rows("SELECT node, neighbour, round, disagreement FROM edge")}
    assert found
    for (i, j, k), r in found.items():
        assert r == pytest.approx(found[j, i, k], rel=1e-5)


# -- against the counters of a loopback interface that carries nothing else -------------------------------------------

REGULAR = 'topology = {kind = "random-regular", k = 4}'
COUNTED = small(REGULAR, 'transport.protocol = "tcp"', clients=8, rounds=4, samples=160, topology="", algorithm="")
VECTORS = {
    "whole models": 'algorithm = { name = "d-psgd" }',
    "whole models, without keys": 'algorithm = { name = "d-psgd" }\ntransport.keys = false',
    "short vectors": 'algorithm = { name = "sheaf-fmtl", gamma = 0.02, start = "orthogonal" }',
    "vectors of 360 kB": 'algorithm = { name = "sheaf-fmtl", gamma = 0.9, start = "orthogonal", exchange = "fused" }\n'
    'model = { kind = "mlp", hidden = [1334] }',
}

INSIDE = """
import json, subprocess, sys
from pathlib import Path
import psutil

def counters():
    interface = psutil.net_io_counters(pernic=True)["lo"]
    names, values = [line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line[:4] == "Tcp:"]
    tcp = dict(zip(names[1:], map(int, values[1:])))
    return {"bytes": interface.bytes_sent, "packets": interface.packets_sent} | tcp

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


@pytest.mark.parametrize("vectors", VECTORS)
def test_an_interface_counts_the_recorded_bytes_and_the_headers_of_its_packets(isolated, tmp_path, vectors):
    """The run has a network namespace of its own. Linux counts a packet of the interface without a link header, and in
    the size in which TCP hands it over (up to 64 kB): wire bytes, an IP header (20) and a TCP header with its
    timestamps (32). A SYN, and the SYN that answers it, has 8 more: it also names the largest segment and the scale of
    the window. A refusal (RST) has 12 less; it meets a client whose neighbour has left already, and who tries to
    connect again until it leaves too."""
    (tmp_path / "config.toml").write_text(COUNTED + VECTORS[vectors])
    for attempt in range(10):
        folder = tmp_path / f"run-{attempt}"
        command = [*CLI, "run", str(tmp_path / "config.toml"), "--out", str(folder), "--quiet"]
        done = subprocess.run([*isolated, sys.executable, "-c", INSIDE, *command], capture_output=True, text=True)
        counted = json.loads(done.stdout or "null")
        assert counted, done.stderr
        assert counted["rc"] == 0, counted["said"]
        refused = counted["ActiveOpens"] - counted["PassiveOpens"]
        if counted["PassiveOpens"] == 8 * 4 // 2 and counted["OutRsts"] == refused:
            break  # else two have met, or refused, once more: on a busy machine one that leaves may reach another late

    ((wire,),) = RunFolder(folder).rows(
        "SELECT sum(wire_bytes) FROM (SELECT wire_bytes FROM traffic UNION ALL"
        " SELECT wire_bytes FROM overhead WHERE kind IN ('greeting', 'ready', 'handshake', 'hello'))"
    )
    assert counted["PassiveOpens"] == 8 * 4 // 2
    assert counted["RetransSegs"] == 0
    assert counted["OutRsts"] == refused
    assert counted["AttemptFails"] <= counted["OutRsts"]  # who leaves before it has read its refusal has not failed
    opened = counted["ActiveOpens"] + counted["PassiveOpens"]
    headers = (20 + 32) * counted["packets"] + 8 * opened - 12 * counted["OutRsts"]
    assert counted["bytes"] - headers == wire
