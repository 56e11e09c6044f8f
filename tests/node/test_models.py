"""Models: their sizes, starts, outputs and costs, by the paper's counts, and torch's own layers and counter; gradients,
mini-batches and evaluation, by closed forms in numpy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings, strategies as st
from safetensors.numpy import load_file, save_file
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from oracles import batch_rows
from sheafgossip.node.model.architecture import Architecture, ArchitectureError, Given
from sheafgossip.node.model.dense import DenseModel
from sheafgossip.node.model.dropout import Dropout
from sheafgossip.node.model.learner import Learner
from sheafgossip.node.model.networks import TorchModel, views
from sheafgossip.node.model.own import ModuleModel, measured
from sheafgossip.node.own_code import load

LENET = Architecture("cnn", (3, 32, 32), 10, filters=(32, 32, 64), kernel=(5,), padding=True, norm_groups=2)
"""decentralizepy's GN-LeNet."""

CNN = Architecture("cnn", (2, 8, 8), 3, filters=(4,), hidden=(7,))
FEDSAK = {
    "Model-1": {
        "filters": (16, 32, 64),
        "kernel": (5, 3, 2),
        "padding": (2, 1, 1),
        "stride": (1, 1, 2),
        "pool": (2, 2, 1),
    },
    "Model-2": {"filters": (32, 64), "kernel": (3, 2), "padding": (1,), "stride": (2,), "pool": (2, 1)},
    "Model-3": {"filters": (32, 64), "kernel": (5,)},
    "Model-4": {"filters": (32, 64), "kernel": (3, 5)},
}
"""The feature extractors of the paper's table 4, without their hidden layer."""
GRU = Architecture("gru", (12,), 3, hidden=(16,))
LOGISTIC = Architecture("logistic", (4,), 3)
LINEAR = Architecture("linear", (4,), 2)
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}


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


@pytest.mark.parametrize("model", FEDSAK)
def test_the_four_networks_of_fedsaks_table_4_leave_5x5_of_32x32_pixels(model):
    """So that their fully connected layers are of one shape."""
    network = Architecture("cnn", (3, 32, 32), 10, hidden=(512,), **FEDSAK[model])
    assert network.parameters()[-4].shape == (512, 64 * 5 * 5)


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


@pytest.mark.parametrize(
    ("head", "names"),
    [
        ((), ["output.weight", "output.bias"]),
        (("hidden0", "output"), ["hidden0.weight", "hidden0.bias", "output.weight", "output.bias"]),
        (("norm*",), ["norm0.weight", "norm0.bias", "norm1.weight", "norm1.bias"]),
        (("*.bias", "conv1"), ["conv0.bias", "norm0.bias", "conv1.weight", "conv1.bias", "norm1.bias", "hidden0.bias"]),
    ],
)
def test_body_and_head_are_where_their_parameters_are_in_theta(head, names):
    model = Architecture("cnn", (1, 12, 12), 3, filters=(2, 4), hidden=(5,), norm_groups=2, head=head)
    numbers = np.concatenate([np.full(block.size, number) for number, block in enumerate(model.parameters())])
    expected = np.isin(numbers, [number for number, block in enumerate(model.parameters()) if block.name in names])
    if "*.bias" in head:
        expected[-3:] = True  # the last bias
    for block, there in (("head", expected), ("body", ~expected)):
        np.testing.assert_array_equal(numbers[model.places_of(block)], numbers[there])
        assert model.size_of(block) == there.sum()
    assert isinstance(model.places_of("head"), slice) == (head in ((), ("hidden0", "output")))


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
        for depth, filters in enumerate(architecture.filters):
            kernel, stride, pool = (
                each[depth % len(each)] for each in (architecture.kernel, architecture.stride, architecture.pool)
            )
            padding = architecture.padding if isinstance(architecture.padding, tuple) else (0,)
            zeros = (kernel - 1) // 2 if architecture.padding is True else padding[depth % len(padding)]
            layers.append(nn.LazyConv2d(filters, kernel, stride, zeros))
            if architecture.norm_groups:
                layers.append(nn.GroupNorm(architecture.norm_groups, filters))
            layers += [nn.ReLU(), nn.MaxPool2d(pool)]
    layers.append(nn.Flatten())
    for hidden in architecture.hidden if architecture.kind in ("mlp", "cnn") else ():
        layers += [nn.LazyLinear(hidden), nn.ReLU()]
    model = nn.Sequential(*layers, nn.LazyLinear(architecture.outputs)).double()
    model(torch.zeros(2, *architecture.input_shape, dtype=torch.float64))
    return model


