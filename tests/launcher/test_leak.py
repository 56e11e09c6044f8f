"""The leak meter: where theory says what a neighbour learns, it is what is measured."""

import json

import numpy as np
import pytest
from scipy.fft import dct
from scipy.sparse.linalg import aslinearoperator

from foreign import sheafgossip
from runs import small
from sheafgossip.launcher.leak.attacks import auc, by_matching, distance, from_first_layer, power
from sheafgossip.launcher.leak.meter import Asked, measure
from sheafgossip.launcher.leak.observed import known
from sheafgossip.node.model.architecture import Architecture
from sheafgossip.topology.randomness import generator

KEPT = "measuring.vectors.mb = 100"
ROTATING = "algorithm = { name = 'sheaf-fmtl', start = 'shared', rotate_every = 1, eta = 0.0, gamma = 0.2, lam = 0.3 }"
DIGITS = small(KEPT, "evaluation.every = 0", "training.alpha = 0.5", samples=240, rounds=40, algorithm="")


# -- projections -------------------------------------------------------------------------------------------------------


def test_rows_that_span_the_whole_space_tell_a_vector_and_fewer_tell_all_but_its_part_in_their_null_space():
    """Oracle: the spectrum of the vector at rows that were never drawn. Rows of an orthonormal transform, and any."""
    rng, size = np.random.default_rng(0), 60
    truth, signs = rng.standard_normal(size), rng.choice([-1, 1], size)
    transform = 1.7 * dct(np.eye(size), norm="ortho", axis=0) * signs
    estimate, drawn = np.zeros(size), set()
    for round in range(1, 200):
        rows = rng.choice(size, 6, replace=False)
        estimate = known(aslinearoperator(transform[rows]), transform[rows] @ truth, estimate)
        drawn |= {*rows.tolist()}
        unseen = np.delete(transform @ truth / 1.7, sorted(drawn))
        assert np.linalg.norm(estimate - truth) == pytest.approx(np.linalg.norm(unseen), abs=1e-6)
        if round == size / 6:
            assert np.linalg.norm(estimate - truth) > 1  # rows come again: d / d_ij rounds do not do
    assert np.linalg.norm(estimate - truth) < 1e-6
    few = rng.standard_normal((20, size))
    of_null_space = truth - few.T @ np.linalg.solve(few @ few.T, few @ truth)
    assert known(aslinearoperator(few), few @ truth, np.zeros(size)) == pytest.approx(truth - of_null_space, abs=1e-6)


@pytest.fixture(scope="module")
def still(run_in_threads):
    """Clients that learn in the first rounds, and stand still from then on."""
    still = "training = { alpha = 0.5, schedule = 'step', schedule_every = 1, schedule_factor = 1e-5 }"
    text = small(KEPT, still, ROTATING, "model.dtype = 'float64'", "evaluation.every = 0", rounds=60, algorithm="")
    return run_in_threads(text)


def test_a_neighbour_gets_a_model_that_stands_still_whole_from_enough_rotating_rounds_and_not_from_few(still):
    leak = measure(still.path, Asked(attacks=("model",), looks=1000))
    size, d_ij = 650, 130
    for edge in leak.edges:
        assert edge.reads == "rotating rows"
        i, j = edge.sender, edge.receiver
        update = still.theta(60)[i] - still.theta(0)[i]
        signs = 1 - 2 * generator(0, "signs of the shared maps").integers(0, 2, size)
        spectrum, unseen = dct(signs * update, norm="ortho"), np.ones(size, bool)
        for row in edge.rounds[1:]:  # round 1 was sent before anything was learned
            rng = generator(0, "rows of the shared maps", min(i, j), max(i, j), int(row["round"]) - 1)
            unseen[rng.choice(size, d_ij, replace=False)] = False
            expected = np.linalg.norm(spectrum[unseen]) / np.linalg.norm(update)
            assert row["update"] == pytest.approx(expected, abs=1e-4)
        assert edge.rounds[4]["update"] > 0.1  # after more than d / d_ij rounds
        assert edge.rounds[-1]["update"] < 1e-6


def test_all_rows_of_prototype_sheaf_tell_the_whole_model_and_its_prototypes_are_not_taken_for_rows(run_in_threads):
    folder = run_in_threads(DIGITS + "algorithm = { name = 'prototype-sheaf', gamma = 1.0, seek = 5 }")
    edges = measure(folder.path, Asked(attacks=("model",))).edges
    read = [edge for edge in edges if edge.rounds]
    assert {edge.reads for edge in read} == {"rotating rows"}
    assert max(row["update"] for edge in read for row in edge.rounds if row["round"] > 1) < 1e-3  # float32


def test_fixed_maps_tell_a_subspace_and_no_more_in_any_number_of_rounds(run_in_threads):
    fixed = "algorithm = { name = 'sheaf-fmtl', start = 'orthogonal', eta = 0.0, gamma = 0.2, lam = 0.0 }"
    folder = run_in_threads(DIGITS + fixed)
    for edge in measure(folder.path, Asked(attacks=("model",))).edges:
        errors = edge.figure("update")
        assert edge.reads == "fixed rows"
        assert min(errors) > 0.8  # sqrt(1 - 0.2) of a random update is unseen
        assert errors[-1] == pytest.approx(errors[0], abs=0.08)


# -- membership --------------------------------------------------------------------------------------------------------


