"""[privacy]: gradients of local work against a loop over samples, and what an algorithm no longer gets."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from oracles import gradient
from sheafgossip.node.algorithms import ALGORITHMS
from sheafgossip.node.assignment import AssignedIncarnation
from sheafgossip.node.model.architecture import Architecture
from sheafgossip.node.model.learner import Learner, trying
from sheafgossip.node.model.private import PrivateLearner, learner_of
from sheafgossip.node.privacy import NotPrivate, PrivateClient
from sheafgossip.node.settings import Privacy, Training
from sheafgossip.topology.randomness import generator

LOGISTIC, MLP = Architecture("logistic", (4,), 3), Architecture("mlp", (6,), 3, hidden=(7, 5))
CNN = Architecture("cnn", (2, 8, 8), 3, filters=(3, 4), kernel=(3, 2), hidden=(5,))
SEED, NODE = 11, 3  # of the assignment


def layers(architecture):
    if architecture.kind == "gru":
        return nn.GRU(architecture.series[1], *architecture.hidden, batch_first=True), nn.Linear(4, 3)
    return (nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))  # fmt: skip


def of_a_sample(architecture, theta, shard, row):
    """Its gradient, by plain numpy or by torch's own layers."""
    if architecture.is_dense:
        return gradient(theta, shard, np.array([row]), architecture.hidden)
    parts = layers(architecture)
    parameters = [each for part in parts for each in part.double().parameters()]
    nn.utils.vector_to_parameters(torch.from_numpy(theta.astype(float)), parameters)
    z = torch.from_numpy(shard["x_train"][row : row + 1].astype(float))
    for part in parts:
        z = part(z)
        z = z[0][:, -1] if isinstance(part, nn.GRU) else z
    loss = nn.functional.cross_entropy(z, torch.from_numpy(shard["y_train"][row : row + 1]))
    return torch.cat([each.flatten() for each in torch.autograd.grad(loss, parameters)]).numpy()


def rows_of(n, size, round, number, incarnation=1):
    return np.flatnonzero(generator(SEED, "private mini-batch", NODE, incarnation, round, number).random(n) < size / n)


def noise_of(d, round, place, incarnation=1):
    return generator(SEED, "private noise", NODE, incarnation, round, place).standard_normal(d)


@pytest.mark.parametrize(
    ("architecture", "dtype", "tolerance"),
    [
        (LOGISTIC, "float64", 1e-9),
        (MLP, "float64", 1e-9),
        (MLP, "float32", 1e-5),
        (CNN, "float64", 1e-9),
        (CNN, "float32", 1e-5),
        (Architecture("gru", (5, 2), 3, hidden=(4,)), "float64", 1e-9),
    ],
    ids=lambda each: getattr(each, "kind", str(each)),
)
def test_a_round_takes_the_clipped_gradients_of_a_loop_over_samples_and_noise(
    with_shard, architecture, dtype, tolerance
):
    """On Poisson draws, three steps, with an l2 term that no noise is for."""
    n, size, alpha, l2, noise = 30, 12, 0.3, 0.1, 0.7
    training = {"work": "steps", "steps": 3, "batch_size": size, "alpha": alpha, "l2": l2}
    own = with_shard(architecture, n, training=training, model={"dtype": dtype})
    shard, theta = load_file(own.shard), Learner(own).theta.astype(float)
    norms = [np.linalg.norm(of_a_sample(architecture, theta, shard, row)) for row in range(n)]
    clip = float(np.median(norms))  # half of them are clipped
    learner = learner_of(replace(own, privacy=Privacy(clip=clip, noise=noise)))
    learner.enter(4)
    learner.learn()
    for step in range(3):
        found = noise * clip * noise_of(len(theta), 4, step)
        for row in rows_of(n, size, 4, step):
            g = of_a_sample(architecture, theta, shard, row)
            found += g * min(1, clip / np.linalg.norm(g))
        theta -= alpha * (found / size + l2 * theta)
    assert np.linalg.norm(learner.theta - theta) < tolerance * np.linalg.norm(theta)


def test_a_full_step_takes_all_samples_in_parts_too(with_shard):
    own = with_shard(MLP, 700, model={"dtype": "float64"})
    learner = learner_of(replace(own, privacy=Privacy(clip=0.2, noise=0.5)))
    learner.enter(1)
    theta, shard = learner.theta.copy(), load_file(own.shard)
    _, found = learner.gradient(next(learner.batches()))
    gradients = [gradient(theta, shard, np.array([row]), MLP.hidden) for row in range(700)]
    expected = sum(g * min(1, 0.2 / np.linalg.norm(g)) for g in gradients) + 0.1 * noise_of(len(theta), 1, 0)
    np.testing.assert_allclose(found, expected / 700, atol=1e-12)


