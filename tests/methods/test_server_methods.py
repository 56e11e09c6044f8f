"""Methods with a server, each against a plain loop; whether SFMTL-Graph finds groups that are there; and when things go
wrong: what arrived by the deadline is aggregated, and nothing else."""

from functools import partial

import networkx
import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from sympy.utilities.iterables import multiset_partitions

import oracles
from sheafgossip.topology.randomness import generator

from .plain import CLIENTS, ROUNDS, SEED, SERVER, TRAINING, Loop, played


class FedAvg(Loop):
    def aggregate(self, now):
        self.w = self.mean(now)

    def personal(self, k):
        return self.theta[k]


class Ditto(FedAvg):
    def __init__(self, folder, settings):
        super().__init__(folder, settings)
        self.deltas = {}

    def learn(self, k):
        self.deltas[k] = self.sgd(k, self.w) - self.w
        for _ in range(self.steps):
            pull = self.settings["lam"] * (self.theta[k] - self.w)
            self.theta[k] = self.theta[k] - self.alpha * (self.gradient(k, self.theta[k], self.batch(k)) + pull)

    def aggregate(self, now):
        self.w = self.w + np.mean([self.deltas[k] for k in now], axis=0)

    def download(self, k):
        pass


class PFedMe(Ditto):
    def learn(self, k):
        lam, eta, theta, w_k = self.settings["lam"], self.settings["eta"], self.w, self.w
        for _ in range(self.steps):
            batch = self.batch(k)
            for _ in range(self.settings["inner_steps"]):
                theta = theta - self.alpha * (self.gradient(k, theta, batch) + lam * (theta - w_k))
            w_k = w_k - eta * lam * (w_k - theta)
        self.theta[k], self.deltas[k] = theta, w_k

    def aggregate(self, now):
        beta = self.settings["beta"]
        self.w = (1 - beta) * self.w + beta * np.mean([self.deltas[k] for k in now], axis=0)


class PerFedAvg(FedAvg):
    def learn(self, k):
        alpha, theta = self.settings["alpha"], self.theta[k]
        for _ in range(self.steps):
            v = self.gradient(k, theta - alpha * self.gradient(k, theta, self.batch(k)), self.batch(k))
            if self.settings.get("variant") == "hessian-free":
                v = v - alpha * self.hessian_times(theta, v, self.shards[k]["x_train"][self.batch(k)])
            theta = theta - self.alpha * v
        self.theta[k] = theta

    def hessian_times(self, theta, v, images):
        """The exact product, which the difference of gradients stands for."""
        x, (w,), (direction,) = oracles.bordered(images), oracles.layers_of(theta), oracles.layers_of(v)
        p, moved = oracles.probabilities(x @ w.T), x @ direction.T
        return oracles.theta_of([(p * (moved - (p * moved).sum(axis=1, keepdims=True))).T @ x / len(x)])

    def aggregate(self, now):
        self.w = np.mean([self.theta[k] for k in now], axis=0)

    def personal(self, k):
        return self.theta[k] - self.settings["alpha"] * self.gradient(k, self.theta[k])


@pytest.mark.parametrize(
    ("loop", "settings"),
    [
        (FedAvg, {"name": "fedavg"}),
        (FedAvg, {"name": "fedavg", "fraction": 0.5}),
        (Ditto, {"name": "ditto", "lam": 0.3, "fraction": 0.5}),
        (PFedMe, {"name": "pfedme", "lam": 1.5, "eta": 0.3, "beta": 1.2, "inner_steps": 4}),
        (PerFedAvg, {"name": "per-fedavg", "alpha": 0.2}),
        (PerFedAvg, {"name": "per-fedavg", "alpha": 0.2, "variant": "hessian-free"}),
    ],
    ids=["fedavg", "fedavg of half", "ditto", "pfedme", "per-fedavg", "per-fedavg with Hessian"],
)
def test_a_method_with_a_common_model_is_what_its_paper_says(run, loop, settings):
    # Only the exact Hessian differs from what the algorithm computes
    tolerance = 1e-6 if settings.get("variant") == "hessian-free" else 1e-12
    loop = played(run, loop, settings, "evaluation.train=true", tolerance=tolerance)
    folder, shards = loop.folder, loop.shards
    assert len(set(loop.n)) > 1
    assert oracles.error(folder.theta(ROUNDS)[SERVER], loop.w) < tolerance
    metrics = f"SELECT node, test_metric, global_metric FROM round WHERE round = {ROUNDS} AND node < {CLIENTS}"
    assert folder.rows(f"{metrics} ORDER BY node") == [
        (k, oracles.accuracy(loop.personal(k), shards[k]), oracles.accuracy(loop.w, shards[k])) for k in range(CLIENTS)
    ]
    assert folder.rows("SELECT node, train_samples FROM node WHERE role = 'server'") == [(SERVER, 0)]
    assert folder.rows(f"SELECT count(test_metric) FROM round WHERE node = {SERVER}") == [(0,)]
    on_training = f"SELECT node, name, value FROM metric WHERE round = {ROUNDS} ORDER BY node"
    seen = [{"x_test": shard["x_train"], "y_test": shard["y_train"]} for shard in shards.values()]
    assert folder.rows(on_training) == [
        (k, "train_accuracy", oracles.accuracy(loop.personal(k), seen[k])) for k in range(CLIENTS)
    ]


