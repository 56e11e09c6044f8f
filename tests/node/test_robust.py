"""Robust mixing against plain loops and closed forms, and what it makes of a run's vectors."""

import importlib
import importlib.util
import sys
import types

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

import oracles
from runs import small
from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.prepare.assignments import Site
from sheafgossip.launcher.prepare.preparation import work_out
from sheafgossip.node import attacks
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


# Sums of these are exact, so that no rounding takes a mean of honest numbers beyond the largest
honest_numbers = st.integers(-(2**20), 2**20).map(lambda number: number / 1024)
lies = st.one_of(honest_numbers, st.integers(-(2**60), 2**60).map(float))


@given(data=st.data(), b=st.integers(0, 4), more=st.integers(1, 5), d=st.integers(1, 3))
def test_whatever_up_to_b_attackers_say_no_coordinate_of_the_trimmed_mean_leaves_the_honest_range(data, b, more, d):
    """Yin et al. (2018)."""
    attackers = data.draw(st.integers(0, b))
    honest = data.draw(arrays(float, (2 * b + more - attackers, d), elements=honest_numbers))
    lied = data.draw(arrays(float, (attackers, d), elements=lies))
    order = data.draw(st.permutations(range(len(honest) + attackers)))
    found = robust.trimmed_mean(np.concatenate([honest, lied])[order], b)
    assert ((honest.min(axis=0) <= found) & (found <= honest.max(axis=0))).all()


@given(b=st.integers(0, 4), more=st.integers(1, 5), far=st.floats(1e3, 1e12), sign=st.sampled_from([-1, 1]))
def test_one_attacker_more_than_b_takes_the_trimmed_mean_as_far_as_it_likes(b, more, far, sign):
    honest = np.linspace(-1, 1, b + more)[:, None]
    found = robust.trimmed_mean(np.concatenate([honest, np.full((b + 1, 1), sign * far)]), b)
    kept = len(honest) + 1 - b
    assert sign * found >= (far - kept) / kept


@pytest.fixture(scope="module")
def byzfl():
    """Its rules and attacks, without what else the package imports."""
    spec = importlib.util.find_spec("byzfl")
    package = types.ModuleType("byzfl")
    package.__path__ = list(spec.submodule_search_locations)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "byzfl", package)
        yield importlib.import_module("byzfl.aggregators.aggregators"), importlib.import_module("byzfl.attacks.attacks")


@pytest.mark.skipif(importlib.util.find_spec("byzfl") is None, reason="byzfl is not installed")
@pytest.mark.parametrize("b", [1, 2, 3])
def test_rules_and_attacks_are_those_of_byzfl(byzfl, vectors, b):
    rules, lies = byzfl
    np.testing.assert_allclose(robust.trimmed_mean(vectors, b), rules.TrMean(f=b)(vectors), rtol=1e-12)
    np.testing.assert_allclose(robust.median(vectors, b), rules.Median()(vectors), rtol=1e-12)
    # Its Krum adds up n - f - 1 distances, that of the paper n - f - 2
    np.testing.assert_array_equal(robust.krum(vectors, b), rules.Krum(f=b + 1)(vectors))
    converged = rules.GeometricMedian(nu=1e-6, T=200)(vectors)
    np.testing.assert_allclose(robust.geometric_median(vectors, b), converged, rtol=1e-3)
    weights, around = np.full(len(vectors), 1 / len(vectors)), np.zeros(5)
    clipping = rules.CenteredClipping(L=1, tau=4.0)
    np.testing.assert_allclose(robust.clipped(vectors, weights, around, 4.0, b), clipping(vectors), rtol=1e-12)
    # Its ALIE adds deviations instead of taking them away, and takes them as those of a sample
    of_a_sample = np.sqrt(len(vectors) / (len(vectors) - 1))
    alie = lies.ALittleIsEnough(tau=-1.5)(vectors)
    np.testing.assert_allclose(attacks.alie(vectors, 1.5 * of_a_sample), alie, rtol=1e-12)


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
