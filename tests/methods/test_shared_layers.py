"""FedSAK and FedAvg-c, each against a plain loop: its equations as torch computes them by itself."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import oracles

CLIENTS, ROUNDS, STEPS, BATCH, ALPHA, SEED = 5, 6, 3, 16, 0.3, 7
SERVER = CLIENTS
CONFIG = f"""
clients = {CLIENTS}
rounds = {ROUNDS}
seed = {SEED}
[data]
samples = 400
reduced_clients = 0.5
TASKS
[training]
work = "steps"
steps = {STEPS}
batch_size = {BATCH}
alpha = {ALPHA}
[model]
kind = "mlp"
hidden = [12]
dtype = "float64"
MIX
[algorithm]
"""
TASKS = 'tasks = ["classes", "parity"]'
OWN_START = "same_start = false"  # no two units alike: then the trace norm has a gradient
MIX = 'mix = [{ kind = "mlp", hidden = [9, 12] }]'


def config(tasks="", mix=""):
    return CONFIG.replace("TASKS", tasks).replace("MIX", mix)


class Client:
    """An MLP as a list of matrices and vectors, and the client's samples."""

    def __init__(self, number, shard, theta, outputs):
        self.number, self.drawn = number, 0
        self.x = torch.from_numpy(shard["x_train"]).double().flatten(1)
        self.y = torch.from_numpy(shard["y_train"])
        self.samples = len(self.y)
        widths = [64, 9, 12, outputs] if theta.size == mlp_size(64, 9, 12, outputs) else [64, 12, outputs]
        assert theta.size == mlp_size(*widths)
        shapes = [shape for inputs, width in pairwise(widths) for shape in ((width, inputs), (width,))]
        parts = torch.from_numpy(theta.copy()).split([int(np.prod(shape)) for shape in shapes])
        self.layers = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def learn(self):
        for _ in range(STEPS):
            chosen = oracles.batch_rows(SEED, self.number, self.samples, BATCH, self.drawn)
            self.drawn += 1
            layers = [layer.detach().clone().requires_grad_() for layer in self.layers]
            h = self.x[chosen]
            for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
                h = (h @ weight.T + bias).clamp(min=0)
            slopes = torch.autograd.grad(cross_entropy(h @ layers[-2].T + layers[-1], self.y[chosen]), layers)
            self.layers = [(layer - ALPHA * slope).detach() for layer, slope in zip(layers, slopes, strict=True)]

    def theta(self):
        return torch.cat([layer.flatten() for layer in self.layers]).numpy()


def mlp_size(*widths):
    return sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths))


SHARED = {"model": slice(None), "extractor": slice(None, -2), "head": slice(-2, None)}


def trace_norm(layers):
    """sum_k ||W_(k)||_* of one layer of all clients, stacked along the last mode (4), (5)."""
    stacked = torch.stack(layers, dim=-1)
    return sum(torch.linalg.matrix_norm(stacked.movedim(k, 0).flatten(1), "nuc") for k in range(stacked.ndim))


def fedsak(clients, chosen, part, settings):
    shared = [[layer.clone().requires_grad_() for layer in clients[k].layers[part]] for k in chosen]
    sum(trace_norm(layers) for layers in zip(*shared, strict=True)).backward()
    for k, layers in zip(chosen, shared, strict=True):
        clients[k].layers[part] = [
            (layer - settings["eta"] * settings["lam"] * layer.grad).detach() for layer in layers
        ]


def fedavg_c(clients, chosen, part, settings):
    n = sum(clients[k].samples for k in chosen)
    return [
        sum(clients[k].samples / n * clients[k].layers[part][layer] for k in chosen)
        for layer in range(len(clients[0].layers[part]))
    ]


@pytest.mark.parametrize(
    ("loop", "share", "tasks", "mix", "fraction"),
    [
        (fedsak, "model", "", OWN_START, 1.0),
        (fedsak, "head", "", MIX, 0.6),
        (fedsak, "extractor", TASKS, OWN_START, 1.0),
        (fedavg_c, "extractor", TASKS, "", 0.6),
        (fedavg_c, "head", "", MIX, 1.0),
    ],
    ids=["FedSAK: data", "FedSAK: models", "FedSAK: tasks", "FedAvg-c: tasks", "FedAvg-c: models"],
)
def test_it_is_what_its_paper_says(run, loop, share, tasks, mix, fraction):
    settings = {"lam": 0.4, "eta": 0.05} if loop is fedsak else {}
    lines = {"name": loop.__name__.replace("_", "-"), "share": share, "fraction": fraction, **settings}
    folder = run(config(tasks, mix) + "\n".join(f"{key} = {value!r}" for key, value in lines.items()))
    start = folder.theta(0)
    clients = [Client(k, shard, start[k], 2 if tasks and k % 2 else 10) for k, shard in folder.shards().items()]
    part = SHARED[share]
    size = 1, 8 * sum(layer.numel() for layer in clients[0].layers[part])
    expected = set()
    for round in range(1, ROUNDS + 1):
        now, after = (oracles.participants(SEED, CLIENTS, ROUNDS, fraction, round + more) for more in (0, 1))
        for k in now:
            clients[k].learn()
        w = loop(clients, now, part, settings)
        heard = now if w is None else after
        for k in heard if w else ():
            clients[k].layers[part] = [layer.clone() for layer in w]
        expected |= {(k, SERVER, round) for k in now} | {(SERVER, k, round) for k in heard}

    found = folder.theta(ROUNDS)
    assert max(oracles.error(found[k], client.theta()) for k, client in enumerate(clients)) < 1e-10
    assert folder.sent() == dict.fromkeys(expected, size)
    if tasks:
        sizes = folder.rows(f"SELECT node, parameters FROM node WHERE node BETWEEN 0 AND {SERVER - 1} ORDER BY node")
        assert sizes == [(k, mlp_size(64, 12, 2 if k % 2 else 10)) for k in range(CLIENTS)]
    assert folder.rows("SELECT count(global_metric) FROM round") == [(0,)]


def test_clients_of_two_tasks_start_with_one_extractor(run):
    start = run(config(TASKS) + 'name = "local"', "rounds=1").theta(0)
    extractors = [start[k][: (64 + 1) * 12] for k in range(CLIENTS)]
    np.testing.assert_array_equal(extractors, [extractors[0]] * CLIENTS)
    np.testing.assert_array_equal(start[1][-2 * 13 :], start[3][-2 * 13 :])  # and one head a task


def test_the_stacked_layers_lose_rank_under_the_trace_norm(run):
    spectra = []
    for lam in (0.0, 1.0):
        text = config(mix=OWN_START) + f'name = "fedsak"\nlam = {lam}\neta = 0.1'
        thetas = run(text, "clients=10", "rounds=40", "evaluation.every=0").theta(40)
        stacked = np.stack([thetas[k][: 64 * 12] for k in range(10)])  # the hidden layer, unfolded along the clients
        spectra.append(np.linalg.svd(stacked, compute_uv=False))
    ranks = [int((singular > 0.1 * spectra[0][0]).sum()) for singular in spectra]
    assert ranks[0] == 10
    assert 0 < ranks[1] <= 5, ranks