# -- models of which some layers are shared ----------------------------------------------------------------------------

SHARED = {"model": slice(None), "extractor": slice(None, -1), "head": slice(-1, None)}
TASKS = 'data.tasks=["classes", "parity"]'
OWN_START = "model.same_start=false"  # no two units alike: then the trace norm has a gradient
MLP, MIX = ("model.kind=mlp", "model.hidden=[12]"), 'model.mix=[{ kind = "mlp", hidden = [9, 12] }]'
DEEP = 9 * 65 + 12 * 10 + 10 * 13


class FedAvgC(Loop):
    """``w`` is {client: the layers that it gets}."""

    def layers(self, k):
        return oracles.layers_of(self.theta[k], self.hidden_of(k))

    def hidden_of(self, k):
        return (9, 12) if self.theta[k].size == DEEP else (12,)

    def gradient(self, k, theta, rows=slice(None)):
        return oracles.gradient(theta, self.shards[k], rows, self.hidden_of(k))

    def shared(self, k):
        return self.layers(k)[SHARED[self.settings["share"]]]

    def aggregate(self, now):
        total = sum(self.n[k] for k in now)
        of_client = [[self.n[k] / total * layer for layer in self.shared(k)] for k in now]
        self.w = dict.fromkeys(range(self.clients), tuple(map(sum, zip(*of_client, strict=True))))

    def download(self, k):
        layers = self.layers(k)
        layers[SHARED[self.settings["share"]]] = self.w[k]
        self.theta[k] = oracles.theta_of(layers)

    def numbers(self, k):
        return sum(layer.size for layer in self.shared(k))


class FedSAK(FedAvgC):
    same_round = True

    def aggregate(self, now):
        self.w = {k: list(self.shared(k)) for k in now}
        for place in range(len(self.w[now[0]])):
            layer = np.stack([self.w[k][place] for k in now], axis=-1)
            alpha = self.settings.get("mode_weights", [1, 1, 1])
            slopes = slope_of(layer[:, :-1], alpha), slope_of(layer[:, -1], [alpha[0], alpha[2]])[:, None]
            slope = np.concatenate(slopes, axis=1)
            for m, k in enumerate(now):
                step = self.settings["eta"] * self.settings["lam"]
                self.w[k][place] = self.w[k][place] - step * slope[..., m]


def slope_of(stacked, alpha):
    """Of sum_k alpha_k ||W_(k)||_* of one layer of all clients, stacked along the last mode (2), (4), (5)."""
    W = torch.from_numpy(stacked.copy()).requires_grad_()
    norms = [torch.linalg.matrix_norm(W.movedim(k, 0).flatten(1), "nuc") for k in range(W.ndim)]
    sum(weight * norm for weight, norm in zip(alpha, norms, strict=True)).backward()
    return W.grad.numpy()


@pytest.mark.parametrize(
    ("loop", "share", "fraction", "changes"),
    [
        (FedSAK, "model", 1.0, [OWN_START]),
        (FedSAK, "head", 0.6, [MIX]),
        (FedSAK, "extractor", 1.0, [TASKS, OWN_START]),
        (FedAvgC, "extractor", 0.6, [TASKS]),
        (FedAvgC, "head", 1.0, [MIX]),
    ],
    ids=["FedSAK: data", "FedSAK: models", "FedSAK: tasks", "FedAvg-c: tasks", "FedAvg-c: models"],
)
def test_a_method_that_shares_layers_is_what_its_paper_says(run, loop, share, fraction, changes):
    name = {"name": "fedsak", "lam": 0.4, "eta": 0.05} if loop is FedSAK else {"name": "fedavg-c"}
    loop = played(run, loop, {**name, "share": share, "fraction": fraction}, *MLP, *changes)
    sizes = [theta.size for theta in loop.theta]
    assert sizes == [910, DEEP if MIX in changes else 806 if TASKS in changes else 910] * 3
    assert loop.folder.rows("SELECT count(global_metric) FROM round") == [(0,)]
    if TASKS in changes:  # all start with one extractor, and those of one task with one head
        start = [oracles.layers_of(theta, (12,)) for theta in loop.folder.theta(0).values()]
        assert all((extractor == start[0][0]).all() for extractor, _ in start) == (OWN_START not in changes)
        assert (start[1][1] == start[3][1]).all() == (OWN_START not in changes)


