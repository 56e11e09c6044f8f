"""Methods with a pattern of their own, against the same computation in a loop of numpy: who met whom is the plan's."""

import numpy as np
import pytest

import oracles
from sheafgossip.topology import GraphSequence
from sheafgossip.topology.randomness import generator
from sheafgossip.transport.schedule import Schedule

CLIENTS, ROUNDS, ALPHA = 7, 12, 0.5
CONFIG = f"""
clients = {CLIENTS}
rounds = {ROUNDS}
seed = 3
data = {{ samples = 500, rotations = [0, 90] }}
training.alpha = {ALPHA}
model.dtype = "float64"
checkpoints.every = 4
topology.p = 0.5
time.clock = "virtual"
compute = {{ step_s = 0.1, slowdown = [1.0, 2.0, 10.0] }}
links.latency_s = 0.01
"""


def gradients(theta, shards):
    return np.stack([oracles.gradient(theta[i], shards[i]) for i in range(len(theta))])


def test_ad_psgd_averages_the_pairs_of_the_plan_with_gradients_from_before(run):
    folder = run(CONFIG, "algorithm.name=ad-psgd")
    theta, shards = list(folder.thetas(0)), folder.shards()
    plans = [Schedule.load(folder.path / f"plan/node-{node:04d}.safetensors") for node in range(CLIENTS)]
    partners = [{row + 1: (j, used) for row, used, j in uses_of(plan)} for plan in plans]
    assert any(len({j for j, _ in each.values()}) > 1 for each in partners)
    at, begun, alone = [1] * CLIENTS, [None] * CLIENTS, 0
    while min(at) <= ROUNDS:
        for i in range(CLIENTS):
            if at[i] <= ROUNDS and begun[i] is None:
                begun[i] = oracles.gradient(theta[i], shards[i])
        i = next(i for i in range(CLIENTS) if at[i] <= ROUNDS and meets(partners, at, i))
        j, _ = partners[i].get(at[i], (i, at[i]))  # itself once another has done all its rounds
        assert at[i] == 1 or plans[i].start[at[i] - 1] >= plans[i].end[at[i] - 2]
        alone += i == j
        mean = (theta[i] + theta[j]) / 2
        for end in {i, j}:
            theta[end] = mean
            if not np.isnan(plans[end].compute[at[end] - 1]):  # its own local work is done
                theta[end], begun[end] = mean - ALPHA * begun[end], None
            at[end] += 1
    assert oracles.error(folder.thetas(ROUNDS), np.stack(theta)) < 1e-12
    assert len(folder.payload()) == CLIENTS * ROUNDS - alone  # a message each way a meeting
    assert set(folder.sent().values()) == {(1, 8 * theta[0].size)}


def uses_of(plan):
    for row, _, place in np.argwhere(plan.uses).tolist():
        yield row, int(plan.uses[row, 0, place]), int(plan.neighbours[place])


def meets(partners, at, i):
    """Whether both ends have got to this meeting; or it goes on alone."""
    if at[i] not in partners[i]:
        return True
    j, round = partners[i][at[i]]
    return at[j] == round and partners[j].get(round) == (i, at[i])


@pytest.mark.parametrize("sampling", ["oracle", "local"])
def test_epidemic_learning_averages_with_those_who_send(run, sampling):
    folder = run(CONFIG, "algorithm.name=epidemic", f"algorithm.sampling={sampling}", "algorithm.k=2")
    theta, shards, sent = folder.thetas(0), folder.shards(), folder.sent()
    degrees, met = set(), set()
    for round in range(1, ROUNDS + 1):
        theta, W = theta - ALPHA * gradients(theta, shards), np.eye(CLIENTS)
        for i, j, k in sent:
            if k == round:
                W[j, i] = 1
                met.add((i, j))
        degrees |= {(int(W[:, i].sum()), int(W[i].sum())) for i in range(CLIENTS)}
        theta = W / W.sum(axis=1, keepdims=True) @ theta
    assert oracles.error(folder.thetas(ROUNDS), theta) < 1e-12
    assert set(sent.values()) == {(1, 8 * theta.shape[1])}
    assert (degrees == {(3, 3)}) == (sampling == "oracle")
    assert {out for out, _ in degrees} == {3}
    assert len(met) > CLIENTS * (CLIENTS - 1) * 0.8  # everybody meets almost everybody