widths = st.lists(st.integers(1, 6), max_size=3).map(tuple)
features, outputs, sides = st.tuples(st.integers(1, 9)), st.integers(1, 4), st.integers(22, 26)


image, series = st.tuples(st.integers(1, 3), sides, sides), st.tuples(st.integers(1, 7), st.integers(1, 3))
filters = st.lists(st.sampled_from([2, 4]), max_size=2).map(tuple)
cnns = {
    "filters": filters,
    "hidden": widths,
    "padding": st.one_of(st.booleans(), st.tuples(st.integers(1, 2))),
    "norm_groups": st.integers(0, 2),
    "stride": st.tuples(st.integers(1, 2)),
    "pool": st.tuples(st.integers(1, 2)),
}
architectures = st.one_of(
    st.builds(Architecture, st.sampled_from(["mlp", "logistic"]), features, outputs, hidden=widths),
    st.builds(Architecture, st.just("cnn"), image, outputs, **cnns),
    st.builds(Architecture, st.just("gru"), series, outputs, hidden=st.tuples(st.integers(1, 6))),
)


def oracle(architecture: Architecture, task: str, theta, x, y) -> tuple[float, float, np.ndarray, np.ndarray]:
    """By torch's own layers: the summed loss, the right classifications or the squared error, the features, and the
    gradient of the loss."""
    model = torch_model(architecture)
    assert [block.shape for block in architecture.parameters()] == [tuple(p.shape) for p in model.parameters()]
    nn.utils.vector_to_parameters(torch.from_numpy(theta.copy()), model.parameters())
    features, y = model[:-1](torch.from_numpy(x)), torch.from_numpy(y)
    z, loss = model[-1](features), nn.functional.cross_entropy if task == "classification" else nn.functional.mse_loss
    summed = loss(z, y, reduction="sum")
    summed.backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()]).numpy()
    score = float((z.argmax(1) == y).sum()) if task == "classification" else summed.item()
    return summed.item(), score, features.detach().numpy(), gradient


@settings(deadline=None, max_examples=60)
@given(architectures, st.sampled_from(["classification", "regression"]), st.sampled_from([1, 12]))
@example(LENET, "classification", 12)
@example(Architecture("cnn", (3, 32, 32), 7, hidden=(24,), **FEDSAK["Model-1"]), "classification", 1)
@example(Architecture("cnn", (3, 32, 32), 7, hidden=(24,), **FEDSAK["Model-2"]), "classification", 12)
@example(Architecture("cnn", (3, 32, 32), 10, filters=(32, 64), hidden=(120,)), "classification", 32)
def test_a_model_is_laid_out_as_torchs_and_gives_its_outputs_loss_gradient_and_operations(architecture, task, n):
    rng, theta, gradient = np.random.default_rng(0), architecture.start(3), np.zeros(architecture.size)
    x, classes = rng.normal(size=(n, *architecture.input_shape)), rng.integers(architecture.outputs, size=n)
    y = classes if task == "classification" else rng.normal(size=(n, architecture.outputs))
    summed, score, features, slopes = oracle(architecture, task, theta, x, y)
    model, tolerance = (
        TorchModel(Given(architecture, task, theta, gradient)),
        1e-10 if architecture.norm_groups else 1e-12,
    )
    x, y = map(torch.from_numpy, (x, y))
    np.testing.assert_allclose(model.features(x), features, rtol=tolerance, atol=tolerance)
    with FlopCounterMode(display=False) as learning:
        assert model.add_gradient(x, y, 4) == pytest.approx(summed / 4, rel=tolerance)
    np.testing.assert_allclose(gradient, slopes / 4, rtol=100 * tolerance, atol=tolerance)
    with FlopCounterMode(display=False) as evaluating:
        assert model.evaluate(x, y) == pytest.approx((summed, score), rel=tolerance)
    assert learning.get_total_flops() == n * architecture.gradient_flops
    assert evaluating.get_total_flops() == n * architecture.evaluation_flops


