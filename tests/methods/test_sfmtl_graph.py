"""SFMTL-Graph against its equations in plain loops; and whether it finds groups that are there."""

from functools import partial

import networkx
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import oracles
from sheafgossip.topology.randomness import generator

from .plain import CLIENTS, ROUNDS, SEED, Loop, played

C, HIDDEN = 10, 12
LAM, ALPHA = 0.02, 0.49


class SFMTLGraph(Loop):
    hidden = (HIDDEN,)

    def __init__(self, folder, settings):
        super().__init__(folder, settings)
        self.classes = [sorted(set(shard["y_train"].tolist())) for shard in self.shards.values()]
        start = generator(SEED, "anchors").standard_normal((C, HIDDEN))
        self.h = [{c: start[c] for c in classes} for classes in self.classes]
        self.known, self.told = {}, []

    def numbers(self, k):
        return C * (HIDDEN + 1) + len(self.classes[k]) * HIDDEN

    def learn(self, k):
        theta, shard = self.theta[k], self.shards[k]
        for _ in range(self.steps):
            anchors = np.array([self.h[k].get(c, np.zeros(HIDDEN)) for c in range(C)])
            theta = theta - self.alpha * oracles.gradient(theta, shard, self.batch(k), self.hidden, anchors, LAM)
        features = oracles.features_of(theta, shard["x_train"], self.hidden)[-1][:, :-1]
        self.theta[k] = theta
        self.h[k] = {c: features[shard["y_train"] == c].mean(axis=0) for c in self.classes[k]}

    def head(self, k):
        return oracles.layers_of(self.theta[k], self.hidden)[-1]

    def similarity(self, k, j):
        """(7) with (8)-(10), summed over the classes that both have."""
        total = 0.0
        for c in set(self.classes[k]) & set(self.classes[j]):
            scores = [[self.head(i) @ np.append(h, 1) for i in (k, j)] for h in (self.h[k][c], self.h[j][c])]
            heads = sum(cosine(*each) / 2 for each in scores)
            total += ALPHA * heads + (1 - ALPHA) * cosine(self.h[k][c], self.h[j][c])
        return max(0.0, total / max(len(self.classes[k]), len(self.classes[j])))

    def aggregate(self, now):
        a = np.array([[0.0 if k == j else self.similarity(k, j) for j in now] for k in now])
        modularity = partial(networkx.community.modularity, networkx.from_numpy_array(a))  # (11)
        best = max(partitions(list(range(len(now)))), key=modularity)
        for part in best:
            anchors = {}
            for c in range(C):
                having = [now[i] for i in part if c in self.classes[now[i]]]
                anchors[c] = sum(self.n[k] / sum(self.n[j] for j in having) * self.h[k][c] for k in having)  # (14)
            for i in part:
                k, tau = now[i], self.alpha * self.steps
                head = self.head(k) - LAM * tau * sum(a[i, j] * (self.head(k) - self.head(now[j])) for j in part)
                self.known[k] = head, {c: anchors[c] for c in self.classes[k]}  # (15)
        self.told.append(sorted(sorted(now[i] for i in part) for part in best))

    def download(self, k):
        if k in self.known:
            head, self.h[k] = self.known[k]
            self.theta[k] = oracles.theta_of([*oracles.layers_of(self.theta[k], self.hidden)[:-1], head])


def cosine(u, v):
    return u @ v / np.linalg.norm(u) / np.linalg.norm(v)


def partitions(members):
    """All of them."""
    if not members:
        yield []
        return
    first, *rest = members
    for parts in partitions(rest):
        yield [[first], *parts]
        for i in range(len(parts)):
            yield [*parts[:i], [first, *parts[i]], *parts[i + 1 :]]


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_it_is_what_its_paper_says_and_sends_heads_and_anchors_only(run, fraction):
    settings = {"name": "sfmtl-graph", "lam": LAM, "alpha": ALPHA, "fraction": fraction}
    loop = played(run, SFMTLGraph, settings, "model.kind=mlp", f"model.hidden=[{HIDDEN}]", tolerance=1e-9)
    found, folder = loop.folder.states(ROUNDS), loop.folder
    for k in range(CLIENTS):
        for c in loop.classes[k]:
            np.testing.assert_allclose(found[k]["anchors"][c], loop.h[k][c], rtol=1e-9, atol=1e-12)
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
def test_its_communities_are_the_groups_of_clients(run, clients, data):
    folder = run(GROUPS, f"clients={clients}", *data)
    groups = folder.rows("SELECT value FROM meta WHERE key = 'groups'")[0][0].split(",")
    assert adjusted_rand_score(groups, folder.states(30)[clients]["community"]) >= 0.9
