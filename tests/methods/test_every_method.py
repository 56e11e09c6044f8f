"""What holds of every method: threads have the bits of processes, an interrupted run those of an unbroken one, and what
is recorded in mid-run is what a run that ends there records."""

import pytest

from runs import assert_same, run_here_again

ROUNDS, END = 7, 5
CONFIG = f"""
clients = 6
rounds = {ROUNDS}
seed = 3
[data]
samples = 360
partition = "classes"
classes_per_client = 8
[training]
work = "steps"
steps = 2
alpha = 0.3
momentum = MOMENTUM
[checkpoints]
every = 3
"""
HYPERNETWORK = "fraction = 0.5\neta = 0.01\nhidden = 16\nembedding = 4"
WITH_SERVER = {
    "fedavg": "fraction = 0.5",
    "ditto": "fraction = 0.5",
    "pfedme": "fraction = 0.5\nlam = 1.5\neta = 0.3",
    "per-fedavg": "fraction = 0.5\nalpha = 0.2",
    "flt": 'fraction = 0.5\nembedding = 8\nmanifold = "pca"\ncase = "related"\ncentroids = 2',
    "fedsak": "fraction = 0.5",
    "fedavg-c": 'fraction = 0.5\nshare = "head"\n[model]\nkind = "mlp"\nhidden = [16]',
    "sfmtl-graph": 'fraction = 0.5\nlam = 0.5\n[model]\nkind = "mlp"\nhidden = [16]',
    "pfedhn": HYPERNETWORK,
    "ghn": f"{HYPERNETWORK}\nembedding_rounds = 4",
    "shn": f"{HYPERNETWORK}\nembedding_rounds = 3",
}
WITHOUT_SERVER = {
    "local": "",
    "d-psgd": '[transport]\nprotocol = "tcp"',
    "d2": "",
    "gradient-tracking": "[topology]\np = 0.6\nredraw_every = 2",
    "push-sum": "[topology]\np = 0.4\ndirected = true",
    "pairwise": "",
    "dfedu": '[transport]\ncodec = "top-k"',
    "sheaf-fmtl": 'start_scale = 0.1\n[model]\nkind = "cnn"\nfilters = [4]',
    "sheaf-fmtl, fused": 'exchange = "fused"\nstorage = "factored"\nstart = "orthogonal"\nlam = 0.05',
    "sheaf-fmtl, rotating": 'start = "shared"\neta = 0.0\nrotate_every = 2',
    "selective-sheaf": 'listen = 2\nblocks = "head"\n[model]\nkind = "mlp"\nhidden = [9]\n[transport]\ncodec = "int8"',
    "selective-sheaf, seeking": "listen = 1\nprobe_every = 2\nseek = true",
    "d-psgd, with faults": """
[time]
clock = "virtual"
staleness = 2
silence = "stale"
deadline_s = 0.5
[compute]
step_s = 0.05
slowdown = [1.0, 4.0]
[links]
latency_s = 0.02
loss = 0.1
[[faults]]
kind = "crash"
clients = [2]
at_round = 3
restart_after = 1
""",
}
METHODS = WITH_SERVER | WITHOUT_SERVER


def text_of(method):
    config = CONFIG.replace("MOMENTUM", "0.5" if method in ("fedavg", "fedsak", "sheaf-fmtl", "d-psgd") else "0.0")
    return f'{config}[algorithm]\nname = "{method.partition(",")[0]}"\n{METHODS[method]}\n'


@pytest.mark.parametrize("method", METHODS)
def test_threads_have_the_bits_and_bytes_of_processes(run, run_in_processes, method):
    threads, processes = run(text_of(method)), run_in_processes(text_of(method))
    assert_same(threads, processes)
    assert threads.rows(SHOWN) == processes.rows(SHOWN)
    own = threads.rows("SELECT DISTINCT pid FROM node WHERE role IN ('client', 'server', 'launcher')")
    assert len(own) == 1
    assert len(processes.rows("SELECT DISTINCT pid FROM node WHERE role = 'client'")) == 6


SHOWN = "SELECT src, dst, messages, wire_bytes FROM overhead WHERE kind = 'evaluation' ORDER BY dst"


@pytest.mark.parametrize("method", METHODS)
def test_an_interrupted_run_ends_with_the_bits_of_an_unbroken_one(run, tmp_path, method):
    whole = run(text_of(method))
    broken = whole.copy(tmp_path / "broken")
    broken.cut_after(5)
    assert run_here_again(broken, "threads").prepared.resumed_at == 3
    assert_same(broken, whole)
    assert broken.rows(SHOWN) == whole.rows(SHOWN)


def figures(folder, round):
    rows = folder.rows(
        f"SELECT node, test_loss, test_metric, global_metric FROM round WHERE round = {round} ORDER BY node"
    )
    return [row for row in rows if row[2] is not None]


def assert_alike(long, short, end):
    """Also in all rounds before: neither run knows in them when it will end."""
    for round in range(end + 1):
        assert figures(long, round) == figures(short, round), round
    found = long.payload()
    for edge, sent in short.payload().items():
        if edge[2] < end:  # in which all download
            assert found[edge] == sent
    assert long.rows("SELECT count(*) FROM node WHERE role = 'client'") == [(len(figures(long, end)),)]


@pytest.mark.parametrize("method", WITH_SERVER)
def test_a_run_has_in_mid_run_the_figures_of_a_run_that_ends_there(run, method):
    assert_alike(run(text_of(method)), run(text_of(method), f"rounds={END}"), END)