MODULE = """
from torch import nn


class Own(nn.Module):
    def __init__(self, shape, outputs, flat):
        super().__init__()
        self.conv0, self.conv1 = nn.Conv2d(shape[0], 4, 3), nn.Conv2d(4, 6, 3)
        self.output, self.flat = nn.Linear(6 * (shape[1] - 4) * (shape[2] - 4), outputs), flat

    def forward(self, x):
        x = self.conv1(self.conv0(x).relu()).relu()
        return self.output(x.view(len(x), -1) if self.flat == "view" else x.flatten(1))


def make(shape, outputs, flat):
    return Own(shape, outputs, flat)
"""


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("flat", ["view", "flatten"])
def test_a_module_of_ones_own_is_the_built_in_cnn_whether_or_not_it_can_take_channels_last(tmp_path, flat, channels):
    (tmp_path / "own.py").write_text(MODULE)
    use, shape, dtype = f"{tmp_path}/own.py:make", (channels, 8, 9), np.dtype("f8")
    own = measured(use, "model.use", {"flat": flat}, (shape, 3, "classification"), dtype)
    assert own.channels_last == (flat == "flatten")
    built_in = Architecture("cnn", shape, 3, filters=(4, 6), pool=(1,))
    assert (own.evaluation_flops, own.gradient_flops) == (built_in.evaluation_flops, built_in.gradient_flops)
    theta, module = built_in.start(3), load(use, "model.use")(shape, 3, flat=flat).double()
    nn.utils.vector_to_parameters(torch.from_numpy(theta), module.parameters())
    own_theta, slopes, expected = np.zeros_like(theta), np.zeros_like(theta), np.zeros_like(theta)
    architecture = Architecture("own", shape, 3, own=own)
    model = ModuleModel(Given(architecture, "classification", own_theta, slopes, (0, 1)), module)
    x, y = torch.randn(5, *shape, dtype=torch.float64), torch.arange(5) % 3
    loss = TorchModel(Given(built_in, "classification", theta, expected)).add_gradient(x, y, 5)
    assert model.add_gradient(x, y, 5) == pytest.approx(loss, rel=1e-12)
    np.testing.assert_array_equal(own_theta, theta)
    np.testing.assert_allclose(slopes, expected, rtol=1e-9, atol=1e-12)


# -- learners ----------------------------------------------------------------------------------------------------------

every_dtype = pytest.mark.parametrize("dtype", list(TOLERANCE))


def numbers(assignment, part: str) -> tuple[np.ndarray, np.ndarray]:
    """x in double precision, and y, of the training or test samples."""
    x, y = (load_file(assignment.shard)[f"{name}_{part}"] for name in "xy")
    return x.astype(float), y.astype(float) if y.dtype.kind == "f" else y


