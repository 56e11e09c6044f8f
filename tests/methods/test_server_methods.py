"""FedAvg, Ditto, pFedMe and Per-FedAvg, each against a plain loop; and methods with a server when things go wrong: what
arrived by the deadline is aggregated, and nothing else."""

import numpy as np
import pytest

import oracles
from oracles import logistic_gradient

CLIENTS, ROUNDS, STEPS, BATCH, ALPHA, SEED = 6, 8, 3, 16, 0.4, 5
SERVER = CLIENTS
TRAINING = f"""
[training]
work = "steps"
steps = {STEPS}
batch_size = {BATCH}
alpha = {ALPHA}
"""
CONFIG = f"""
clients = {CLIENTS}
rounds = {ROUNDS}
seed = {SEED}
[data]
samples = 480
partition = "classes"
classes_per_client = 4
reduced_clients = 0.5
[model]
dtype = "float64"
{TRAINING}
[algorithm]
"""


class Client:
    """What the loop knows of a client: its shard, and how many mini-batches it has drawn."""

    def __init__(self, number, shard, seed=SEED):
        self.number, self.shard, self.seed, self.drawn = number, shard, seed, 0
        self.samples = len(shard["y_train"])

    def batch(self):
        self.drawn += 1
        return oracles.batch_rows(self.seed, self.number, self.samples, BATCH, self.drawn - 1)

    def gradient(self, theta, rows=slice(None)):
        return logistic_gradient(theta, self.shard, rows)

    def sgd(self, theta):
        for _ in range(STEPS):
            theta = theta - ALPHA * self.gradient(theta, self.batch())
        return theta


def mean(clients, models):
    """Weighted by samples."""
    samples = {k: clients[k].samples for k in models}
    return sum(samples[k] * models[k] for k in models) / sum(samples.values())


def fedavg(settings, clients, w, own, chosen):
    return mean(clients, {k: clients[k].sgd(w) for k in chosen}), None


def ditto(settings, clients, w, own, chosen):
    deltas = []
    for k in chosen:
        deltas.append(clients[k].sgd(w) - w)
        for _ in range(STEPS):
            own[k] = own[k] - ALPHA * (clients[k].gradient(own[k], clients[k].batch()) + settings["lam"] * (own[k] - w))
    return w + np.mean(deltas, axis=0), own


def pfedme(settings, clients, w, own, chosen):
    lam, eta, beta = settings["lam"], settings["eta"], settings["beta"]
    models = []
    for k in chosen:
        model = own[k] = w
        for _ in range(STEPS):
            batch = clients[k].batch()
            for _ in range(settings["inner_steps"]):
                own[k] = own[k] - ALPHA * (clients[k].gradient(own[k], batch) + lam * (own[k] - model))
            model = model - eta * lam * (model - own[k])
        models.append(model)
    return (1 - beta) * w + beta * np.mean(models, axis=0), own


def per_fedavg(settings, clients, w, own, chosen):
    alpha, models = settings["alpha"], []
    for k in chosen:
        model, client = w, clients[k]
        for _ in range(STEPS):
            adapted = model - alpha * client.gradient(model, client.batch())
            v = client.gradient(adapted, client.batch())
            if settings.get("variant") == "hessian-free":
                v = v - alpha * hessian_times(model, v, client.shard["x_train"][client.batch()])
            model = model - ALPHA * v
        models.append(model)
    w = np.mean(models, axis=0)
    return w, [w - alpha * client.gradient(w) for client in clients]


def hessian_times(theta, v, images):
    """The exact product, which the difference of gradients stands for."""
    x = oracles.bordered(images)
    p = oracles.probabilities(x @ oracles.weights_of(theta).T)
    moved = x @ oracles.weights_of(v).T
    slope = (p * (moved - (p * moved).sum(axis=1, keepdims=True))).T @ x / len(x)
    return np.concatenate([slope[:, :-1].ravel(), slope[:, -1]])


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
    folder = run(CONFIG + "\n".join(f"{key} = {value!r}" for key, value in settings.items()))
    start, shards = folder.theta(0), folder.shards()
    clients = [Client(number, shard) for number, shard in shards.items()]
    assert len({client.samples for client in clients}) > 1
    fraction = settings.get("fraction", 1.0)
    w, own, expected = start[SERVER], [start[k] for k in range(CLIENTS)], set()
    for round in range(1, ROUNDS + 1):
        now, after = (oracles.participants(SEED, CLIENTS, ROUNDS, fraction, round + more) for more in (0, 1))
        w, own = loop(settings, clients, w, own, now)
        own = own or [w] * CLIENTS
        expected |= {(k, SERVER, round) for k in now} | {(SERVER, k, round) for k in after}

    # Only the exact Hessian differs from what the algorithm computes
    tolerance = 1e-6 if settings.get("variant") == "hessian-free" else 1e-12
    found = folder.theta(ROUNDS)
    assert oracles.error(found[SERVER], w) < tolerance
    if loop in (ditto, pfedme):
        assert max(oracles.error(found[k], own[k]) for k in range(CLIENTS)) < tolerance
    assert folder.sent() == dict.fromkeys(expected, (1, 8 * w.size))
    metrics = f"SELECT node, test_metric, global_metric FROM round WHERE round = {ROUNDS} AND node < {CLIENTS}"
    assert folder.rows(f"{metrics} ORDER BY node") == [
        (k, oracles.accuracy(own[k], shards[k]), oracles.accuracy(w, shards[k])) for k in range(CLIENTS)
    ]
    assert folder.rows("SELECT node, train_samples FROM node WHERE role = 'server'") == [(SERVER, 0)]
    assert folder.rows(f"SELECT count(test_metric) FROM round WHERE node = {SERVER}") == [(0,)]


