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
from sheafgossip.node.algorithms.class_likeness import sketched
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
RENAMED = (
    "clients=12",
    'data={ samples = 0, use = "sheafgossip.board:other_heads" }',
    "model.kind=mlp",
    "model.hidden=[12]",
)
FEATURES = ("algorithm.compare=features", "model.kind=mlp", "model.hidden=[12]")
DRIFT = ("algorithm.compare_every=4", "data.drift.at_round=6", "data.drift.rotations=[90, 90]")


class Prototypes:
    """What a client's samples look like, or what theta^0 sees of them, class by class, in dicts."""

    def __init__(self, z, y, sketch):
        present, h = [int(c) for c in np.unique(y)], z.shape[1]
        self.n = {c: int((y == c).sum()) for c in present}
        means = {c: z[y == c].mean(axis=0) for c in present}
        middle = np.mean([*means.values()], axis=0)
        self.apart = {c: ((mean - middle) ** 2).sum() for c, mean in means.items()}
        self.scatter = sum(((z[y == c] - mean) ** 2).sum() for c, mean in means.items())
        R = np.eye(h) if sketch >= h else sketched(np.eye(h), SEED, sketch).T
        self.a = {c: R @ mean for c, mean in means.items()}
        self.f = len(y) - len(present)
        S = sum(np.cov(R @ z[y == c].T, ddof=0) * self.n[c] for c in present) / self.f
        square = np.trace(S) ** 2
        f, unbiased = self.f, np.trace(S @ S) - square / self.f
        self.T = np.clip(unbiased * f**2 / ((f + 2) * (f - 1)), square / len(S), square)


def comparison_of(i, j, threshold, sure=1.0):
    """The likeness, how far apart beyond chance, and {class: its name at j} of those that are compared, written out."""
    ends = i, j
    V = sum(end.scatter for end in ends) / sum(end.f for end in ends)
    T = sum(end.f * end.T for end in ends) / sum(end.f for end in ends)

    def by_chance(c, k):
        return V * (1 / i.n[c] + 1 / j.n[k])

    def D(c, k):
        return ((i.a[c] - j.a[k]) ** 2).sum() - by_chance(c, k)

    def of(pairs):
        if not pairs:
            return -np.inf, 0.0
        w = np.array([1 / (1 / i.n[c] + 1 / j.n[k]) for c, k in pairs.items()])
        w /= w.sum()
        mean = w @ [D(c, k) for c, k in pairs.items()]
        v = np.array([1 / i.n[c] + 1 / j.n[k] for c, k in pairs.items()])
        se = np.sqrt((w**2 * (2 * T * v**2 + 4 * max(0, mean) * T / V * v)).sum())
        S = []
        for end, those in ((i, pairs.keys()), (j, pairs.values())):
            K = len(end.n)
            e = np.array([(1 - 2 / K) / end.n[c] + sum(1 / m for m in end.n.values()) / K**2 for c in those])
            seen = w @ [end.apart[c] for c in those]
            S += [max(seen - V * (w @ e), 0.1 * seen)] if K > 1 else []
        E = w @ [by_chance(c, k) for c, k in pairs.items()]
        return (1 - (mean + sure * se) / (2 * np.mean(S)), max(0, mean - sure * se) / E) if S else (-np.inf, 0.0)

    by_name = {c: c for c in sorted(i.n.keys() & j.n.keys())}
    if (found := of(by_name))[0] >= threshold or min(len(i.n), len(j.n)) < 2:
        return *found, by_name
    nearest = {c: min(j.n, key=lambda k: D(c, k)) for c in i.n}
    by_looks = {c: k for c, k in nearest.items() if min(i.n, key=lambda other: D(other, k)) == c}
    likeness, beyond = of(by_looks)
    likeness = min(1, likeness) * len(by_looks) / min(len(i.n), len(j.n))
    gaps = [(D(c, other) - D(c, k)) / by_chance(c, k) for c, k in by_looks.items() for other in second(j.n, k, D, c)]
    gaps += [
        (D(other, k) - D(c, k)) / by_chance(c, k)
        for c, k in by_looks.items()
        for other in second(i.n, c, lambda k, other: D(other, k), k)
    ]
    return (likeness, beyond, by_looks) if likeness >= 2 / 3 and np.mean(gaps) >= 1 else (*found, by_name)