@pytest.mark.parametrize("architecture", [LOGISTIC, LINEAR, CNN], ids=["logistic", "linear", "cnn"])
@pytest.mark.parametrize(("samples", "l2"), [(1, 0.0), (40, 0.3), (511, 0.1), (512, 0.1), (513, 0.1), (1500, 0.1)])
@every_dtype
def test_gradient_loss_and_evaluation_are_torchs_also_where_they_are_computed_in_parts(
    with_shard, architecture, samples, l2, dtype
):
    """The metric is accuracy, or the mean squared error over samples and targets. The test loss has no l2."""
    assignment = with_shard(architecture, samples, samples, training={"l2": l2}, model={"dtype": dtype})
    learner, tolerance, task = Learner(assignment), TOLERANCE[dtype], assignment.run.task
    assert learner.theta.dtype == learner.gradient()[1].dtype == np.dtype(dtype)
    learner.theta += np.linspace(1, -1, architecture.size).astype(dtype)  # what is changed in place learns next
    theta, (x, y) = learner.theta.astype(float), numbers(assignment, "train")
    loss, gradient = learner.gradient()
    summed, _, _, slopes = oracle(architecture, task, theta, x, y)
    assert loss == pytest.approx(summed / samples + l2 / 2 * (theta @ theta), rel=tolerance)
    assert learner.loss_of(learner.theta) == pytest.approx(summed / samples, rel=tolerance)
    expected, steep = slopes / samples + l2 * theta, 100 if architecture is CNN else 1
    np.testing.assert_allclose(gradient, expected, rtol=steep * tolerance, atol=tolerance)
    if architecture is LOGISTIC:  # what pulls features moves no parameter
        anchors, gradient = np.arange(12, dtype=dtype).reshape(3, 4), gradient.copy()
        pulled, same = learner.gradient(pull=(anchors, 0.5))
        np.testing.assert_array_equal(same, gradient)
        assert pulled == pytest.approx(loss + 0.5 * ((x - anchors[y]) ** 2).sum(1).mean(), rel=tolerance)
    summed, score, _, _ = oracle(architecture, task, theta, *numbers(assignment, "test"))
    expected = summed / samples, score / (samples * (2 if architecture is LINEAR else 1))
    assert learner.evaluate() == pytest.approx(expected, rel=tolerance)
    np.testing.assert_array_equal(learner.theta, theta)


@pytest.mark.parametrize("architecture", [replace(LOGISTIC, kind="mlp", hidden=(5,)), CNN], ids=["mlp", "cnn"])
def test_a_pull_that_is_a_function_of_the_features_is_as_good_as_anchors_also_in_parts(with_shard, architecture):
    learner = Learner(with_shard(architecture, 700, 10, model={"dtype": "float64"}))
    batch = learner._x_train, learner._y_train
    anchors, y = np.random.default_rng(1).normal(size=(3, architecture.features)), np.asarray(batch[1])
    seen = learner.features_of(learner.theta, batch)

    def pull(features, rows):
        np.testing.assert_allclose(features, seen[rows], rtol=1e-12)
        apart = features - anchors[y[rows]]
        return 0.3 * (apart**2).sum(), 2 * 0.3 * apart

    loss, gradient = learner.gradient(pull=(anchors, 0.3))
    expected = gradient.copy()
    found, gradient = learner.gradient(batch, pull)
    assert found == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("hidden", [(), (5,), (7, 4)])
