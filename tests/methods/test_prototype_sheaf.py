"""Prototype sheaf against a loop in numpy, in bytes, and where messages are lost and tasks change."""

import math
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from scipy.linalg import block_diag
from scipy.optimize import minimize
from scipy.stats import chi2_contingency

import oracles
from sheafgossip.node.algorithms.prototype_sheaf import sketched
from sheafgossip.node.maps import cosine_rows, fast_lengths, rows_in_turn
from sheafgossip.topology.errors import UserError
from sheafgossip.topology.randomness import generator

SEED, CLIENTS, ROUNDS = 3, 8, 12
ALPHA, GAMMA = 0.5, 0.15
CONFIG = f"""
clients = {CLIENTS}
rounds = {ROUNDS}
seed = {SEED}
topology.p = 0.6
data = {{ samples = 800, rotations = [0, 90], reduced_clients = 0.4 }}
model.dtype = "float64"
training.alpha = {ALPHA}
evaluation.every = 0
[algorithm]
name = "prototype-sheaf"
gamma = {GAMMA}
threshold = 0.2
"""
SKEWED = ("data.rotations=[0]", "data.partition=dirichlet", "data.beta=0.2", "data.reduced_clients=0")
SEEK = ("algorithm.seek=4", "clients=12", "topology.p=0.2", "data.reduced_clients=0")
DRIFT = ("algorithm.compare_every=4", "data.drift.at_round=6", "data.drift.rotations=[90, 90]")


def comparison_of(shards, sketch, h, part, sure=1.0):
    """The likeness and how far apart beyond chance, written out class by class."""
    a, n, V, freedom = [], [], 0.0, 0
    for shard in shards:
        x, y = shard[part].astype(np.float64), shard["y_train"]
        a.append({int(c): x[y == c].mean(axis=0) for c in np.unique(y)})
        n.append({c: int((y == c).sum()) for c in a[-1]})
        V += sum(((x[y == c] - mean) ** 2).sum() for c, mean in a[-1].items())
        freedom += len(y) - len(a[-1])
    V /= freedom
    both = sorted(a[0].keys() & a[1].keys())
    if not both:
        return -np.inf, 0.0
    w = np.array([1 / (1 / n[0][c] + 1 / n[1][c]) for c in both])
    w /= w.sum()
    R = {c: np.eye(h) if sketch >= h else sketched(np.eye(h), SEED, c, sketch) for c in both}
    D_c = [((R[c] @ (a[0][c] - a[1][c])) ** 2).sum() - V * (1 / n[0][c] + 1 / n[1][c]) for c in both]
    D, C = w @ D_c, len(both)
    se = np.sqrt(C / (C - 1) * ((w * (D_c - D)) ** 2).sum()) if C > 1 else abs(D)
    S = []
    for means, count in zip(a, n, strict=True):
        middle, K = np.mean(list(means.values()), axis=0), len(means)
        e = np.array([(1 - 2 / K) / count[c] + sum(1 / m for m in count.values()) / K**2 for c in both])
        seen = w @ [((means[c] - middle) ** 2).sum() for c in both]
        S += [max(seen - V * (w @ e), 0.1 * seen)] if K > 1 else []
    by_chance = V * (w @ [1 / n[0][c] + 1 / n[1][c] for c in both])
    return (1 - (D + sure * se) / (2 * np.mean(S)), max(0, D - sure * se) / by_chance) if S else (-np.inf, 0.0)


def class_counts(i, on, shards):
    """Of i and of those that it averages with, (2, 10)."""
    own, others = shards[i]["y_train"], [shards[sum(edge) - i]["y_train"] for edge in on if i in edge]
    return np.array([np.bincount(y, minlength=10) for y in (own, np.concatenate([own[:0], *others]))])


def differ(counts):
    """By Pearson's test of homogeneity."""
    if not counts[1].any():
        return False
    found = chi2_contingency(counts[:, counts.sum(axis=0) > 0], correction=False)
    return found.statistic > found.dof + 2 * np.sqrt(2 * found.dof)