def test_the_modes_of_fedsak_have_the_weights_that_they_are_given(run):
    weights = {"name": "fedsak", "lam": 0.4, "eta": 0.05, "share": "model", "mode_weights": [0.25, 3, 1.5]}
    played(run, FedSAK, weights, *MLP, OWN_START)


# -- communities of clients --------------------------------------------------------------------------------------------

CLASSES = 10


class SFMTLGraph(Loop):
    hidden = (12,)

    def __init__(self, folder, settings):
        super().__init__(folder, settings)
        self.classes = [sorted(set(shard["y_train"].tolist())) for shard in self.shards.values()]
        start = generator(SEED, "anchors").standard_normal((CLASSES, 12))
        self.h = [{c: start[c] for c in classes} for classes in self.classes]
        self.known, self.told, self.weights = {}, [], np.full((CLIENTS, CLIENTS), np.nan)

    def numbers(self, k):
        return CLASSES * 13 + len(self.classes[k]) * 12

    def learn(self, k):
        theta, shard = self.theta[k], self.shards[k]
        for _ in range(self.steps):
            anchors = np.array([self.h[k].get(c, np.zeros(12)) for c in range(CLASSES)])
            slope = oracles.gradient(theta, shard, self.batch(k), self.hidden, anchors, self.settings["lam"])
            theta = theta - self.alpha * slope
        features = oracles.features_of(theta, shard["x_train"], self.hidden)[-1][:, :-1]
        self.theta[k] = theta
        self.h[k] = {c: features[shard["y_train"] == c].mean(axis=0) for c in self.classes[k]}

    def head(self, k):
        return oracles.layers_of(self.theta[k], self.hidden)[-1]

    def similarity(self, k, j):
        """(7) with (8)-(10), summed over the classes that both have."""
        total, alpha = 0.0, self.settings["alpha"]
        for c in set(self.classes[k]) & set(self.classes[j]):
            scores = [[self.head(i) @ np.append(h, 1) for i in (k, j)] for h in (self.h[k][c], self.h[j][c])]
            heads = sum(cosine(*each) / 2 for each in scores)
            total += alpha * heads + (1 - alpha) * cosine(self.h[k][c], self.h[j][c])
        return max(0.0, total / max(len(self.classes[k]), len(self.classes[j])))

    def aggregate(self, now):
        a = np.array([[0.0 if k == j else self.similarity(k, j) for j in now] for k in now])
        self.weights[np.ix_(now, now)] = a
        modularity = partial(networkx.community.modularity, networkx.from_numpy_array(a))  # (11)
        finest_first = sorted(multiset_partitions(list(range(len(now)))), key=len, reverse=True)
        best = max(finest_first, key=modularity)  # who is like nobody stays alone
        for part in best:
            anchors = {}
            for c in range(CLASSES):
                having = [now[i] for i in part if c in self.classes[now[i]]]
                anchors[c] = sum(self.n[k] / sum(self.n[j] for j in having) * self.h[k][c] for k in having)  # (14)
            for i in part:
                k, lam_tau = now[i], self.settings["lam"] * self.alpha * self.steps
                head = self.head(k) - lam_tau * sum(a[i, j] * (self.head(k) - self.head(now[j])) for j in part)
                self.known[k] = head, {c: anchors[c] for c in self.classes[k]}  # (15)
        self.told.append(sorted(sorted(now[i] for i in part) for part in best))

    def download(self, k):
        if k in self.known:
            head, self.h[k] = self.known[k]
            self.theta[k] = oracles.theta_of([*oracles.layers_of(self.theta[k], self.hidden)[:-1], head])


def cosine(u, v):
    return u @ v / np.linalg.norm(u) / np.linalg.norm(v)


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_sfmtl_graph_is_what_its_paper_says_and_sends_heads_and_anchors_only(run, fraction):
    settings = {"name": "sfmtl-graph", "lam": 0.02, "alpha": 0.49, "fraction": fraction}
    loop = played(run, SFMTLGraph, settings, *MLP, tolerance=1e-9)
    found, folder = loop.folder.states(ROUNDS), loop.folder
    for k in range(CLIENTS):
        for c in loop.classes[k]:
            np.testing.assert_allclose(found[k]["anchors"][c], loop.h[k][c], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found[SERVER]["weights"], loop.weights, rtol=1e-6)
    events = [text for (text,) in folder.rows("SELECT detail FROM event WHERE kind = 'communities' ORDER BY wall_s")]
    changes = [parts for parts, before in zip(loop.told, [None, *loop.told], strict=False) if parts != before]
    assert [sorted([int(k) for k in part.split()] for part in text.split(" | ")) for text in events] == changes
    assert folder.rows("SELECT count(global_metric) FROM round") == [(0,)]  # there is no common model