def test_with_dropout_a_layers_closed_form_is_the_loop_over_samples(with_shard):
    """All that dropout leaves counts double here: masks are those of one pass, from the same generator."""
    own = with_shard(replace(MLP, dropout=0.5), 20)
    private = replace(own, privacy=Privacy(clip=0.1, noise=0.0))
    learner, plain = learner_of(private), Learner(own)
    learner.enter(1)
    _, found = learner.gradient()
    model = plain._model
    model._dropout.begin_pass()  # the masks of all samples, one below the other
    masks = [model._dropout.factors((20, width), plain.theta.dtype) for width in MLP.hidden]
    total = np.zeros_like(plain.theta)
    for row in range(20):
        own_masks = iter([mask[row : row + 1] for mask in masks])
        model._dropout.factors = lambda *_, own_masks=own_masks: next(own_masks)
        _, g = plain.gradient((plain._x_train[row : row + 1], plain._y_train[row : row + 1]))
        total += g * min(1, 0.1 / np.linalg.norm(g))
    np.testing.assert_allclose(found, total / 20, atol=1e-12)


def test_an_empty_draw_is_noise_alone(with_shard):
    own = replace(with_shard(LOGISTIC, 40), training=Training(work="steps", steps=60, batch_size=1))
    learner = learner_of(replace(own, privacy=Privacy(clip=2.0, noise=3.0)))
    learner.enter(2)
    empty = next(batch for batch in learner.batches() if not len(batch.rows))
    loss, found = learner.gradient(empty)
    assert loss == 0
    np.testing.assert_allclose(found, 6 * noise_of(len(found), 2, 0))


@pytest.mark.parametrize(("work", "steps"), [("steps", 5), ("epochs", 2 * 4)])
def test_mini_batches_are_poisson_draws_as_many_as_there_were_mini_batches(with_shard, work, steps):
    own = replace(with_shard(LOGISTIC, 50), training=Training(work=work, steps=5, epochs=2, batch_size=16))
    learner = learner_of(replace(own, privacy=Privacy(clip=1.0, noise=1.0)))
    for round in (1, 2):
        learner.enter(round)
        found = [batch.rows.tolist() for batch in learner.batches()]
        assert found == [rows_of(50, 16, round, number).tolist() for number in range(steps)]


def test_who_comes_back_draws_another_noise_in_the_same_round(with_shard):
    own = replace(with_shard(LOGISTIC, 40), privacy=Privacy(clip=1.0, noise=1.0))
    found = []
    for number in (1, 2):
        learner = learner_of(replace(own, incarnation=AssignedIncarnation(number=number)))
        learner.enter(5)
        found.append(learner.gradient()[1].copy())
    apart = (noise_of(15, 5, 0, 1) - noise_of(15, 5, 0, 2)) / 40
    np.testing.assert_allclose(found[0] - found[1], apart, atol=1e-12)


def test_what_is_only_tried_is_exact(with_shard):
    own = with_shard(LOGISTIC, 40)
    learner, plain = learner_of(replace(own, privacy=Privacy(clip=1e-3, noise=9.0))), Learner(own)
    with trying(learner):
        np.testing.assert_array_equal(learner.gradient()[1], plain.gradient()[1])
    assert np.abs(learner.gradient()[1] - plain.gradient()[1]).max() > 1e-4


# -- what an algorithm may do ------------------------------------------------------------------------------------------


@pytest.fixture
def private(with_shard):
    """(client, learner) of an algorithm, in round 1."""

    def made(name, **training):
        own = replace(with_shard(LOGISTIC, 40), training=Training(**training), algorithm={"name": name})
        learner = learner_of(replace(own, privacy=Privacy(clip=1.0, noise=1.0)))
        return PrivateClient(ALGORITHMS[name](), learner._assignment, learner), learner

    return made


@pytest.mark.parametrize(
    "look",
    [
        lambda client: client.loss_of(client.theta),
        lambda client: client.features_of(client.theta, next(client.batches())),
        lambda client: client.hold_out(0.5),
        lambda client: client.held_out,
        lambda client: client.class_features(),
        lambda client: client.class_counts(),
        lambda client: client.inputs(),
        lambda client: client.train_loss,
        lambda client: client.gradient_on(next(client.batches()), (np.zeros((3, 4)), 0.1)),
    ],
)
def test_a_client_does_not_let_its_algorithm_look_at_samples(private, look):
    client, _ = private("d-psgd")
    client.enter(1)
    client.learn()
    with pytest.raises(NotPrivate, match=r"\[privacy\] allows local work noised gradients alone: "):
        look(client)


def test_a_mini_batch_tells_nothing_of_its_samples(private):
    client, _ = private("d-psgd", work="steps")
    batch = next(client.batches())
    for look in (len, iter, lambda each: each[0]):
        with pytest.raises(TypeError):
            look(batch)


def test_more_gradients_than_an_algorithm_has_told_are_refused(private):
    """pFedMe tells of five on each mini-batch, none on all samples, and of none before the first round."""
    client, learner = private("pfedme", work="steps", steps=2)
    assert isinstance(learner, PrivateLearner)

    def refused(batch=None):
        with pytest.raises(NotPrivate, match="takes more gradients of samples than"):
            client.gradient_on(batch)

    refused()
    refused(next(client.batches()))
    for round in (1, 2):
        client.enter(round)
        learner.enter(round)
        for batch in client.batches():
            for _ in range(5):
                client.gradient_on(batch)
            refused(batch)
        refused(next(client.batches()))  # a third one
        refused()
