"""Algorithms with a server over real processes, each against a plain loop in numpy that knows no messages."""

from __future__ import annotations

import os
import re
import signal

import numpy as np
import pytest

from sheafgossip.topology.randomness import generator

from .conftest import alive, assert_same_states

CLIENTS, ROUNDS, STEPS, BATCH, ALPHA, SEED = 6, 8, 3, 16, 0.4, 5
SERVER = CLIENTS
CONFIG = f"""
clients = {CLIENTS}
rounds = {ROUNDS}
seed = {SEED}
[data]
samples = 480
partition = "classes"
classes_per_client = 4
reduced_clients = 0.5
[training]
work = "steps"
steps = {STEPS}
batch_size = {BATCH}
alpha = {ALPHA}
[model]
dtype = "float64"
[algorithm]
"""


class Client:
    """What the loop knows of a client: its samples, in the order in which their mini-batches come."""

    def __init__(self, number: int, shard: dict[str, np.ndarray]):
        self.number = number
        self.test = bordered(shard["x_test"]), shard["y_test"]
        self.train = bordered(shard["x_train"]), shard["y_train"]
        self.samples = len(shard["y_train"])
        self._drawn = 0

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        size = min(BATCH, self.samples)
        passes, place = divmod(self._drawn, -(-self.samples // size))
        self._drawn += 1
        order = generator(SEED, "mini-batches", self.number, passes).permutation(self.samples)
        chosen = order[place * size : (place + 1) * size]
        return self.train[0][chosen], self.train[1][chosen]

    def accuracy(self, theta: np.ndarray) -> float:
        x, y = self.test
        return float((np.argmax(x @ weights(theta).T, axis=1) == y).mean())


def bordered(x: np.ndarray) -> np.ndarray:
    return np.column_stack([x.reshape(len(x), -1).astype(np.float64), np.ones(len(x))])


def weights(theta: np.ndarray) -> np.ndarray:
    """(classes, features + 1) of theta, whose biases come last."""
    return np.column_stack([theta[:-10].reshape(10, -1), theta[-10:]])


def gradient(theta: np.ndarray, samples: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Of the mean cross-entropy."""
    x, y = samples
    scores = np.exp(x @ weights(theta).T)
    slope = (scores / scores.sum(axis=1, keepdims=True) - np.eye(10)[y]).T @ x / len(y)
    return np.concatenate([slope[:, :-1].ravel(), slope[:, -1]])


def sgd(client: Client, theta: np.ndarray) -> np.ndarray:
    for _ in range(STEPS):
        theta = theta - ALPHA * gradient(theta, client.batch())
    return theta


def fedavg(settings, clients, w, own, chosen):
    trained = {k: sgd(clients[k], w) for k in chosen}
    samples = {k: clients[k].samples for k in chosen}
    w = sum(samples[k] * trained[k] for k in chosen) / sum(samples.values())
    return w, None


def ditto(settings, clients, w, own, chosen):
    deltas = []
    for k in chosen:
        deltas.append(sgd(clients[k], w) - w)
        for _ in range(STEPS):
            own[k] = own[k] - ALPHA * (gradient(own[k], clients[k].batch()) + settings["lam"] * (own[k] - w))
    return w + np.mean(deltas, axis=0), own


def pfedme(settings, clients, w, own, chosen):
    lam, eta, beta = settings["lam"], settings["eta"], settings["beta"]
    models = []
    for k in chosen:
        model = own[k] = w
        for _ in range(STEPS):
            batch = clients[k].batch()
            for _ in range(settings["inner_steps"]):
                own[k] = own[k] - ALPHA * (gradient(own[k], batch) + lam * (own[k] - model))
            model = model - eta * lam * (model - own[k])
        models.append(model)
    return (1 - beta) * w + beta * np.mean(models, axis=0), own


def per_fedavg(settings, clients, w, own, chosen):
    alpha, models = settings["alpha"], []
    for k in chosen:
        model, client = w, clients[k]
        for _ in range(STEPS):
            adapted = model - alpha * gradient(model, client.batch())
            v = gradient(adapted, client.batch())
            if settings.get("variant") == "hessian-free":
                v = v - alpha * hessian_times(model, v, client.batch())
            model = model - ALPHA * v
        models.append(model)
    w = np.mean(models, axis=0)
    return w, [w - alpha * gradient(w, client.train) for client in clients]


def hessian_times(theta: np.ndarray, v: np.ndarray, samples: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """The exact product, which the difference of gradients stands for."""
    x, _ = samples
    p = np.exp(x @ weights(theta).T)
    p /= p.sum(axis=1, keepdims=True)
    moved = x @ weights(v).T
    slope = (p * (moved - (p * moved).sum(axis=1, keepdims=True))).T @ x / len(x)
    return np.concatenate([slope[:, :-1].ravel(), slope[:, -1]])


def participants(round: int, fraction: float) -> list[int]:
    if fraction == 1 or round > ROUNDS:
        return list(range(CLIENTS))
    order = generator(SEED, "participants", round).permutation(CLIENTS)
    return sorted(order[: int(fraction * CLIENTS + 0.5)].tolist())


@pytest.mark.parametrize(
    ("loop", "settings"),
    [
        (fedavg, {"name": "fedavg"}),
        (fedavg, {"name": "fedavg", "fraction": 0.5}),
        (ditto, {"name": "ditto", "lam": 0.3, "fraction": 0.5}),
        (pfedme, {"name": "pfedme", "lam": 1.5, "eta": 0.3, "beta": 1.2, "inner_steps": 4}),
        (per_fedavg, {"name": "per-fedavg", "alpha": 0.2}),
        (per_fedavg, {"name": "per-fedavg", "alpha": 0.2, "variant": "hessian-free"}),
    ],
    ids=["fedavg", "fedavg of half", "ditto", "pfedme", "per-fedavg", "per-fedavg with Hessian"],
)
def test_it_is_what_its_paper_says(run, loop, settings):
    folder = run(CONFIG + "\n".join(f"{key} = {str(value)!r}" if isinstance(value, str) else f"{key} = {value}"
                                    for key, value in settings.items()))  # fmt: skip
    start = folder.theta(0)
    clients = [Client(number, shard) for number, shard in sorted(folder.shards().items())]
    assert len(clients) == CLIENTS
    assert len({client.samples for client in clients}) > 1
    fraction = settings.get("fraction", 1.0)
    w, own, expected_traffic = start[SERVER], [start[k] for k in range(CLIENTS)], set()
    for round in range(1, ROUNDS + 1):
        now, next_ = participants(round, fraction), participants(round + 1, fraction)
        w, own = loop(settings, clients, w, own, now)
        own = own or [w] * CLIENTS
        expected_traffic |= {(k, SERVER, round) for k in now} | {(SERVER, k, round) for k in next_}

    # Only the exact Hessian differs from what the algorithm computes
    tolerance = 1e-6 if settings.get("variant") == "hessian-free" else 1e-12
    found = folder.theta(ROUNDS)
    assert np.linalg.norm(found[SERVER] - w) < tolerance * np.linalg.norm(w)
    if settings["name"] in ("ditto", "pfedme"):
        for k in range(CLIENTS):
            assert np.linalg.norm(found[k] - own[k]) < tolerance * np.linalg.norm(own[k])

    payload = folder.payload()
    assert set(payload) == expected_traffic
    assert {row[:2] for row in payload.values()} == {(1, 8 * w.size)}

    rows = folder.rows(
        f"SELECT node, test_metric, global_metric FROM round WHERE round = {ROUNDS} AND node < {CLIENTS} ORDER BY node"
    )
    assert rows == [(k, clients[k].accuracy(own[k]), clients[k].accuracy(w)) for k in range(CLIENTS)]
    assert folder.rows("SELECT node, train_samples FROM node WHERE role = 'server'") == [(SERVER, 0)]
    assert folder.rows(f"SELECT count(test_metric) FROM round WHERE node = {SERVER}") == [(0,)]


LONG = CONFIG.replace(f"rounds = {ROUNDS}", "rounds = 2000") + 'name = "ditto"\nfraction = 0.5\n'


def test_the_death_of_the_server_ends_the_run_and_is_told(start):
    going = start(LONG)
    going.until_round(2)
    processes = going.processes()
    os.kill(going.pid(SERVER), signal.SIGKILL)
    code, printed = going.end(seconds=15)
    assert code == 1
    assert re.search(r"error: the server died in round \d+: killed by SIGKILL", printed)
    assert alive(processes) == []


def test_an_interrupted_run_goes_on_with_both_models_of_each_client(cut, run):
    text = LONG.replace("rounds = 2000", "rounds = 60") + "[checkpoints]\nevery = 20\n[evaluation]\nevery = 0\n"
    broken = cut(text, round=40)
    broken.resume()
    assert broken.rows("SELECT detail LIKE '%resumed%' FROM event WHERE kind = 'start'") == [(0,), (1,)]
    assert_same_states(broken, run(text), 60)
