"""Methods with local steps of another kind, and FedAvg's and FedU's relatives, against plain loops."""

import numpy as np
import pytest
import scipy.linalg
import torch
from torch.nn.functional import cosine_similarity, cross_entropy, linear, relu

import oracles
from runs import assert_same_states

from .plain import CLIENTS, CONFIG, ROUNDS, Loop, Neighbours, played

MLP = ("model.kind=mlp", "model.hidden=[12]")


class FedAvg(Loop):
    def aggregate(self, now):
        self.w = self.mean(now)

    def personal(self, k):
        return self.w


class FedAvgFT(FedAvg):
    def personal(self, k):
        v = self.w
        for _ in range(self.settings["steps"]):
            v = v - self.alpha * self.gradient(k, v)
        return v


class FedProx(FedAvg):
    def learn(self, k):
        w = self.theta[k]
        for _ in range(self.steps):
            slope = self.gradient(k, self.theta[k], self.batch(k)) + self.settings["mu"] * (self.theta[k] - w)
            self.theta[k] = self.theta[k] - self.alpha * slope


class SCAFFOLD(FedAvg):
    """The server's c as the paper has it, by the changes of the clients' ones."""

    def __init__(self, folder, settings):
        super().__init__(folder, settings)
        self.c, self.of, self.told = 0 * self.w, [0 * self.w] * self.clients, [0 * self.w] * self.clients
        self.changes = {}

    def learn(self, k):
        x, y = self.theta[k], self.theta[k]
        for _ in range(self.steps):
            y = y - self.alpha * (self.gradient(k, y, self.batch(k)) - self.of[k] + self.told[k])
        new = self.of[k] - self.told[k] + (x - y) / (self.steps * self.alpha)
        self.changes[k], self.of[k], self.theta[k] = new - self.of[k], new, y

    def aggregate(self, now):
        self.w = self.w + self.settings["eta"] * (np.mean([self.theta[k] for k in now], axis=0) - self.w)
        self.c = self.c + sum(self.changes[k] for k in now) / self.clients

    def download(self, k):
        super().download(k)
        self.told[k] = self.c

    def numbers(self, k):
        return 2 * self.w.size


@pytest.mark.parametrize(
    ("loop", "settings"),
    [
        (FedAvgFT, {"name": "fedavg-ft", "steps": 4}),
        (FedProx, {"name": "fedprox", "mu": 0.4, "fraction": 0.5}),
        (SCAFFOLD, {"name": "scaffold", "eta": 0.9, "fraction": 0.5}),
    ],
)
def test_a_method_with_a_common_model_is_what_its_paper_says(run, loop, settings):
    loop = played(run, loop, settings)
    metrics = f"SELECT node, test_metric, global_metric FROM round WHERE round = {ROUNDS} AND node < {CLIENTS}"
    assert loop.folder.rows(f"{metrics} ORDER BY node") == [
        (k, *(oracles.accuracy(theta, loop.shards[k]) for theta in (loop.personal(k), loop.w))) for k in range(CLIENTS)
    ]


def test_the_steps_that_an_evaluation_takes_change_nothing_of_the_training(run):
    dropout, settings = "model.dropout=0.3", ("algorithm.name=fedavg-ft", "algorithm.steps=2")
    often, never = (run(CONFIG, *MLP, dropout, *settings, f"evaluation.every={every}") for every in (1, 0))
    assert_same_states(often, never, ROUNDS)
    learnt = run(CONFIG, *MLP, dropout, "algorithm.name=fedavg")
    assert (often.thetas(ROUNDS) == learnt.thetas(ROUNDS)).all()
    tuned = run(CONFIG, *MLP, dropout, "algorithm.name=fedavg", "evaluation.fine_tune=2")
    metrics = "SELECT node, round, train_loss, test_metric FROM round ORDER BY node, round"
    assert tuned.rows(metrics) == often.rows(metrics)
    assert (tuned.thetas(ROUNDS) == learnt.thetas(ROUNDS)).all()


def test_own_models_of_any_method_may_be_tuned_before_they_are_tested(run):
    own = run(CONFIG, "algorithm.name=dfedu", "evaluation.fine_tune=3")
    loop, accuracies = FedAvgFT(own, {"steps": 3}), []
    for k, loop.w in enumerate(own.thetas(ROUNDS)):
        accuracies.append((oracles.accuracy(loop.personal(k), loop.shards[k]),))
    assert own.rows(f"SELECT test_metric FROM round WHERE round = {ROUNDS} ORDER BY node") == accuracies