@pytest.mark.parametrize(("weight", "dropout"), [(0.0, 0.0), (0.3, 0.0), (0.3, 0.4)])
@every_dtype
def test_fully_connected_layers_in_closed_form_equal_autograd(task, hidden, weight, dropout, dtype):
    random, tolerance = np.random.default_rng(1), TOLERANCE[dtype]
    kind = "mlp" if hidden else "logistic" if task == "classification" else "linear"
    architecture = Architecture(kind, (2, 3), 3, hidden=hidden, dropout=dropout)
    theta, x = random.standard_normal(architecture.size).astype(dtype), random.standard_normal((40, 6)).astype(dtype)
    y = random.integers(3, size=40) if task == "classification" else random.standard_normal((40, 3)).astype(dtype)
    anchors = random.standard_normal((3, architecture.features)).astype(dtype)
    pull = (anchors, weight) if weight and task == "classification" else None
    found, expected = np.zeros_like(theta), np.zeros_like(theta)
    ours = DenseModel(Given(architecture, task, theta, found))
    torchs = TorchModel(Given(architecture, task, theta.copy(), expected))
    as_torch = torch.from_numpy(x), torch.from_numpy(y)
    for samples in (40, 80):  # it adds to what is there
        assert ours.add_gradient(x, y, samples, pull) == pytest.approx(
            torchs.add_gradient(*as_torch, samples, pull), rel=tolerance
        )
    np.testing.assert_allclose(found, expected, rtol=10 * tolerance, atol=tolerance)
    np.testing.assert_allclose(ours.features(x), torchs.features(as_torch[0]), rtol=tolerance, atol=tolerance)
    assert ours.evaluate(x, y) == pytest.approx(torchs.evaluate(*as_torch), rel=tolerance)


@pytest.mark.parametrize(
    "architecture",
    [
        Architecture("mlp", (4,), 2, hidden=(2000,), dropout=0.3),
        Architecture("cnn", (1, 4, 4), 2, filters=(2,), hidden=(2000,), dropout=0.3),
        Architecture("gru", (3,), 2, hidden=(2000,), dropout=0.3),
    ],
    ids=lambda architecture: architecture.kind,
)
def test_dropout_leaves_out_its_share_in_training_alone_as_seed_client_and_pass_decide(with_shard, architecture):
    """All hidden outputs are 1 here, so that the slope of an output's weights is a multiple of what is left of them."""
    assignment = with_shard(architecture, 1, training={"alpha": 1e-9})
    learner = Learner(assignment)
    blocks = dict(
        zip((each.name for each in architecture.parameters()), views(architecture, learner.theta), strict=True)
    )
    learner.theta[:] = 0
    if architecture.kind == "gru":
        blocks["gru.bias_ih"][2000:] = torch.tensor([-50.0, 50.0]).repeat_interleave(2000)  # the gates z and n
    else:
        blocks["hidden0.bias"][:] = 1

    def left() -> np.ndarray:
        *_, weight, bias = views(architecture, learner.gradient()[1])
        return (weight / bias[:, None]).numpy()[0]

    state, first, second = learner.state(), left(), left()
    assert 0.25 < (first == 0).mean() < 0.35
    np.testing.assert_allclose(first[first != 0], 1 / 0.7, rtol=1e-6)
    assert not np.array_equal(first, second)
    assert learner.evaluate() == learner.evaluate()
    learner = Learner(assignment)
    learner.load(state | {"model_passes": np.array([1])})
    np.testing.assert_array_equal(left(), second)
    for changes in ({"node": 4}, {"run": replace(assignment.run, seed=12)}):
        other = Dropout(0.3, (changes.get("run", assignment.run).seed, changes.get("node", 3)))
        other.begin_pass()
        assert not np.array_equal(other.factors((2000,), np.dtype("f8")) == 0, first == 0)


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("outputs", [1, 10])
@pytest.mark.parametrize("hidden", [(), (12,)])
def test_the_bits_of_a_dense_model_do_not_depend_on_where_in_memory_it_lies(task, outputs, hidden):
    random = np.random.default_rng(0)
    n, features = 33, 64
    kind = "mlp" if hidden else "linear" if task == "regression" else "logistic"
    architecture = Architecture(kind, (features,), outputs, hidden=hidden)
    d = architecture.size
    theta, x = random.standard_normal(d, "f4"), random.standard_normal((n, features), "f4")
    y = random.integers(outputs, size=n) if task == "classification" else random.standard_normal((n, outputs), "f4")
    seen = set()
    for shift in range(16):
        moved = []
        for array in (theta, np.zeros_like(theta), x, y):
            moved.append(np.empty(array.size + 16, array.dtype)[shift : shift + array.size].reshape(array.shape))
            moved[-1][:] = array
        model = DenseModel(Given(architecture, task, *moved[:2]))
        seen.add((model.add_gradient(*moved[2:], n), moved[1].tobytes(), model.evaluate(*moved[2:])))
    assert len(seen) == 1