MANY, LONG = 7, 14
TROUBLE = f"""
clients = {MANY}
rounds = {LONG}
seed = 3
[data]
samples = 500
{TRAINING}
[time]
clock = "virtual"
deadline_s = 0.6
silence = "skip"
[compute]
step_s = 0.05
[links]
latency = "uniform"
latency_s = 0.01
latency_high_s = 0.05
loss = 0.08
[checkpoints]
every = 2
[[faults]]
kind = "crash"
clients = [2]
at_round = 6
restart_after = 3
[[faults]]
kind = "slow"
clients = [5]
rounds = [3, 3]
factor = 12.0
[[faults]]
kind = "join"
clients = [6]
at_round = 3
"""
FEDAVG = """
[model]
dtype = "float64"
[algorithm]
name = "fedavg"
"""


def test_fedavg_averages_the_uploads_that_the_plan_lets_through(run):
    folder = run(TROUBLE + FEDAVG)
    plan, server, w = folder.plan, folder.plan[MANY], folder.theta(0)[MANY]
    clients = {i: Client(i, shard, seed=3) for i, shard in folder.shards().items()}
    models = dict.fromkeys(clients, w)
    written = {0: (dict(models), dict.fromkeys(clients, 0))}  # what a client that comes back goes on from
    away = dict.fromkeys(clients, 0)
    for row, round in enumerate(range(1, LONG + 1)):
        uploads = {}
        for i, client in clients.items():
            if np.isnan(plan[i]["end"][row]):
                away[i] = round
                continue
            if away[i] == row and row:  # it has just come back: client 2 from its last checkpoint, 6 from its start
                before = written[4 if i == 2 else 0]
                models[i], client.drawn = before[0][i], before[1][i]
            if not np.isnan(plan[i]["compute"][row]):
                uploads[i] = models[i] = client.sgd(models[i])
        heard = [i for i in clients if server["uses"][row, 0, i]]
        assert set(heard) <= set(uploads)
        w = mean(clients, {i: uploads[i] for i in heard}) if heard else w
        models |= {i: w for i in clients if plan[i]["uses"][row, 0, 0]}
        written[round] = dict(models), {i: client.drawn for i, client in clients.items()}
    found = folder.theta(LONG)
    assert max(oracles.error(found[i], model) for i, model in (models | {MANY: w}).items()) < 1e-9

    # Something of everything has happened: lost, too late, left out, away
    missing = server["uses"][:, 0] == 0
    assert missing[2:, 5].any()
    assert missing[:2, 6].all()
    assert missing[5:8, 2].all()
    assert (~np.isnan(plan[5]["end"]) & np.isnan(plan[5]["compute"])).any()
    assert server["deadlines"].sum() > 2
    used = folder.rows(f"SELECT round, neighbour FROM used WHERE node = {MANY} AND used_round = round")
    assert set(used) == {(row + 1, i) for row, i in np.argwhere(~missing).tolist()}
    assert folder.rows(f"SELECT max(virtual_s) FROM round WHERE node = {MANY}") == [(server["end"][-1],)]


OTHERS = {
    "ditto": "fraction = 0.6",
    "pfedme": "",
    "sfmtl-graph": '[model]\nkind = "mlp"\nhidden = [16]',
    "flt": 'embedding = 8\nmanifold = "pca"\ncase = "related"\nfraction = 0.6',
    "fedsak": "fraction = 0.6",
    "shn": "fraction = 0.6\nembedding_rounds = 5\nhidden = 16\nembedding = 4",
}


@pytest.mark.parametrize("name", OTHERS)
def test_each_method_with_a_server_tolerates_a_crash_losses_and_a_straggler(run, name):
    silence = 'time.silence="stale"' if name == "pfedme" else 'time.silence="skip"'  # of the last uploads, or without
    folder = run(TROUBLE + f'[algorithm]\nname = "{name}"\n' + OTHERS[name], silence)
    ((missed,),) = folder.rows(f"SELECT count(*) FROM used WHERE node = {MANY} AND used_round IS NOT round")
    assert missed > 3
    kinds = folder.rows("SELECT kind FROM event WHERE kind IN ('crash', 'restart', 'join') ORDER BY 1")
    assert kinds == [("crash",), ("join",), ("restart",)]
    assert all(np.isfinite(theta).all() for theta in folder.theta(LONG).values())
    planned = folder.plan[MANY]["uses"]
    found = np.zeros_like(planned)
    for round, phase, i, used in folder.rows(
        f"SELECT round, phase, neighbour, used_round FROM used WHERE node = {MANY} AND used_round IS NOT NULL"
    ):
        found[round - 1, phase, i] = used
    assert np.array_equal(found, planned)


def test_on_the_wall_clock_the_server_goes_on_at_the_deadline(run):
    overrides = ('time.clock="wall"', "rounds=8", "compute.step_s=0.02", "time.deadline_s=0.3")
    folder = run(TROUBLE + FEDAVG, *overrides)
    heard = folder.rows(f"SELECT round, count(used_round) FROM used WHERE node = {MANY} GROUP BY round ORDER BY round")
    assert [round for round, _ in heard] == list(range(1, 9))
    assert min(count for _, count in heard) < MANY
    assert sum(count for _, count in heard) > 25
    straggler = folder.rows(f"SELECT used_round FROM used WHERE node = {MANY} AND round = 3 AND neighbour = 5")
    assert straggler == [(None,)]
