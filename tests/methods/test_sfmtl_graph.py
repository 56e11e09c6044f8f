"""SFMTL-Graph against its equations in plain loops; and whether it finds groups that are there."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import oracles
from sheafgossip.topology.randomness import generator

CLIENTS, ROUNDS, STEPS, BATCH, ETA, SEED = 6, 6, 3, 16, 0.3, 4
C, HIDDEN, PIXELS = 10, 12, 64
LAM, ALPHA = 0.02, 0.49
SERVER = CLIENTS
CONFIG = f"""
clients = {CLIENTS}
rounds = {ROUNDS}
seed = {SEED}
[data]
samples = 480
partition = "classes"
classes_per_client = 3
reduced_clients = 0.5
[training]
work = "steps"
steps = {STEPS}
batch_size = {BATCH}
alpha = {ETA}
[model]
kind = "mlp"
hidden = [{HIDDEN}]
dtype = "float64"
[algorithm]
name = "sfmtl-graph"
lam = {LAM}
alpha = {ALPHA}
"""


class Client:
    def __init__(self, number, shard, theta):
        self.number = number
        self.x, self.y = shard["x_train"].reshape(-1, PIXELS).astype(float), shard["y_train"]
        self.classes = sorted(set(self.y.tolist()))
        cuts = np.cumsum([HIDDEN * PIXELS, HIDDEN, C * HIDDEN])
        w1, self.b1, w2, self.b2 = np.split(theta.copy(), cuts)
        self.w1, self.w2 = w1.reshape(HIDDEN, PIXELS), w2.reshape(C, HIDDEN)
        start = generator(SEED, "anchors").standard_normal((C, HIDDEN))
        self.h = {c: start[c] for c in self.classes}
        self.drawn = 0

    def batch(self):
        self.drawn += 1
        return oracles.batch_rows(SEED, self.number, len(self.y), BATCH, self.drawn - 1)

    def features(self, rows):
        return np.maximum(self.x[rows] @ self.w1.T + self.b1, 0)

    def learn(self):
        for _ in range(STEPS):
            rows = self.batch()
            r, y, n = self.features(rows), self.y[rows], len(rows)
            slope = oracles.probabilities(r @ self.w2.T + self.b2) - np.eye(C)[y]
            back = slope @ self.w2 + 2 * LAM * (r - np.array([self.h[c] for c in y.tolist()]))
            back = back * (r > 0)
            self.w2 = self.w2 - ETA * slope.T @ r / n
            self.b2 = self.b2 - ETA * slope.sum(axis=0) / n
            self.w1 = self.w1 - ETA * back.T @ self.x[rows] / n
            self.b1 = self.b1 - ETA * back.sum(axis=0) / n
        self.h = {c: self.features(self.y == c).mean(axis=0) for c in self.classes}

    @property
    def theta(self):
        return np.concatenate([self.w1.ravel(), self.b1, self.w2.ravel(), self.b2])


def cosine(u, v):
    return u @ v / np.linalg.norm(u) / np.linalg.norm(v)


def similarity(k, other):
    """(7) with (8)-(10), summed over the classes that both have."""
    total = 0.0
    for c in set(k.classes) & set(other.classes):
        heads = 0.0
        for h in (k.h[c], other.h[c]):
            heads += cosine(k.w2 @ h + k.b2, other.w2 @ h + other.b2) / 2
        total += ALPHA * heads + (1 - ALPHA) * cosine(k.h[c], other.h[c])
    return max(0.0, total / max(len(k.classes), len(other.classes)))


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


def modularity(parts, a):
    """(11)"""
    two_m = a.sum()
    degree = a.sum(axis=0)
    return sum(a[k, j] - degree[k] * degree[j] / two_m for part in parts for k in part for j in part) / two_m


def served(clients):
    """What the server sends each client that it has heard: {client: (w2, b2, anchors)}."""
    a = np.array([[0.0 if k is j else similarity(k, j) for j in clients] for k in clients])
    best = max(partitions(list(range(len(clients)))), key=lambda parts: modularity(parts, a))
    replies = {}
    for part in best:
        anchors = {}
        for c in range(C):
            having = [clients[i] for i in part if c in clients[i].classes]
            if having:
                n = sum(len(k.y) for k in having)
                anchors[c] = sum(len(k.y) / n * k.h[c] for k in having)  # (14)
        for i in part:
            k, tau = clients[i], ETA * STEPS
            w2 = k.w2 - LAM * tau * sum(a[i, j] * (k.w2 - clients[j].w2) for j in part)  # (15)
            b2 = k.b2 - LAM * tau * sum(a[i, j] * (k.b2 - clients[j].b2) for j in part)
            replies[k.number] = w2, b2, {c: anchors[c] for c in k.classes}
    return replies, [[clients[i].number for i in part] for part in best]


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_it_is_what_its_paper_says_and_sends_heads_and_anchors_only(run, fraction):
    folder = run(CONFIG + f"fraction = {fraction}")
    start = folder.theta(0)
    clients = [Client(k, shard, start[k]) for k, shard in folder.shards().items()]
    known, traffic, told = {}, {}, []
    size = {k.number: 8 * (C * (HIDDEN + 1) + len(k.classes) * HIDDEN) for k in clients}
    for round in range(1, ROUNDS + 1):
        now, after = (oracles.participants(SEED, CLIENTS, ROUNDS, fraction, round + more) for more in (0, 1))
        for k in now:
            clients[k].learn()
        replies, parts = served([clients[k] for k in now])
        known |= replies
        told.append(sorted(map(sorted, parts)))
        for k in after:
            if k in known:
                clients[k].w2, clients[k].b2, clients[k].h = known[k]
        traffic |= {(k, SERVER, round): (1, size[k]) for k in now} | {(SERVER, k, round): (1, size[k]) for k in after}

    found = folder.states(ROUNDS)
    for k in clients:
        assert oracles.error(found[k.number]["theta"], k.theta) < 1e-9
        for c in k.classes:
            np.testing.assert_allclose(found[k.number]["anchors"][c], k.h[c], rtol=1e-9, atol=1e-12)
    assert folder.sent() == traffic
    events = [text for (text,) in folder.rows("SELECT detail FROM event WHERE kind = 'communities' ORDER BY wall_s")]
    changes = [parts for parts, before in zip(told, [None, *told], strict=False) if parts != before]
    assert [sorted([int(k) for k in part.split()] for part in text.split(" | ")) for text in events] == changes
    assert folder.rows("SELECT count(global_metric) FROM round") == [(0,)]  # there is no common model


GROUPS = """
rounds = 30
[evaluation]
every = 0
[training]
work = "steps"
steps = 5
alpha = 0.1
[algorithm]
name = "sfmtl-graph"
lam = 0.001
[model]
kind = "mlp"
hidden = [32]
[data]
"""


@pytest.mark.parametrize(
    ("clients", "data"),
    [(15, 'partition = "clusters"'), (12, "rotations = [0, 90]\nmask = 2")],
    ids=["clusters of classes", "rotated and masked"],
)
def test_its_communities_are_the_groups_of_clients(run, clients, data):
    folder = run(f"clients = {clients}" + GROUPS + data)
    groups = folder.rows("SELECT value FROM meta WHERE key = 'groups'")[0][0].split(",")
    assert adjusted_rand_score(groups, folder.states(30)[clients]["community"]) >= 0.9