@pytest.mark.parametrize("factor", [-0.1, 0.3, 1e-4])
def test_a_linear_model_adds_vectors_to_the_bit_as_torch_does(factor):
    random = np.random.default_rng(0)
    vector, other = (random.standard_normal(1000).astype(np.float32) for _ in range(2))
    expected = torch.from_numpy(vector.copy()).add_(torch.from_numpy(other), alpha=factor).numpy()
    DenseModel.add(vector, other, factor)
    np.testing.assert_array_equal(vector, expected)


@pytest.mark.parametrize(("same_start", "key"), [(True, ()), (False, (3,))])
def test_theta_starts_where_the_architecture_says(with_shard, same_start, key):
    learner = Learner(with_shard(LOGISTIC, 4, model={"same_start": same_start}))
    np.testing.assert_array_equal(learner.theta, LOGISTIC.start(11, *key))


@pytest.mark.parametrize(("same_start", "key"), [(True, ()), (False, (3,))])
def test_further_starts_are_drawn_each_by_its_number_also_where_theta_starts_as_zeros(with_shard, same_start, key):
    learner = Learner(with_shard(LOGISTIC, 4, model={"same_start": same_start, "init": "zeros"}))
    assert not learner.start().any()
    for number in (1, 2):
        np.testing.assert_array_equal(learner.start(number), LOGISTIC.start(11, *key, number))


@pytest.mark.parametrize("work", ["full", "steps"])
def test_local_work_leaves_held_out_samples_to_the_losses_of_other_models(with_shard, work):
    assignment = with_shard(LOGISTIC, 10, training={"work": work} | ({"batch_size": 3} if work == "steps" else {}))
    learner, (x, y) = Learner(assignment), numbers(assignment, "train")
    learner.hold_out(0.3)
    held, other = learner.held_out(), LOGISTIC.start(11, 1)
    places = [np.flatnonzero((x == row).all(axis=1)).item() for row in held[0]]
    seen = {tuple(row) for _ in range(5) for batch, _ in learner.batches() for row in batch.tolist()}
    assert len(places) == 3
    assert seen == {tuple(row) for row in x[np.setdiff1d(range(10), places)].astype(learner.theta.dtype).tolist()}
    summed, _, _, _ = oracle(LOGISTIC, "classification", other, x[places], y[places])
    own, learnt = learner.theta.copy(), learner.learnt_samples
    assert learner.loss_of(other, held) == pytest.approx(summed / 3)
    np.testing.assert_array_equal(learner.theta, own)
    assert (learner.learnt_samples, learner.evaluated_samples) == (learnt, 3)
    alone = Learner(with_shard(LOGISTIC, 1))
    alone.hold_out(0.9)
    assert [len(batch[0]) for batch in (alone.held_out(), *alone.batches())] == [1, 1]