def most_probable(theta, shard, counts, variance=1.0):
    """The last layer, here all of a logistic model, by SciPy's quasi-Newton method."""
    own, others = counts
    theta = theta.copy()
    for c in range(10):
        among_all = (own[c] + others[c]) / (own.sum() + others.sum())
        share = (own[c] + 10 * among_all) / (own.sum() + 10)  # as if it had ten more, of the classes that all have
        theta[640 + c] += np.log(share / among_all) if among_all else np.log(10 / (own.sum() + 10))

    def objective(own):
        loss = len(shard["y_train"]) * oracles.loss(own, shard) + ((own - theta) ** 2).sum() / (2 * variance)
        return loss, len(shard["y_train"]) * oracles.gradient(own, shard) + (own - theta) / variance

    return minimize(objective, theta, jac=True, method="BFGS", options={"gtol": 1e-6}).x


class Introductions:
    """Who knows whom, where those introduce others who know two of one task that have fewer such neighbours than any at
    the start; what these said the last time counts."""

    def __init__(self, edges, rounds):
        self.edges, self.new, self.rounds = set(edges), set(), rounds
        self.degree = Counter(end for edge in edges for end in edge)
        self.said, self.done = {}, set()

    def meet(self, on, alike):
        met = set()
        for i in sorted(self.degree):
            known, busy = sorted(sum(edge) - i for edge in self.edges if i in edge), set()
            known = [j for j in known if self.said.get((j, i), True)]
            for pair in combinations(known, 2):
                if not busy & set(pair) and (i, pair) not in self.done and alike(*pair):
                    self.done.add((i, pair))
                    met.add(pair)
                    busy |= set(pair)
        arcs = oracles.both_directions(self.edges)
        content = {i: sum(w for edge, w in on.items() if i in edge) for i in self.degree}
        self.said |= {(i, j): round(content[i]) < self.degree[i] for i, j in arcs}
        self.new = met - self.edges
        self.edges |= met


