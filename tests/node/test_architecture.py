"""Sizes, starts, outputs and costs of the models: the paper's counts, and torch's own layers and counter as oracle."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from sheafgossip.node.model.architecture import Architecture, ArchitectureError
from sheafgossip.node.model.networks import TorchModel

LENET = Architecture("cnn", (3, 32, 32), 10, filters=(32, 32, 64), kernel=5, padding=True, norm_groups=2)
"""decentralizepy's GN-LeNet."""


CNN = Architecture("cnn", (2, 8, 8), 3, filters=(4,), hidden=(7,))
GRU = Architecture("gru", (12,), 3, hidden=(16,))
PAPERS = Architecture("cnn", (3, 32, 32), 10, filters=(32, 64), hidden=(120,))


@pytest.mark.parametrize(
    ("image", "filters", "hidden", "parameters"),
    [
        ((1, 28, 28), (32, 64), (), 34_826),
        ((3, 32, 32), (32, 64), (), 42_442),
        ((1, 28, 28), (32, 64), (120,), 212_146),
        ((3, 32, 32), (32, 64), (120,), 297_202),
        ((1, 28, 28), (24, 48), (), 22_666),
        ((3, 32, 32), (24, 48), (), 28_378),
    ],
)
def test_the_papers_models_have_the_papers_number_of_parameters(image, filters, hidden, parameters):
    assert Architecture("cnn", image, 10, filters=filters, hidden=hidden).size == parameters


def test_the_label_names_the_layers():
    layers = {"filters": (32, 64), "hidden": (120, 30)}
    labels = [Architecture(kind, (1, 28, 28), 10, **layers).label for kind in ("cnn", "mlp", "logistic")]
    assert labels == ["cnn 32-64 + 120-30", "mlp 120-30", "logistic"]
    assert [each.label for each in (GRU, replace(CNN, hidden=()))] == ["gru 16", "cnn 4"]


@pytest.mark.parametrize(("side", "allowed"), [(3, 0), (4, 1), (28, 3), (32, 3)])
def test_more_convolutions_than_the_image_has_pixels_for_are_refused_by_their_key(side, allowed):
    """What else does not fit the data or the kind stands in bad_inputs.txt."""
    Architecture("cnn", (1, side, side), 2, filters=(1,) * allowed)
    with pytest.raises(ArchitectureError, match=rf"^model.filters = .*use fewer than {allowed + 1} layers$"):
        Architecture("cnn", (1, side, side), 2, filters=(1,) * (allowed + 1))


# -- where theta starts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "fan_ins"),
    [
        (CNN, [2 * 9] * (4 * 2 * 9 + 4) + [4 * 3 * 3] * (7 * 36 + 7) + [7] * (3 * 7 + 3)),
        (GRU, [16] * (3 * 16 * (1 + 16 + 2) + 3 * 17)),  # as torch's own
    ],
)
def test_every_start_lies_within_one_over_the_root_of_the_fan_in_of_its_layer(architecture, fan_ins):
    many = np.stack([architecture.start(seed) for seed in range(200)])
    bounds = 1 / np.sqrt(fan_ins)
    assert many.shape == (200, architecture.size)
    assert (np.abs(many) <= bounds).all()
    assert (np.abs(many).max(axis=0) > 0.9 * bounds).all()  # and fills it: 200 draws miss the last tenth once in 1e9


def test_a_group_norm_starts_as_torchs_does():
    assert LENET.size == 89_834
    assert [block.start for block in LENET.parameters() if "norm" in block.name] == 3 * [1.0, 0.0]
    first = slice(32 * 3 * 25 + 32, 32 * 3 * 25 + 3 * 32)
    np.testing.assert_array_equal(LENET.start(7)[first], np.repeat([1.0, 0.0], 32))


def test_another_seed_client_or_architecture_starts_elsewhere_and_the_same_ones_alike():
    np.testing.assert_array_equal(CNN.start(7), replace(CNN).start(7))
    starts = [CNN.start(7), CNN.start(8), CNN.start(7, 1), CNN.start(7, 2), CNN.start(8, 1)]
    starts += [Architecture("logistic", (6,), 2).start(7), Architecture("logistic", (13,), 1).start(7)]
    assert len({start.tobytes() for start in starts}) == len(starts)
    np.testing.assert_array_equal(CNN.start(7, init="zeros"), np.zeros(CNN.size))