# -- local work --------------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    samples=st.integers(1, 30),
    size=st.integers(1, 40),
    work=st.sampled_from(["full", "epochs", "steps"]),
    times=st.integers(1, 12),
    rounds=st.integers(1, 4),
    seed=st.integers(0, 3),
)
def test_batches_are_those_that_seed_and_client_decide_pass_after_pass_and_round_after_round(
    with_shard, samples, size, work, times, rounds, seed
):
    """ceil(n / b) a pass, in which every sample comes once. Each sample has its own number as its first feature."""
    training = {"work": work} | ({} if work == "full" else {work: times, "batch_size": size})
    assignment = with_shard(LOGISTIC, samples, training=training, run={"seed": seed})
    arrays = load_file(assignment.shard)
    arrays["x_train"][:, 0] = np.arange(samples)
    save_file(arrays, assignment.shard)
    np.random.seed(rounds)  # no other generator has a part in it
    learner = Learner(assignment)
    batches = [x[:, 0].astype(int).tolist() for _ in range(rounds) for x, _ in learner.batches()]
    if work == "full":
        assert batches == [list(range(samples))] * rounds
        return
    assert len(batches) == rounds * times * (-(-samples // min(size, samples)) if work == "epochs" else 1)
    assert batches == [batch_rows(seed, 3, samples, size, number).tolist() for number in range(len(batches))]


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("lam", [0.0, 0.7])
def test_learning_is_the_recursion_of_sgd_with_momentum_and_a_pull_in_every_step(with_shard, momentum, lam):
    """v <- momentum v + g + lam pull; theta <- theta - alpha v; v lives on from round to round."""
    work = {"work": "steps", "steps": 3, "batch_size": 8, "momentum": momentum, "alpha": 0.05, "l2": 0.01}
    assignment = with_shard(LOGISTIC, 20, training=work)
    x, y = numbers(assignment, "train")
    learner = Learner(assignment)
    mine = learner.theta
    theta, velocity = mine.copy(), np.zeros(LOGISTIC.size)
    pull = np.random.default_rng(2).normal(size=theta.size)
    for round in range(3):
        losses = []
        for number in range(3 * round, 3 * round + 3):
            rows = batch_rows(11, 3, 20, 8, number)
            summed, _, _, slopes = oracle(LOGISTIC, "classification", theta, x[rows], y[rows])
            losses.append(summed / len(rows) + 0.005 * (theta @ theta))
            velocity = momentum * velocity + slopes / len(rows) + 0.01 * theta + lam * pull
            theta = theta - 0.05 * velocity
        assert learner.learn(*((pull, lam) if lam else ())) == pytest.approx(np.mean(losses), rel=1e-11)
        assert learner.theta is mine
        np.testing.assert_allclose(mine, theta, rtol=1e-11, atol=1e-12)
    state = learner.state()
    assert set(state) == {"theta", "batches_drawn"} | ({"velocity"} if momentum else set())
    assert state["batches_drawn"].tolist() == [9]
    if momentum:
        np.testing.assert_allclose(state["velocity"], velocity, rtol=1e-11, atol=1e-12)
    assert learner.buffer_bytes() == (2 if momentum else 1) * 8 * LOGISTIC.size  # the gradient, the velocity


@every_dtype
def test_one_step_with_a_pull_is_the_step_and_then_the_pull_to_the_bit_and_writes_to_no_shard(with_shard, dtype):
    assignment = with_shard(LOGISTIC, 10, training={"alpha": 0.3}, model={"dtype": dtype})
    together, apart, shard = Learner(assignment), Learner(assignment), assignment.shard.read_bytes()
    pull = np.random.default_rng(2).normal(size=together.theta.size).astype(dtype)
    together.learn(pull, 0.7)
    apart.learn()
    apart.theta -= 0.3 * 0.7 * pull
    np.testing.assert_array_equal(together.theta, apart.theta)
    assert assignment.shard.read_bytes() == shard


def test_from_the_round_of_its_change_on_a_client_learns_and_is_tested_on_the_other_task(with_shard):
    """Whose samples are those of the first, negated."""
    still = with_shard(LOGISTIC, 40)
    before, arrays = Learner(still), load_file(still.shard)
    negated = {name: -arrays[name] for name in ("x_train", "x_test")}
    save_file(arrays | negated, still.shard)
    after = Learner(still)
    save_file(arrays | {f"{name}_drifted": array for name, array in negated.items()}, still.shard)
    learner = Learner(replace(still, run=replace(still.run, drift_round=4)))
    for round in range(1, 8):
        learner.enter(round)
        expected = before if round < 4 else after
        assert learner.gradient()[0] == expected.gradient()[0]
        assert learner.evaluate() == expected.evaluate()