def test_the_area_and_the_power_are_those_of_all_pairs():
    rng = np.random.default_rng(1)
    members, others = rng.integers(0, 9, 40) + 1.0, rng.integers(0, 9, 30) * 1.0
    pairs = members[:, None] - others
    assert auc(members, others) == pytest.approx(np.mean((pairs > 0) + 0.5 * (pairs == 0)))
    best = max((members > t).mean() for t in np.unique(others) if (others > t).mean() <= 0.1)
    assert power(members, others, 0.1) == best


def test_membership_shows_the_more_the_longer_clients_learn_and_the_less_the_more_data_they_have(run_in_threads):
    """Alone: of clients that talk with weight 0, every message is that of a model that learned alone."""
    alone = "algorithm = { name = 'dfedu', lam = 0.0 }\ndata.test_fraction = 0.5\nseed = 3"
    few, many = (
        measure(run_in_threads(DIGITS + alone, f"data.samples={n}").path, Asked(("membership",), looks=4))
        for n in (160, 1600)
    )
    by_round = np.mean([edge.figure("auc") for edge in few.edges], axis=0)
    assert (by_round[0], by_round[-1]) == (pytest.approx(0.5, abs=0.06), pytest.approx(0.8, abs=0.15))
    assert by_round[-1] > by_round[1] > by_round[0]
    assert many.mean("auc", last=True) < few.mean("auc", last=True) - 0.1
    assert few.mean("tpr", last=True) > 2 * few.asked.false


def test_shadow_models_tell_members_apart_where_the_loss_alone_tells_less(run_in_threads):
    one_group = "algorithm = { name = 'd-psgd' }\ndata.test_fraction = 0.5\ndata.rotations = [0]"
    leak = measure(run_in_threads(DIGITS + one_group).path, Asked(("membership", "lira"), shadows=8, looks=2))
    assert leak.mean("lira_auc", last=True) > max(0.6, leak.mean("auc", last=True))


# -- inputs ------------------------------------------------------------------------------------------------------------


def test_the_first_step_on_one_sample_tells_this_sample(run_in_threads):
    one = "training = { work = 'steps', batch_size = 1, alpha = 0.1 }\nalgorithm = { name = 'd-psgd' }"
    one += "\nmodel = { kind = 'mlp', hidden = [8], dtype = 'float64' }"
    leak = measure(run_in_threads(DIGITS.replace("training.alpha = 0.5\n", "") + one).path, Asked(looks=2))
    for edge in leak.edges:
        assert edge.rounds[1]["inputs"] < 1e-6  # round 1 is sent before the first step
        assert edge.own_inputs > 0.1


def test_matching_finds_the_inputs_of_a_step_on_two_samples_and_the_first_layer_a_mean_of_them():
    pytest.importorskip("torch")
    import torch

    model, rng = Architecture(kind="mlp", input_shape=(64,), outputs=10, hidden=(32,)), np.random.default_rng(1)
    theta, x, y = model.start(0), rng.uniform(0, 1, (2, 64)), torch.tensor([3, 8])
    ends = np.cumsum([block.size for block in model.parameters()])[:-1]
    parts = [
        torch.tensor(part.reshape(block.shape), requires_grad=True)
        for part, block in zip(np.split(theta, ends), model.parameters(), strict=True)
    ]
    W, b, V, c = parts
    loss = torch.nn.functional.cross_entropy(torch.relu(torch.tensor(x) @ W.T + b) @ V.T + c, y)
    gradient = np.concatenate([each.numpy().ravel() for each in torch.autograd.grad(loss, parts)])
    found = by_matching(model, theta, gradient, 2, seed=0)
    assert max(distance(found, each[None]) for each in x) < 1e-3
    for row in from_first_layer(model, gradient):  # on the line through both
        share = (row - x[0]) @ (x[1] - x[0]) / np.sum((x[1] - x[0]) ** 2)
        assert row == pytest.approx(x[0] + share * (x[1] - x[0]), abs=1e-6)


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_tells_each_edge_and_each_round_and_who_cannot_be_told(run_in_threads, still):
    groups = "algorithm = { name = 'd-psgd' }\ndata.rotations = [0, 180]"
    folder = run_in_threads(DIGITS + groups)
    code, shown, _ = sheafgossip("leak", folder.path, "--all", "--looks", 3)
    assert code == 0
    assert all(f"{i} to {(i + 1) % 4} " in shown for i in range(4))
    assert "property: the sender's group; always guessing the most frequent: 0.50" in shown
    leak = json.loads(sheafgossip("leak", folder.path, "--json", "--edges", 5, "--attack", "property", "--looks", 3)[1])
    assert (leak["of"], len(leak["edges"])) == (8, 5)
    right = [row["property"] for edge in leak["edges"] for row in edge["rounds"] if row["round"] == 2]
    assert np.mean(right) > 0.5
    payload = {(edge["sender"], edge["receiver"]): edge["rounds"][-1]["payload_mb"] for edge in leak["edges"]}
    sent = folder.rows("SELECT src, dst, sum(payload_bytes) / 1e6 FROM traffic GROUP BY 1, 2")
    assert payload == {(i, j): pytest.approx(mb) for i, j, mb in sent if (i, j) in payload}


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (small(rounds=2), (), "its messages were not kept; run it with measuring.vectors.mb = 100"),
        (small(KEPT, rounds=2, algorithm="local"), (), "holds no messages of clients; its method may send none"),
        (small(KEPT, rounds=2), ("--attack", "guess"), "--attack guess: allowed are model, membership, lira"),
    ],
    ids=["not kept", "nothing sent", "no attack"],
)
def test_what_cannot_be_attacked_is_one_line(run_in_threads, text, words, said):
    code, _, error = sheafgossip("leak", run_in_threads(text).path, *words)
    assert (code, said in error, error.count("\n")) == (2, True, 1)