def test_models_of_two_tasks_start_with_the_same_layers_before_the_last():
    """That of the first task starts as it would without the other."""
    ten, two = (Architecture("mlp", (6,), outputs, hidden=(5, 4)) for outputs in (10, 2))
    below = 6 * 5 + 5 + 5 * 4 + 4
    np.testing.assert_array_equal(ten.start(7, like=10), ten.start(7))
    np.testing.assert_array_equal(two.start(7, like=10), [*ten.start(7)[:below], *two.start(7)[below:]])
    assert not np.array_equal(two.start(7)[:below], ten.start(7)[:below])


# -- torch as oracle ---------------------------------------------------------------------------------------------------


class LastState(nn.GRU):
    def forward(self, x):
        return super().forward(x)[0][:, -1]


def torch_model(architecture: Architecture) -> nn.Sequential:
    """The same network from torch's own layers, which find out most widths by themselves."""
    layers: list[nn.Module] = []
    if architecture.kind == "gru":
        layers.append(LastState(architecture.series[1], *architecture.hidden, batch_first=True))
    if architecture.kind == "cnn":
        for filters in architecture.filters:
            layers.append(nn.LazyConv2d(filters, architecture.kernel, padding="same" if architecture.padding else 0))
            if architecture.norm_groups:
                layers.append(nn.GroupNorm(architecture.norm_groups, filters))
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
    layers.append(nn.Flatten())
    for hidden in architecture.hidden if architecture.kind in ("mlp", "cnn") else ():
        layers += [nn.LazyLinear(hidden), nn.ReLU()]
    model = nn.Sequential(*layers, nn.LazyLinear(architecture.outputs)).double()
    model(torch.zeros(2, *architecture.input_shape, dtype=torch.float64))
    return model


widths = st.lists(st.integers(1, 6), max_size=3).map(tuple)
features, outputs, sides = st.tuples(st.integers(1, 9)), st.integers(1, 4), st.integers(10, 14)


image, series = st.tuples(st.integers(1, 3), sides, sides), st.tuples(st.integers(1, 7), st.integers(1, 3))
filters = st.lists(st.sampled_from([2, 4]), max_size=2).map(tuple)
cnns = {"filters": filters, "hidden": widths, "padding": st.booleans(), "norm_groups": st.integers(0, 2)}
architectures = st.one_of(
    st.builds(Architecture, st.sampled_from(["mlp", "logistic"]), features, outputs, hidden=widths),
    st.builds(Architecture, st.just("cnn"), image, outputs, **cnns),
    st.builds(Architecture, st.just("gru"), series, outputs, hidden=st.tuples(st.integers(1, 6))),
)


@settings(deadline=None, max_examples=60)
@given(architectures, st.sampled_from(["classification", "regression"]), st.sampled_from([1, 12]))
@example(LENET, "classification", 12)
@example(PAPERS, "classification", 32)
def test_a_model_is_laid_out_as_torchs_and_gives_its_outputs_loss_gradient_and_operations(architecture, task, n):
    model, rng, theta = torch_model(architecture), np.random.default_rng(0), architecture.start(3)
    assert [block.shape for block in architecture.parameters()] == [tuple(p.shape) for p in model.parameters()]
    nn.utils.vector_to_parameters(torch.from_numpy(theta.copy()), model.parameters())
    x = torch.from_numpy(rng.normal(size=(n, *architecture.input_shape)))
    classes, targets = rng.integers(architecture.outputs, size=n), rng.normal(size=(n, architecture.outputs))
    y, predicted = torch.from_numpy(classes if task == "classification" else targets), model(x)
    loss = nn.functional.cross_entropy if task == "classification" else nn.functional.mse_loss
    expected = loss(predicted, y, reduction="sum")
    expected.backward()

    gradient, tolerance = np.zeros(architecture.size), 1e-10 if architecture.norm_groups else 1e-12
    ours = TorchModel(architecture, task, theta, gradient)
    features = model[:-1](x).detach().numpy()
    np.testing.assert_allclose(ours.features(x), features, rtol=tolerance, atol=tolerance)
    with FlopCounterMode(display=False) as learning:
        assert ours.add_gradient(x, y, 4) == pytest.approx(expected.item() / 4, rel=tolerance)
    slopes = torch.cat([p.grad.flatten() for p in model.parameters()]).numpy() / 4
    np.testing.assert_allclose(gradient, slopes, rtol=100 * tolerance, atol=tolerance)
    score = float((predicted.argmax(1) == y).sum()) if task == "classification" else expected.item()
    with FlopCounterMode(display=False) as evaluating:
        assert ours.evaluate(x, y) == pytest.approx((expected.item(), score), rel=tolerance)
    assert learning.get_total_flops() == n * architecture.gradient_flops
    assert evaluating.get_total_flops() == n * architecture.evaluation_flops
