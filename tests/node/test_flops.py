"""Floating point operations in closed form, against torch's own counter and counts by hand."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from sheafgossip.node.maps import IdentityMaps, SelectionMaps, starting_maps, store
from sheafgossip.node.model.architecture import Architecture
from sheafgossip.node.model.flops import evaluation_flops, gradient_flops, transform_flops, truncation_flops
from sheafgossip.node.model.learner import Learner

ARCHITECTURES = [
    Architecture("logistic", (4,), 3),
    Architecture("logistic", (1, 8, 8), 10),
    Architecture("linear", (28,), 2),
    Architecture("mlp", (20,), 3, hidden=(7,)),
    Architecture("mlp", (1, 8, 8), 10, hidden=(16, 9, 5)),
    Architecture("cnn", (1, 8, 8), 10, filters=(8,)),
    Architecture("cnn", (3, 17, 12), 4, filters=(3, 5), hidden=(6,)),
    Architecture("cnn", (1, 28, 28), 10, filters=(32, 64)),
    Architecture("cnn", (3, 32, 32), 10, filters=(32, 64), hidden=(120,)),
    Architecture("gru", (12,), 3, hidden=(16,)),
    Architecture("gru", (5, 4), 1, hidden=(7,)),
    Architecture("gru", (1, 4), 2, hidden=(3,)),
]
SIZE, ROWS = 60, {1: 4, 2: 6}
HEIGHT = sum(ROWS.values())
THETA = np.linspace(-1, 1, SIZE)
R = {j: np.linspace(0, 1, rows) for j, rows in ROWS.items()}

every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES, ids=str)


# -- models ------------------------------------------------------------------------------------------------------------


def of_torch(linear: Architecture, batch: int) -> torch.Tensor:
    return torch.nn.Linear(linear.features, linear.outputs)(torch.ones(batch, linear.features))


@every_architecture
@pytest.mark.parametrize("batch", [1, 32])
def test_a_gradient_and_an_evaluation_are_what_torch_counts(with_shard, architecture, batch):
    learner = Learner(with_shard(architecture, batch, test=batch))
    with FlopCounterMode(display=False) as gradient:
        if architecture.is_linear:  # ours does without torch
            of_torch(architecture, batch).sum().backward()
        else:
            learner.gradient()
    with FlopCounterMode(display=False) as evaluation:
        if architecture.is_linear:
            of_torch(architecture, batch)
        else:
            learner.evaluate()
    assert gradient.get_total_flops() == batch * gradient_flops(architecture)
    assert evaluation.get_total_flops() == batch * evaluation_flops(architecture)


def test_torch_counts_the_steps_of_a_round_too(with_shard):
    architecture = Architecture("cnn", (1, 8, 8), 10, filters=(8,))
    learner = Learner(with_shard(architecture, 50, training={"work": "epochs", "epochs": 2, "batch_size": 16}))
    with FlopCounterMode(display=False) as counter:
        learner.learn()
    assert learner.learnt_samples == 100
    assert counter.get_total_flops() == 100 * gradient_flops(architecture)


def test_the_paper_s_cnn_counted_by_hand():
    """28x28 -> 32 maps of 26x26 -> 13x13 -> 64 maps of 11x11 -> 5x5 -> 10."""
    cnn = Architecture("cnn", (1, 28, 28), 10, filters=(32, 64))
    first, second, last = 2 * 26 * 26 * 32 * 9, 2 * 11 * 11 * 64 * 32 * 9, 2 * 1600 * 10
    assert evaluation_flops(cnn) == first + second + last == 4_881_920
    weights, inputs = first + second + last, second + last
    assert gradient_flops(cnn) == evaluation_flops(cnn) + weights + inputs == 14_256_384


def test_a_gru_counted_by_hand():
    """12 steps of one value -> a state of 16 numbers, which three gates read and write -> 3."""
    gru = Architecture("gru", (12,), 3, hidden=(16,))
    values, states, last = 12 * 2 * 3 * 16 * 1, 12 * 2 * 3 * 16 * 16, 2 * 16 * 3
    assert evaluation_flops(gru) == values + states + last == 19_680
    weights, inputs = values + states + last, states * 11 // 12 + last  # the first state is given: zeros
    assert gradient_flops(gru) == evaluation_flops(gru) + weights + inputs


# -- maps --------------------------------------------------------------------------------------------------------------


def maps(kind, storage, rank_cap=None, **changes):
    wanted = {"size": SIZE, "rows": ROWS} | changes
    theta = np.empty(wanted["size"])
    start = starting_maps(kind, seed=5, node=3, rows=wanted["rows"], theta=theta, scale=1.0)
    return store(start, storage, rank_cap)


def test_dense_maps_are_read_by_each_product_and_each_update():
    dense = maps("orthogonal", "dense")
    mine = dense.project(THETA)
    assert dense.flops == 2 * SIZE * HEIGHT
    dense.pull_back(mine)
    assert dense.flops == 4 * SIZE * HEIGHT
    dense.update(mine, R, THETA, 0.1)
    assert dense.flops == 6 * SIZE * HEIGHT


# 2.5 * 60 * log2(60) = 886.03
@pytest.mark.parametrize(("kind", "a_product"), [("gaussian", 2 * SIZE * HEIGHT), ("orthogonal", 886)])
def test_factored_maps_are_their_start_and_the_rows_of_their_history(kind, a_product):
    factored = maps(kind, "factored")
    rows = 5
    for _ in range(rows):
        factored.update(R, R, THETA, 0.1)
    assert factored.flops == 0  # an update only remembers
    with_history = a_product + 2 * rows * (SIZE + HEIGHT)
    factored.project(THETA)
    assert factored.flops == 0  # the update has left this projection behind
    factored.project(2 * THETA)
    assert factored.flops == with_history
    factored.pull_back(R)
    assert factored.flops == 2 * with_history


def test_maps_that_turn_dense_pay_for_that():
    auto = maps("gaussian", "auto", size=2100, rows={2: 40, 7: 50})
    product, theta = 2 * 2100 * 90, np.linspace(-1, 1, 2100)
    r = {2: np.ones(40), 7: np.ones(50)}
    updates = 0
    while auto.history_bytes() or not updates:
        assert auto.flops == 0
        assert updates < 500
        auto.update(r, r, theta, 1e-6)
        updates += 1
    assert auto.flops == product * updates  # R^T T, made once
    auto.pull_back(r)
    assert auto.flops == product * (updates + 1)


def test_a_rank_cap_pays_for_its_decompositions():
    capped = maps("gaussian", "factored", rank_cap=8)
    for k in range(9):
        capped.update(R, R, np.roll(THETA, k), 0.1)
    assert capped.flops == truncation_flops(SIZE, HEIGHT, 8, 6)
    qr = (4 * 60 * 8**2 - 4 * 8**3 // 3) + (4 * 10 * 8**2 - 4 * 8**3 // 3)
    assert capped.flops == qr + 2 * 8**3 + 21 * 8**3 + 2 * 6 * 8 * (60 + 10)


def test_maps_that_only_pick_or_scale_multiply_nothing():
    for fixed in (IdentityMaps({1: 0.5}, SIZE), SelectionMaps({1: np.arange(7)}, SIZE)):
        fixed.pull_back(fixed.project(THETA))
        assert fixed.flops == 0


def test_a_transform_is_rated_as_ffts_of_real_numbers_are():
    assert transform_flops(1024) == 2.5 * 1024 * 10
    assert transform_flops(1) == 0