class MOON(FedAvg):
    hidden = (12,)

    def __init__(self, folder, settings):
        super().__init__(folder, settings)
        self.before = list(self.theta)

    def learn(self, k):
        w = self.theta[k]
        for _ in range(self.steps):
            rows = self.batch(k)
            x, y = (torch.from_numpy(self.shards[k][name][rows]) for name in ("x_train", "y_train"))
            x, theta = x.double().flatten(1), torch.from_numpy(self.theta[k]).requires_grad_()
            z, z_w, z_before = (features(each, x) for each in map(torch.as_tensor, (theta, w, self.before[k])))
            s = torch.stack([cosine_similarity(z, z_w), cosine_similarity(z, z_before)], 1) / self.settings["tau"]
            scores = linear(z, theta[-130:-10].view(10, 12), theta[-10:])
            loss = cross_entropy(scores, y) + self.settings["mu"] * cross_entropy(s, torch.zeros(len(x), dtype=int))
            (slope,) = torch.autograd.grad(loss, theta)
            self.theta[k] = self.theta[k] - self.alpha * slope.numpy()
        self.before[k] = self.theta[k]


def features(theta, x):
    return relu(linear(x, theta[: 12 * 64].view(12, 64), theta[12 * 64 : 12 * 65]))


def test_moon_is_what_its_paper_says(run):
    played(run, MOON, {"name": "moon", "mu": 2.0, "tau": 0.4, "fraction": 0.5}, *MLP)


# -- without a server --------------------------------------------------------------------------------------------------


class DFedAvgM(Neighbours):
    def learn(self, k):
        before = y = self.theta[k]
        for _ in range(self.steps):
            step = self.alpha * self.gradient(k, y, self.batch(k))
            before, y = y, y - step + self.settings["beta"] * (y - before)
        self.theta[k] = y


class DFedSAM(Neighbours):
    def __init__(self, folder, settings):
        super().__init__(folder, settings)
        self.messages = settings["gossip_steps"]

    def learn(self, k):
        for _ in range(self.steps):
            rows = self.batch(k)
            g = self.gradient(k, self.theta[k], rows)
            ahead = self.theta[k] + self.settings["rho"] * g / np.linalg.norm(g)
            self.theta[k] = self.theta[k] - self.alpha * self.gradient(k, ahead, rows)


@pytest.mark.parametrize(
    ("loop", "settings"),
    [
        (DFedAvgM, {"name": "dfedavgm", "beta": 0.7}),
        (DFedSAM, {"name": "dfedsam", "rho": 0.2, "gossip_steps": 1}),
        (DFedSAM, {"name": "dfedsam", "rho": 0.2, "gossip_steps": 3}),
    ],
)
def test_a_method_without_a_server_is_what_its_paper_says(run, loop, settings):
    played(run, loop, settings)


# -- a server that holds a model of each client ------------------------------------------------------------------------


class FedU(Loop):
    same_round = True

    def aggregate(self, now):
        L = self.clients * np.eye(self.clients) - 1
        if self.settings["relations"] == "topology":  # a ring
            L = oracles.laplacian([(k, (k + 1) % self.clients) for k in range(self.clients)], self.clients)
        pulls = self.steps * self.alpha * self.settings["lam"] * L @ np.stack(self.theta)
        for k in now:
            self.theta[k] = self.theta[k] - pulls[k]

    def download(self, k):
        pass


class FedMTL(Loop):
    def __init__(self, folder, settings):
        super().__init__(folder, settings)
        self.g, self.heard = np.zeros((self.clients, self.w.size)), {}
        self.pull = [0 * self.w] * self.clients

    def learn(self, k):
        for _ in range(self.steps):
            slope = self.gradient(k, self.theta[k], self.batch(k)) + self.settings["lam"] * self.pull[k]
            self.theta[k] = self.theta[k] - self.alpha * slope

    def aggregate(self, now):
        self.heard |= {k: self.theta[k] for k in now}
        W = np.stack(list(self.heard.values()), axis=1)
        gram = W.T @ W
        Omega = scipy.linalg.sqrtm(gram + self.settings["ridge"] * np.diag(gram).mean() * np.eye(len(gram))).real
        self.g[list(self.heard)] = (W @ np.linalg.inv(Omega / np.trace(Omega))).T

    def download(self, k):
        self.pull[k] = self.g[k].copy()


@pytest.mark.parametrize(
    ("loop", "settings", "changes"),
    [
        (FedU, {"name": "fedu", "lam": 0.05, "relations": "all", "fraction": 0.5}, []),
        (FedU, {"name": "fedu", "lam": 0.2, "relations": "topology", "fraction": 0.5}, ["topology.kind=ring"]),
        (FedMTL, {"name": "fedmtl", "lam": 0.01, "ridge": 0.02, "fraction": 0.5}, []),
    ],
)
def test_a_method_that_relates_clients_is_what_its_paper_says(run, loop, settings, changes):
    loop = played(run, loop, settings, *changes, tolerance=1e-9)
    assert loop.folder.rows("SELECT count(global_metric) FROM round") == [(0,)]