@pytest.mark.parametrize(("fragments", "k"), [(3, 2), (4, 1), (1, 2)])
def test_divshare_averages_each_fragment_with_those_who_send_it(run, fragments, k):
    folder = run(CONFIG, "algorithm.name=divshare", f"algorithm.fragments={fragments}", f"algorithm.k={k}")
    theta, shards, sent = folder.thetas(0), folder.shards(), {}
    assert theta.shape[1] % 4 == 2  # some fragments are shorter by one
    for round in range(1, ROUNDS + 1):
        theta = theta - ALPHA * gradients(theta, shards)
        fragment = np.arange(theta.shape[1]) % fragments
        sums, counts = theta.copy(), np.ones(theta.shape)
        for i in range(CLIENTS):
            order = generator(3, "divshare", i, round).permutation(CLIENTS - 1)
            for place, j in enumerate(np.delete(np.arange(CLIENTS), i)[order][: fragments * k]):
                chosen = fragment == place // k
                sums[j, chosen] += theta[i, chosen]
                counts[j, chosen] += 1
                sent[i, j, round] = 1, 8 * (-(-theta.shape[1] // fragments) + 1)
        theta = sums / counts
    assert oracles.error(folder.thetas(ROUNDS), theta) < 1e-12
    assert folder.sent() == sent


@pytest.mark.parametrize(("graph", "hops"), [("ring", (-1, 0, 1)), ("complete", range(4))])
def test_teleportation_averages_at_those_who_take_the_places_of_the_active(run, graph, hops):
    folder = run(CONFIG, "algorithm.name=teleportation", f"algorithm.graph={graph}")
    theta, shards, sent, at_work = list(folder.thetas(0)), folder.shards(), {}, set()
    for round in range(1, ROUNDS + 1):
        s, t = (generator(3, "teleportation", each).permutation(CLIENTS)[:4].tolist() for each in (round, round + 1))
        x = [theta[i] - ALPHA * oracles.gradient(theta[i], shards[i]) for i in s]
        for i, each in zip(s, x, strict=True):
            theta[i] = each
        W = np.array([[b in {(a + hop) % 4 for hop in hops} for b in range(4)] for a in range(4)])
        for a, j in enumerate(t):
            theta[j] = np.mean([x[b] for b in range(4) if W[a, b]], axis=0)
            sent |= {(s[b], j, round): (1, 8 * theta[j].size) for b in range(4) if W[a, b] and s[b] != j}
        at_work |= {(i, round) for i in s}
    assert oracles.error(folder.thetas(ROUNDS), np.stack(theta)) < 1e-12
    assert folder.sent() == sent
    plans = [Schedule.load(folder.path / f"plan/node-{node:04d}.safetensors") for node in range(CLIENTS)]
    assert {(i, row + 1) for i in range(CLIENTS) for row in np.flatnonzero(~np.isnan(plans[i].compute))} == at_work
    learnt = folder.rows("SELECT node, round FROM round WHERE train_loss IS NOT NULL")
    assert set(learnt) == at_work


def test_a_sequence_repeats_with_more_rounds_and_draws_evenly():
    from sheafgossip.node.algorithms.base import Setup
    from sheafgossip.node.algorithms.epidemic import Epidemic

    def drawn(rounds: int, **settings: object) -> GraphSequence:
        return Epidemic(**settings).pattern(Setup(clients=8, rounds=rounds, seed=1, topology=lambda: None))

    assert drawn(30).graphs == drawn(60).graphs[:30]
    counts = np.zeros((8, 8))
    for graph in drawn(700, sampling="local", k=2).graphs:
        for edge in graph.edges:
            counts[edge] += 1
    expected = 700 * 2 / 7
    others = counts[~np.eye(8, dtype=bool)]
    assert ((others - expected) ** 2 / (expected * (1 - 2 / 7))).sum() < 100  # chi-squared of 48: 99.999 % below
    assert counts.trace() == 0
