"""Sizes and starts of the models: the paper's counts, closed forms, and torch's own layers as oracle."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sheafgossip.node.model.architecture import Architecture, ArchitectureError
from sheafgossip.node.model.networks import forward, views

widths = st.lists(st.integers(1, 6), max_size=3).map(tuple)


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


@given(st.sampled_from(["logistic", "linear"]), st.integers(1, 600), st.integers(1, 12), widths, widths)
def test_a_linear_layer_has_a_weight_a_feature_and_output_and_a_bias_an_output(
    kind, features, outputs, filters, hidden
):
    """Filters and hidden layers change nothing."""
    assert Architecture(kind, (features,), outputs, filters=filters, hidden=hidden).size == (features + 1) * outputs


@given(st.integers(1, 100), widths, st.integers(1, 12))
def test_an_mlp_has_a_linear_layer_between_neighbouring_widths(features, hidden, outputs):
    sizes = [features, *hidden, outputs]
    expected = sum((a + 1) * b for a, b in pairwise(sizes))
    assert Architecture("mlp", (features,), outputs, hidden=hidden).size == expected


@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 40), st.integers(1, 12))
@example(12, 1, 16, 3)
def test_a_gru_has_three_gates_with_two_biases_each_whatever_the_length_of_the_series(steps, features, width, outputs):
    expected = 3 * width * (features + width + 2) + (width + 1) * outputs
    assert Architecture("gru", (steps, features), outputs, hidden=(width,)).size == expected
    if features == 1:
        assert Architecture("gru", (steps,), outputs, hidden=(width,)).size == expected


@pytest.mark.parametrize(("side", "allowed"), [(3, 0), (4, 1), (28, 3), (32, 3)])
def test_more_convolutions_than_the_image_has_room_for_are_refused_by_their_key(side, allowed):
    Architecture("cnn", (1, side, side), 2, filters=(1,) * allowed)
    with pytest.raises(ArchitectureError, match=rf"^model.filters = .*use fewer than {allowed + 1} layers$"):
        Architecture("cnn", (1, side, side), 2, filters=(1,) * (allowed + 1))


GRU_WIDTHS = r"^model.hidden = .*: 'gru' has one layer; give its width"


@pytest.mark.parametrize(
    ("kind", "shape", "layers", "told"),
    [
        ("cnn", (561,), {"filters": (8,)}, r"^model.kind = 'cnn' needs images, .* shape \(561,\)$"),
        (
            "gru",
            (1, 8, 8),
            {"hidden": (16,)},
            r"^model.kind = 'gru' needs series .* shape \(1, 8, 8\); data.series = true",
        ),
        ("gru", (12,), {}, GRU_WIDTHS),
        ("gru", (12,), {"hidden": (8, 8)}, GRU_WIDTHS),
    ],
)
def test_what_does_not_fit_the_data_or_the_kind_is_refused_by_its_key(kind, shape, layers, told):
    with pytest.raises(ArchitectureError, match=told):
        Architecture(kind, shape, 3, **layers)


@pytest.mark.parametrize(
    ("architecture", "label"),
    [
        (Architecture("cnn", (1, 28, 28), 10, filters=(32, 64), hidden=(120,)), "cnn 32-64 + 120"),
        (Architecture("cnn", (1, 28, 28), 10, filters=(32, 64)), "cnn 32-64"),
        (Architecture("mlp", (8,), 10, hidden=(20, 30)), "mlp 20-30"),
        (Architecture("gru", (12,), 3, hidden=(16,)), "gru 16"),
        (Architecture("logistic", (8,), 10), "logistic"),
    ],
)
def test_the_label_names_the_layers(architecture, label):
    assert architecture.label == label


# -- where theta starts ------------------------------------------------------------------------------------------------

CNN = Architecture("cnn", (2, 8, 8), 3, filters=(4,), hidden=(7,))


def test_every_start_lies_within_one_over_the_root_of_the_fan_in_of_its_layer():
    many = np.stack([CNN.start(seed) for seed in range(200)])
    fan_ins = [2 * 9] * (4 * 2 * 9 + 4) + [4 * 3 * 3] * (7 * 36 + 7) + [7] * (3 * 7 + 3)
    bounds = 1 / np.sqrt(fan_ins)
    assert many.shape == (200, CNN.size)
    assert (np.abs(many) <= bounds).all()
    assert (np.abs(many).max(axis=0) > 0.9 * bounds).all()  # and fills it: 200 draws miss the last tenth once in 1e9


def test_another_seed_client_or_architecture_starts_elsewhere_and_the_same_ones_alike():
    np.testing.assert_array_equal(CNN.start(7), Architecture("cnn", (2, 8, 8), 3, filters=(4,), hidden=(7,)).start(7))
    starts = [CNN.start(7), CNN.start(8), CNN.start(7, 1), CNN.start(7, 2), CNN.start(8, 1)]
    assert len({start.tobytes() for start in starts}) == len(starts)
    assert not np.array_equal(Architecture("logistic", (6,), 2).start(7), Architecture("logistic", (13,), 1).start(7))
    np.testing.assert_array_equal(CNN.start(7, init="zeros"), np.zeros(CNN.size))


def test_models_of_two_tasks_start_with_the_same_layers_before_the_last():
    """That of the first task starts as it would without the other."""
    ten, two = (Architecture("mlp", (6,), outputs, hidden=(5, 4)) for outputs in (10, 2))
    below = 6 * 5 + 5 + 5 * 4 + 4
    np.testing.assert_array_equal(ten.start(7, like=10), ten.start(7))
    np.testing.assert_array_equal(two.start(7, like=10)[:below], ten.start(7)[:below])
    np.testing.assert_array_equal(two.start(7, like=10)[below:], two.start(7)[below:])
    assert not np.array_equal(two.start(7)[:below], ten.start(7)[:below])


# -- torch as oracle ---------------------------------------------------------------------------------------------------


def torch_model(architecture: Architecture) -> torch.nn.Sequential:
    """The same network from torch's own layers, which find out the widths by themselves."""
    layers: list[torch.nn.Module] = []
    if architecture.kind == "cnn":
        for filters in architecture.filters:
            layers += [torch.nn.LazyConv2d(filters, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    layers.append(torch.nn.Flatten())
    for hidden in architecture.hidden:
        layers += [torch.nn.LazyLinear(hidden), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.LazyLinear(architecture.outputs)).double()
    model(torch.zeros(1, *architecture.input_shape, dtype=torch.float64))
    return model


def require_the_same(architecture: Architecture, parameters: list[torch.Tensor], of_torch: Callable) -> None:
    """The layout of theta, and the outputs for some inputs."""
    theta = torch.from_numpy(architecture.start(3))
    assert [block.shape for block in architecture.parameters()] == [tuple(p.shape) for p in parameters]
    torch.nn.utils.vector_to_parameters(theta, parameters)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(4, *architecture.input_shape)))
    found = forward(architecture, views(architecture, theta), x)
    torch.testing.assert_close(found, of_torch(x).detach(), rtol=1e-12, atol=1e-12)