GROUPS = """
rounds = 30
evaluation.every = 0
training = { work = "steps", steps = 5, alpha = 0.1 }
algorithm = { name = "sfmtl-graph", lam = 0.001 }
model = { kind = "mlp", hidden = [32] }
"""


@pytest.mark.parametrize(
    ("clients", "data"),
    [(15, ["data.partition=clusters"]), (12, ["data.rotations=[0, 90]", "data.mask=2"])],
    ids=["clusters of classes", "rotated and masked"],
)
def test_the_communities_of_sfmtl_graph_are_the_groups_of_clients(run, clients, data):
    folder = run(GROUPS, f"clients={clients}", *data)
    groups = folder.rows("SELECT value FROM meta WHERE key = 'groups'")[0][0].split(",")
    assert adjusted_rand_score(groups, folder.states(30)[clients]["community"]) >= 0.9


# -- when things go wrong ----------------------------------------------------------------------------------------------

MANY, LONG = 7, 14
TROUBLE = f"""
clients = {MANY}
rounds = {LONG}
seed = 3
data.samples = 500
time = {{ clock = "virtual", deadline_s = 0.6, silence = "skip" }}
compute.step_s = 0.05
links = {{ latency = "uniform", latency_s = 0.01, latency_high_s = 0.05, loss = 0.08 }}
checkpoints.every = 2
{TRAINING}
faults = [
    {{ kind = "crash", clients = [2], at_round = 6, restart_after = 3 }},
    {{ kind = "slow", clients = [5], rounds = [3, 3], factor = 12.0 }},
    {{ kind = "join", clients = [6], at_round = 3 }},
]
"""
FEDAVG = ("algorithm.name=fedavg", "model.dtype=float64")


def assert_used_as_planned(folder):
    used = folder.rows(f"SELECT round, phase, neighbour, used_round FROM used WHERE node = {MANY}")
    assert sum(of != round for round, _, _, of in used) > 3
    found = np.zeros_like(folder.plan[MANY]["uses"])
    for round, phase, i, of in used:
        found[round - 1, phase, i] = of or 0
    assert np.array_equal(found, folder.plan[MANY]["uses"])


def test_fedavg_averages_the_uploads_that_the_plan_lets_through(run):
    folder = run(TROUBLE, *FEDAVG)
    plan, server, loop = folder.plan, folder.plan[MANY], FedAvg(folder, {})
    loop.seed, loop.theta, loop.drawn = 3, [loop.w] * MANY, [0] * MANY  # also of the client that joins
    written = {0: (list(loop.theta), list(loop.drawn))}  # what a client that comes back goes on from
    for row, round in enumerate(range(1, LONG + 1)):
        uploads = [i for i in range(MANY) if not np.isnan(plan[i]["compute"][row])]
        for i, state in ((2, 4), (6, 0)):  # who has just come back: from its last checkpoint, or its start
            if row and np.isnan(plan[i]["end"][row - 1]) and not np.isnan(plan[i]["end"][row]):
                loop.theta[i], loop.drawn[i] = (each[i] for each in written[state])
        for i in uploads:
            loop.learn(i)
        heard = [i for i in range(MANY) if server["uses"][row, 0, i]]
        assert set(heard) <= set(uploads)
        if heard:
            loop.aggregate(heard)
        for i in range(MANY):
            if plan[i]["uses"][row, 0, 0]:
                loop.download(i)
        written[round] = list(loop.theta), list(loop.drawn)
    found = folder.theta(LONG)
    assert max(oracles.error(found[i], model) for i, model in enumerate([*loop.theta, loop.w])) < 1e-9

    # Something of everything has happened: lost, too late, left out, away
    missing = server["uses"][:, 0] == 0
    assert missing[2:, 5].any()
    assert missing[:2, 6].all()
    assert missing[5:8, 2].all()
    assert (~np.isnan(plan[5]["end"]) & np.isnan(plan[5]["compute"])).any()
    assert server["deadlines"].sum() > 2
    assert_used_as_planned(folder)
    assert folder.rows(f"SELECT max(virtual_s) FROM round WHERE node = {MANY}") == [(server["end"][-1],)]


def test_on_the_wall_clock_the_server_goes_on_at_the_deadline(run):
    folder = run(TROUBLE, *FEDAVG, "time.clock=wall", "rounds=8", "compute.step_s=0.02", "time.deadline_s=0.3")
    heard = folder.rows(f"SELECT round, count(used_round) FROM used WHERE node = {MANY} GROUP BY round ORDER BY round")
    rounds, counts = zip(*heard, strict=True)
    assert rounds == tuple(range(1, 9))
    assert min(counts) < MANY
    assert sum(counts) > 25
    straggler = folder.rows(f"SELECT used_round FROM used WHERE node = {MANY} AND round = 3 AND neighbour = 5")
    assert straggler == [(None,)]
