"""FedSAK and FedAvg-c over real processes, each against a plain loop that knows no messages: its equations as torch
computes them by itself, trace norms included.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from sheafgossip.topology.randomness import generator

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


class Client:
    """An MLP as a list of matrices and vectors, and the client's samples in the order of its mini-batches."""

    def __init__(self, number, shard, theta, outputs):
        self.number, self.drawn = number, 0
        self.x = torch.from_numpy(shard["x_train"]).double().flatten(1)
        self.y = torch.from_numpy(shard["y_train"])
        self.samples = len(self.y)
        widths = [64, 9, 12, outputs] if theta.size == mlp_size(64, 9, 12, outputs) else [64, 12, outputs]
        assert theta.size == mlp_size(*widths)
        self.layers, end = [], 0
        for inputs, width in pairwise(widths):
            for shape in ((width, inputs), (width,)):
                start, end = end, end + int(np.prod(shape))
                self.layers.append(torch.from_numpy(theta[start:end].reshape(shape).copy()))

    def learn(self):
        size = min(BATCH, self.samples)
        for _ in range(STEPS):
            passes, place = divmod(self.drawn, -(-self.samples // size))
            self.drawn += 1
            order = generator(SEED, "mini-batches", self.number, passes).permutation(self.samples)
            chosen = order[place * size : (place + 1) * size]
            layers = [layer.requires_grad_() for layer in self.layers]
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
        moved = [(layer - settings["eta"] * settings["lam"] * layer.grad).detach() for layer in layers]
        clients[k].layers[part] = moved
    return None


def fedavg_c(clients, chosen, part, settings):
    n = sum(clients[k].samples for k in chosen)
    return [
        sum(clients[k].samples / n * clients[k].layers[part][layer] for k in chosen)
        for layer in range(len(clients[0].layers[part]))
    ]


def participants(round, fraction):
    if fraction == 1 or round > ROUNDS:
        return list(range(CLIENTS))
    order = generator(SEED, "participants", round).permutation(CLIENTS)
    return sorted(order[: int(fraction * CLIENTS + 0.5)].tolist())


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
    lines = {"name": repr(loop.__name__.replace("_", "-")), "share": repr(share), "fraction": fraction, **settings}
    text = CONFIG.replace("TASKS", tasks).replace("MIX", mix)
    folder = run(text + "\n".join(f"{key} = {value}" for key, value in lines.items()))
    start = folder.theta(0)
    clients = [Client(k, shard, start[k], 2 if tasks and k % 2 else 10) for k, shard in sorted(folder.shards().items())]
    part, w = SHARED[share], None
    d_w = sum(layer.numel() for layer in clients[0].layers[part])
    expected_traffic = {}
    for round in range(1, ROUNDS + 1):
        now, next_ = participants(round, fraction), participants(round + 1, fraction)
        for k in now:
            clients[k].learn()
        w = loop(clients, now, part, settings)
        heard = now if loop is fedsak else next_
        if w is not None:
            for k in heard:
                clients[k].layers[part] = [layer.clone() for layer in w]
        expected_traffic |= {(k, SERVER, round): (1, 8 * d_w) for k in now}
        expected_traffic |= {(SERVER, k, round): (1, 8 * d_w) for k in heard}

    found = folder.theta(ROUNDS)
    for k, client in enumerate(clients):
        assert np.linalg.norm(found[k] - client.theta()) < 1e-10 * np.linalg.norm(client.theta())
    assert {edge: row[:2] for edge, row in folder.payload().items()} == expected_traffic
    if tasks:
        sizes = folder.rows(f"SELECT node, parameters FROM node WHERE node BETWEEN 0 AND {SERVER - 1} ORDER BY node")
        assert sizes == [(k, mlp_size(64, 12, 2 if k % 2 else 10)) for k in range(CLIENTS)]
    assert folder.rows("SELECT count(global_metric) FROM round") == [(0,)]


def test_clients_of_two_tasks_start_with_one_extractor(run):
    text = CONFIG.replace("TASKS", TASKS).replace("MIX", "").replace(f"rounds = {ROUNDS}", "rounds = 1")
    start = run(text + 'name = "local"').theta(0)
    extractors = [start[k][: (64 + 1) * 12] for k in range(CLIENTS)]
    np.testing.assert_array_equal(extractors, [extractors[0]] * CLIENTS)
    np.testing.assert_array_equal(start[1][-2 * 13 :], start[3][-2 * 13 :])  # and one head a task


def test_the_stacked_layers_lose_rank_under_the_trace_norm(run):
    spectra = []
    for lam in (0.0, 1.0):
        text = CONFIG.replace("TASKS", "").replace("MIX", OWN_START).replace("clients = 5", "clients = 10")
        text = text.replace(f"rounds = {ROUNDS}", "rounds = 40").replace(
            "[training]", "[evaluation]\nevery = 0\n[training]"
        )
        thetas = run(text + f'name = "fedsak"\nlam = {lam}\neta = 0.1').theta(40)
        stacked = np.stack([thetas[k][: 64 * 12] for k in range(10)])  # the hidden layer, unfolded along the clients
        spectra.append(np.linalg.svd(stacked, compute_uv=False))
    ranks = [int((singular > 0.1 * spectra[0][0]).sum()) for singular in spectra]
    assert ranks[0] == 10
    assert 0 < ranks[1] <= 5, ranks
