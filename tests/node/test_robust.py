"""Robust mixing against plain loops and closed forms, and what it makes of a run's vectors."""

import numpy as np
import pytest

import oracles
from runs import small
from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.prepare.assignments import Site
from sheafgossip.launcher.prepare.preparation import work_out
from sheafgossip.node.algorithms import robust
from sheafgossip.topology.errors import UserError


def trimmed(vectors, b):
    kept = [sorted(column)[b : len(column) - b] for column in np.transpose(vectors).tolist()]
    return np.array([sum(column) / len(column) for column in kept])


def middle(vectors, b):
    columns = [sorted(column) for column in np.transpose(vectors).tolist()]
    return np.array([(column[(len(column) - 1) // 2] + column[len(column) // 2]) / 2 for column in columns])


def most_central(vectors, b):
    scores = []
    for i, one in enumerate(vectors):
        others = sorted(float(((one - other) ** 2).sum()) for j, other in enumerate(vectors) if j != i)
        scores.append(sum(others[: len(vectors) - b - 2]))
    return vectors[scores.index(min(scores))]


RULES = {"trimmed": trimmed, "median": middle, "krum": most_central}


def clip_to(mine, theirs, weights, radius, b):
    far = sorted(range(len(theirs)), key=lambda j: np.linalg.norm(theirs[j] - mine))[len(theirs) - b :]
    if not radius:
        near = [j for j in range(len(theirs)) if j not in far]
        total = sum(weights[j] * np.linalg.norm(theirs[j] - mine) ** 2 for j in near)
        radius = (total / sum(weights[j] for j in far)) ** 0.5
    found = mine.copy()
    for weight, other in zip(weights, theirs, strict=True):
        length = np.linalg.norm(other - mine)
        found += weight * min(1, radius / length) * (other - mine)
    return found


@pytest.fixture
def vectors():
    return np.random.default_rng(0).standard_normal((9, 5)) * [1, 10, 0.1, 3, 1] + 2


@pytest.mark.parametrize("b", [1, 2, 3])
def test_rules_are_their_definitions(vectors, b):
    for name, oracle in RULES.items():
        np.testing.assert_allclose(robust._RULES[name](vectors, b), oracle(vectors, b), rtol=1e-12)
    weights = np.linspace(0.05, 0.15, 8)
    for radius in (0, 0.5, 1e9):
        found = robust.clipped(vectors[1:], weights, vectors[0], radius, b)
        np.testing.assert_allclose(found, clip_to(vectors[0], vectors[1:], weights, radius, b), rtol=1e-12)


def test_the_geometric_median_has_the_smallest_sum_of_distances_and_of_a_triangle_it_is_fermat_s_point(vectors):
    found = robust.geometric_median(vectors, 1)
    directions = (vectors - found) / np.linalg.norm(vectors - found, axis=1, keepdims=True)
    assert np.linalg.norm(directions.sum(axis=0)) < 1e-3  # the gradient of the sum
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])  # equilateral: its centre
    np.testing.assert_allclose(robust.geometric_median(corners, 1), corners.mean(axis=0), atol=1e-6)


def test_the_trimmed_mean_holds_at_its_bound_and_not_beyond(vectors):
    honest, b = vectors[:7], 3
    for far in (-1e6, 1e6):
        lied = np.concatenate([honest, np.full((b, 5), far)])
        found = robust.trimmed_mean(lied, b)
        assert ((honest.min(axis=0) <= found) & (found <= honest.max(axis=0))).all()
        beyond = robust.trimmed_mean(np.concatenate([lied, np.full((1, 5), far)]), b)
        assert (np.abs(beyond) > 1e4).all()


@pytest.mark.parametrize("mixing", ["clipped", "trimmed", "median", "krum", "geometric-median"])
def test_in_a_run_neighbours_and_a_server_mix_by_the_rule(run_in_threads, mixing):
    keys = (f"algorithm.mixing={mixing}", "model.dtype=float64", "checkpoints.every=1")
    text = small("training.alpha = 0.5", clients=6, rounds=2, samples=120, topology="complete")
    folder = run_in_threads(text, *keys)
    shards, before, after = folder.shards(), folder.thetas(1), folder.thetas(2)
    W = oracles.metropolis_hastings(folder.edges(), 6)
    for i in range(6):
        order = [i, *(j for j in range(6) if j != i)]  # one's own first
        if mixing == "clipped":
            mixed = clip_to(before[i], before[order[1:]], W[i][order[1:]], 0, 1)
        else:
            mixed = RULES.get(mixing, robust.geometric_median)(before[order], 1)
        expected = mixed - 0.5 * oracles.gradient(before[i], shards[i])
        np.testing.assert_allclose(after[i], expected, rtol=1e-9, atol=1e-12)
    folder = run_in_threads(text.replace("'d-psgd'", "'fedavg'").replace("topology.kind = 'complete'\n", ""), *keys)
    before, after = folder.thetas(1), folder.thetas(2)
    sent = [before[6] - 0.5 * oracles.gradient(before[6], shards[i]) for i in range(6)]
    n = np.array([len(shards[i]["x_train"]) for i in range(6)])
    if mixing == "clipped":
        expected = clip_to(before[6], sent, n / n.sum(), 0, 1)
    else:
        expected = RULES.get(mixing, robust.geometric_median)(np.array(sent), 1)
    np.testing.assert_allclose(after[6], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ('mixing = "trimmed"', "algorithm.byzantine: = 1: mixing = 'trimmed' needs 3 vectors .* client 0 hears 2"),
        ('mixing = "krum", byzantine = 2', "needs 6 vectors at least for it, and client 0 hears 2"),
    ],
)
def test_a_bound_that_neighbours_do_not_suffice_for_is_refused(tmp_path, keys, told):
    (tmp_path / "config.toml").write_text(small(f'algorithm = {{ name = "d-psgd", {keys} }}', algorithm=""))
    (config,) = load(tmp_path / "config.toml")
    with pytest.raises(UserError, match=told):
        work_out(config, tmp_path / "run", Site(tmp_path, "ipc:///nowhere"), None)