@settings(deadline=None, max_examples=25)
@given(
    st.one_of(
        st.builds(Architecture, st.just("logistic"), st.tuples(st.integers(1, 9)), st.integers(1, 4)),
        st.builds(Architecture, st.just("mlp"), st.tuples(st.integers(1, 9)), st.integers(1, 4), hidden=widths),
        st.builds(
            Architecture,
            st.just("cnn"),
            st.tuples(st.integers(1, 3), st.integers(10, 14), st.integers(10, 14)),
            st.integers(1, 4),
            filters=st.lists(st.integers(1, 4), max_size=2).map(tuple),
            hidden=widths,
        ),
    )
)
def test_theta_is_laid_out_like_the_parameters_of_a_torch_model_and_computes_the_same(architecture):
    model = torch_model(architecture)
    require_the_same(architecture, list(model.parameters()), model)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 7), st.integers(1, 3), st.integers(1, 6), st.integers(1, 3))
def test_theta_is_laid_out_like_torchs_own_gru_and_linear_layer_and_computes_the_same(steps, features, width, outputs):
    architecture = Architecture("gru", (steps, features), outputs, hidden=(width,))
    gru = torch.nn.GRU(features, width, batch_first=True, dtype=torch.float64)
    last = torch.nn.Linear(width, outputs, dtype=torch.float64)
    parameters = [*gru.parameters(), *last.parameters()]
    require_the_same(architecture, parameters, lambda x: last(gru(x)[0][:, -1]))


def test_a_gru_starts_within_torchs_own_bounds():
    start = Architecture("gru", (12,), 3, hidden=(16,)).start(0)
    assert 0.9 / 4 < np.abs(start).max() <= 1 / 4


def test_the_bounds_of_the_start_are_those_of_torchs_own_layers():
    torch.manual_seed(0)
    for block in CNN.parameters():
        if block.name.endswith("weight"):
            drawn = torch.cat(
                [
                    p.flatten()
                    for _ in range(300)
                    for p in (
                        torch.nn.Conv2d(block.shape[1], block.shape[0], 3)
                        if len(block.shape) == 4
                        else torch.nn.Linear(block.shape[1], block.shape[0])
                    ).parameters()
                ]
            )
            assert float(drawn.detach().abs().max()) == pytest.approx(1 / math.sqrt(block.fan_in), rel=1e-3)