def second(those, nearest, D, c):
    """The one that comes after ``nearest``."""
    return [min((k for k in those if k != nearest), key=lambda k: D(c, k))]


def class_counts(i, on, shards, names):
    """Of i and of those that it averages with, (2, 10), by i's names for the classes."""
    counts = np.array([np.bincount(shards[i]["y_train"], minlength=10), np.zeros(10, int)])
    for j in (sum(edge) - i for edge in on if i in edge):
        theirs = np.bincount(shards[j]["y_train"], minlength=10)
        for c in range(10):
            k = names[i, j].get(c, -1 if renamed(names[i, j]) else c)
            counts[1, c] += theirs[k] if k >= 0 else 0
    return counts


def renamed(classes):
    return any(c != k for c, k in classes.items())


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
    [
        ((), 64, (1,)),
        (("algorithm.sketch=7",), 7, (1,)),
        (SKEWED, 64, (1,)),
        (DRIFT, 64, (1, 5, 9)),
        (SEEK, 64, (1,)),
        (RENAMED, 64, (1,)),
        (FEATURES, 64, (1,)),
    ],
    ids=["rotated", "sketched", "skewed", "drift", "seek", "renamed", "features"],
)
def test_clients_and_the_loop_end_at_the_same_models_with_the_same_edges_and_the_same_bytes(
    run, changes, sketch, compares
):
    folder, hidden = run(CONFIG, *changes), (12,) if changes in (RENAMED, FEATURES) else ()
    theta, shards = folder.thetas(0), folder.shards()
    edges = sorted((i, j) for i, j, k in folder.sent() if k == 1 and i < j)  # with seek all are connected
    size, h = theta.shape[1], (hidden or (64,))[-1]
    rows, about = int(GAMMA * size), 10 * (min(sketch, h if changes == FEATURES else 64) + 2) + 2
    body = size - 10 * (h + 1)
    random = 1.0 - 2.0 * generator(SEED, "signs of the shared maps").integers(0, 2, body)
    P = block_diag(*(cosine_rows(np.arange(length), length) for length in fast_lengths(body)), np.eye(size - body))
    P[:, :body] *= random
    of_last = [[body + c * h + number for c in range(10)] for number in range(h)] + [[*range(size - 10, size)]]
    turns = [*range(body), *np.concatenate(of_last).tolist()]  # each number of all classes, and then the next
    place = {row: (number, c) for number, each in enumerate(of_last) for c, row in enumerate(each)}
    sent, history, introductions = {}, [], Introductions(edges, 4 if changes == SEEK else 0)
    averaged, reduced, theta_0 = [np.full_like(theta, np.nan)], 0, theta
    for k in range(1, ROUNDS + 1):
        part = "x_train_drifted" if changes == DRIFT and k >= 6 else "x_train"
        edges, new = introductions.edges, set(introductions.edges if k in compares else introductions.new)
        if k in compares:
            alike, names = {}, {}
            seen = {i: shard[part].reshape(-1, 64).astype(float) for i, shard in shards.items()}
            if changes == FEATURES:
                seen = {i: oracles.features_of(theta_0[i], x, hidden)[-1][:, :-1] for i, x in seen.items()}
            told = {i: Prototypes(z, shards[i]["y_train"], sketch) for i, z in seen.items()}
        for i, j in new:
            *alike[i, j], names[i, j] = comparison_of(told[i], told[j], 0.2)
            names[j, i] = {k: c for c, k in names[i, j].items()}
        on = {edge: min(1.0, value) for edge, (value, _) in alike.items() if value >= 0.2}
        several = Counter(end for edge in on if alike[edge][1] for end in edge)

        def weight(i, edge, on=on, alike=alike, several=several):
            return min(on[edge], 1 / (1 + (several[i] + 1) * alike[edge][1]))

        history.append(set(on))
        theta = np.array(
            [
                theta[i] - ALPHA * oracles.gradient(theta[i], shard | {"x_train": shard[part]}, hidden=hidden)
                for i, shard in shards.items()
            ]
        )
        x = theta @ P.T
        heard, listeners = np.zeros_like(theta), np.ones_like(theta)  # by rows of P
        for i, j in edges:
            words = [about] * ((i, j) in new)
            if (i, j) in on:
                chosen = [turns[turn] for turn in rows_in_turn(SEED, i, {j: rows}, size, k - 1)[j]]
                for one, other in ((i, j), (j, i)):
                    w = weight(one, (i, j))
                    reduced += w < on[i, j]
                    own = {theirs: c for c, theirs in names[one, other].items()}
                    for row in chosen:
                        at = row
                        if row >= body and renamed(own):
                            number, c = place[row]
                            if c not in own:
                                continue
                            at = of_last[number][own[c]]
                        heard[one, at] += w * (x[other, row] - x[one, at])
                        listeners[one, at] += w
                words.append(rows)
            words += [2] * (k <= introductions.rounds)
            sent |= {(*arc, k): (len(words), 8 * sum(words)) for arc in ((i, j), (j, i)) if words}
        introductions.new = set()
        if k <= introductions.rounds:
            introductions.meet(on, lambda i, j, told=told: comparison_of(told[i], told[j], 0.2)[0] >= 0.2)
        theta = theta + (heard / listeners) @ P
        averaged.append(np.where(listeners > 1, theta @ P.T, np.nan))
    assert oracles.error(folder.thetas(ROUNDS), theta) < 1e-10
    assert (reduced > 0) == (changes in (SKEWED, SEEK, RENAMED))  # others' tasks are one, or too far apart
    assert any(renamed(names[edge]) for edge in on) == (changes == RENAMED)
    found = folder.rows(f"SELECT node, neighbour FROM edge WHERE round = {ROUNDS} AND weight > 0")
    assert sorted(found) == sorted(oracles.both_directions(on))
    assert 0 < len(history[0]) < len(edges) or changes in (SKEWED, RENAMED)
    assert (history[-1] != history[0]) == (changes in (DRIFT, SEEK))  # all have one task then; others have met
    assert folder.sent() == sent
    transform = round(2.5 * body * math.log2(max(1, body)))  # there, and back where somebody was heard
    flops = folder.rows(
        "SELECT sum(flops) FROM work_total WHERE part = 'maps' AND node >= 0 GROUP BY node ORDER BY node"
    )
    listened = [sum(any(i in edge for edge in then) for then in history) for i in range(len(theta))]
    assert flops == [((ROUNDS + rounds) * transform,) for rounds in listened]
    rows_used = theta @ P.T
    for rows_then in averaged[-math.ceil(size / rows) :]:
        rows_used = np.where(np.isnan(rows_then), rows_used, rows_then)
    theta = rows_used @ P
    if changes != DRIFT:
        counts = {i: class_counts(i, on, shards, names) for i in shards}
        refitted = {i: most_probable(theta[i], shards[i], each) for i, each in counts.items() if differ(each)}
        assert (len(refitted) > 0) == (changes == SKEWED)
        metrics = folder.rows(f"SELECT test_metric FROM round WHERE round = {ROUNDS} ORDER BY node")
        used = dict(enumerate(theta)) | refitted
        assert metrics == [(oracles.accuracy(used[i], shards[i], hidden),) for i in sorted(shards)]


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
    size = 4 * (10 * 66 + 2)
    assert lossy.rows(f"SELECT count(*) FROM traffic WHERE round > 20 AND payload_bytes >= {size}") == [(0,)]


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        (("model.same_start=false",), "model.same_start: = false: algorithm.name = 'prototype-sheaf' averages"),
        (
            ("data.rotations=[0]", "data.dataset=synthetic", "data.task=regression", "model.kind=linear"),
            "use algorithm.name = 'selective-sheaf'",
        ),
    ],
)
def test_what_it_cannot_compare_is_refused(run, changes, refused):
    with pytest.raises(UserError, match=refused):
        run(CONFIG, *changes)