@pytest.mark.parametrize(
    ("changes", "sketch", "compares"),
    [((), 64, (1,)), (("algorithm.sketch=7",), 7, (1,)), (SKEWED, 64, (1,)), (DRIFT, 64, (1, 5, 9)), (SEEK, 64, (1,))],
    ids=["rotated", "sketched", "skewed", "drift", "seek"],
)
def test_clients_and_the_loop_end_at_the_same_models_with_the_same_edges_and_the_same_bytes(
    run, changes, sketch, compares
):
    folder = run(CONFIG, *changes)
    theta, shards = folder.thetas(0), folder.shards()
    edges = sorted((i, j) for i, j, k in folder.sent() if k == 1 and i < j)  # with seek all are connected
    size, h = theta.shape[1], shards[0]["x_train"].reshape(len(shards[0]["x_train"]), -1).shape[1]
    for shard in shards.values():
        for part in [name for name in shard if name.startswith("x_train")]:
            shard[part] = shard[part].reshape(len(shard[part]), -1)
    rows, about = int(GAMMA * size), 10 * (min(sketch, h) + 2) + 1
    random = 1.0 - 2.0 * generator(SEED, "signs of the shared maps").integers(0, 2, size)
    C = block_diag(*(cosine_rows(np.arange(length), length) for length in fast_lengths(size))) * random
    sent, history, introductions = {}, [], Introductions(edges, 4 if changes == SEEK else 0)
    averaged, reduced = [np.full_like(theta, np.nan)], 0
    for k in range(1, ROUNDS + 1):
        part = "x_train_drifted" if changes == DRIFT and k >= 6 else "x_train"
        edges, new = introductions.edges, set(introductions.edges if k in compares else introductions.new)
        if k in compares:
            alike = {}
        alike |= {(i, j): comparison_of((shards[i], shards[j]), sketch, h, part) for i, j in new}
        on = {edge: min(1.0, value) for edge, (value, _) in alike.items() if value >= 0.2}
        several = Counter(end for edge in on if alike[edge][1] for end in edge)

        def weight(i, edge, on=on, alike=alike, several=several):
            return min(on[edge], 1 / (1 + (several[i] + 1) * alike[edge][1]))

        history.append(set(on))
        theta = np.array(
            [
                theta[i] - ALPHA * oracles.gradient(theta[i], shard | {"x_train": shard[part]})
                for i, shard in shards.items()
            ]
        )
        heard, listeners = np.zeros_like(theta), np.ones_like(theta)  # by rows of all of C D
        for i, j in edges:
            words = [about] * ((i, j) in new)
            if (i, j) in on:
                chosen = rows_in_turn(SEED, i, {j: rows}, size, k - 1)[j]
                apart = C[chosen] @ (theta[i] - theta[j])
                for one, sign in ((i, -1), (j, 1)):
                    w = weight(one, (i, j))
                    heard[one, chosen] += sign * w * apart
                    listeners[one, chosen] += w
                    reduced += w < on[i, j]
                words.append(rows)
            words += [2] * (k <= introductions.rounds)
            sent |= {(*arc, k): (len(words), 8 * sum(words)) for arc in ((i, j), (j, i)) if words}
        introductions.new = set()
        if k <= introductions.rounds:
            introductions.meet(on, lambda i, j: comparison_of((shards[i], shards[j]), sketch, h, "x_train")[0] >= 0.2)
        theta = theta + (heard / listeners) @ C
        averaged.append(np.where(listeners > 1, theta @ C.T, np.nan))
    assert oracles.error(folder.thetas(ROUNDS), theta) < 1e-10
    assert (reduced > 0) == (changes in (SKEWED, SEEK))  # others' tasks are one, or too far apart
    found = folder.rows(f"SELECT node, neighbour FROM edge WHERE round = {ROUNDS} AND weight > 0")
    assert sorted(found) == sorted(oracles.both_directions(on))
    assert 0 < len(history[0]) < len(edges) or changes == SKEWED
    assert (history[-1] != history[0]) == (changes in (DRIFT, SEEK))  # all have one task then; others have met
    assert folder.sent() == sent
    rows_used = theta @ C.T
    for rows_then in averaged[-math.ceil(size / rows) :]:
        rows_used = np.where(np.isnan(rows_then), rows_used, rows_then)
    theta = rows_used @ C
    if changes != DRIFT:
        counts = {i: class_counts(i, on, shards) for i in shards}
        refitted = {i: most_probable(theta[i], shards[i], each) for i, each in counts.items() if differ(each)}
        assert (len(refitted) > 0) == (changes == SKEWED)
        metrics = folder.rows(f"SELECT test_metric FROM round WHERE round = {ROUNDS} ORDER BY node")
        used = dict(enumerate(theta)) | refitted
        assert metrics == [(oracles.accuracy(used[i], shards[i]),) for i in sorted(shards)]


LOSSY = (
    "model.dtype=float32",
    "rounds=30",
    'time={ clock = "virtual", silence = "skip", deadline_s = 0.2, notice_s = 0.1 }',
    "compute.step_s=0.01",
    "links.loss=0.3",
)


def test_where_messages_are_lost_they_are_told_again_until_both_ends_know(run):
    calm, lossy = run(CONFIG, "model.dtype=float32", "rounds=30"), run(CONFIG, *LOSSY)
    told = "SELECT DISTINCT node, neighbour FROM edge WHERE round = 1 AND weight > 0"
    pulls = "SELECT DISTINCT node, neighbour FROM edge WHERE round > 20 AND weight > 0"
    assert sorted(calm.rows(told)) == sorted(lossy.rows(pulls))
    again = run(CONFIG, *LOSSY)
    np.testing.assert_array_equal(again.thetas(30), lossy.thetas(30))
    size = 4 * (10 * 66 + 1)
    assert lossy.rows(f"SELECT count(*) FROM traffic WHERE round > 20 AND payload_bytes >= {size}") == [(0,)]


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        (("model.same_start=false",), "model.same_start: = false: algorithm.name = 'prototype-sheaf' compares"),
        (
            ("data.rotations=[0]", "data.dataset=synthetic", "data.task=regression", "model.kind=linear"),
            "use algorithm.name = 'selective-sheaf'",
        ),
    ],
)
def test_what_it_cannot_compare_is_refused(run, changes, refused):
    with pytest.raises(UserError, match=refused):
        run(CONFIG, *changes)
