"""A seed is the whole story: what else the machine does changes no bit."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

CONFIG = """
clients = 8
rounds = 12
seed = {seed}
[topology]
p = 0.5
[data]
samples = 800
reduced_clients = 0.5
[model]
{model}
[training]
work = "epochs"
alpha = 0.1
momentum = 0.5
[algorithm]
name = "sheaf-fmtl"
gamma = 0.05
lam = 0.01
start_scale = 0.1
[checkpoints]
every = 4
"""
MODELS = {"logistic": 'kind = "logistic"', "cnn": 'kind = "cnn"\nfilters = [8]'}


@pytest.fixture
def load():
    """Processes that keep every core busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    yield
    for process in busy:
        process.kill()
        process.wait()


def same_states(one, other, round: int) -> bool:
    first, second = one.states(round), other.states(round)
    return first.keys() == second.keys() and all(
        first[node].keys() == second[node].keys()
        and all(np.array_equal(first[node][name], second[node][name]) for name in first[node])
        for node in first
    )


@pytest.mark.parametrize("model", MODELS)
def test_one_seed_gives_identical_states_and_traffic_also_under_load(run, model, request):
    alone = run(CONFIG.format(seed=1, model=MODELS[model]))
    request.getfixturevalue("load")
    loaded = run(CONFIG.format(seed=1, model=MODELS[model]))
    for round in (0, 4, 8, 12):
        assert same_states(alone, loaded, round)
    assert alone.payload() == loaded.payload()
    columns = "node, round, train_loss, test_loss, test_metric, theta_norm, disagreement"
    query = f"SELECT {columns} FROM round ORDER BY node, round"
    assert alone.rows(query) == loaded.rows(query)


def test_another_seed_gives_another_run(run):
    one, other = (
        run(CONFIG.format(seed=1, model=MODELS["logistic"])),
        run(CONFIG.format(seed=2, model=MODELS["logistic"])),
    )
    assert not same_states(one, other, 0)
    assert one.edges() != other.edges()


def test_running_the_resolved_configuration_repeats_the_run(run):
    first = run(CONFIG.format(seed=5, model=MODELS["logistic"]))
    again = run((first.path / "config.toml").read_text())
    assert same_states(first, again, 12)


def test_ipc_and_tcp_carry_the_same_bits(run):
    ipc = run(CONFIG.format(seed=1, model=MODELS["logistic"]))
    tcp = run(
        CONFIG.format(seed=1, model=MODELS["logistic"]),
        "--set",
        "transport.protocol=tcp",
        "--set",
        "transport.keys=false",
    )
    keyed = run(CONFIG.format(seed=1, model=MODELS["logistic"]), "--set", "transport.protocol=tcp")
    assert same_states(keyed, tcp, 12)
    assert {edge: row[:3] for edge, row in keyed.payload().items()} == {
        edge: row[:3] for edge, row in tcp.payload().items()
    }
    assert same_states(ipc, tcp, 12)
    assert ipc.payload() == tcp.payload()
