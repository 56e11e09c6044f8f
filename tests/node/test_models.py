"""Models: their sizes, starts, outputs and costs, by the paper's counts, and torch's own layers and counter; gradients,
mini-batches and evaluation, by closed forms in numpy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from oracles import batch_rows
from sheafgossip.node.model.architecture import Architecture, ArchitectureError
from sheafgossip.node.model.learner import Learner, LinearModel
from sheafgossip.node.model.networks import TorchModel

LENET = Architecture("cnn", (3, 32, 32), 10, filters=(32, 32, 64), kernel=5, padding=True, norm_groups=2)
"""decentralizepy's GN-LeNet."""

CNN = Architecture("cnn", (2, 8, 8), 3, filters=(4,), hidden=(7,))
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
@example(Architecture("cnn", (3, 32, 32), 10, filters=(32, 64), hidden=(120,)), "classification", 32)
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


# -- learners ----------------------------------------------------------------------------------------------------------

every_dtype = pytest.mark.parametrize("dtype", list(TOLERANCE))


def numbers(assignment, part: str) -> tuple[np.ndarray, np.ndarray]:
    """x in double precision, and y, of the training or test samples."""
    shard = load_file(assignment.shard)
    return shard[f"x_{part}"].astype(np.float64), shard[f"y_{part}"]


def scores(theta: np.ndarray, x: np.ndarray, outputs: int) -> np.ndarray:
    """W x + b, theta being W row by row, then b."""
    weight, bias = theta[:-outputs].reshape(outputs, -1), theta[-outputs:]
    return x @ weight.T + bias


def closed_form(architecture, theta, x, y, l2=0.0) -> tuple[float, np.ndarray]:
    """Mean cross-entropy, or ||W x + b - y||^2, + l2/2 ||theta||^2, and its gradient."""
    z = scores(theta, x, architecture.outputs)
    if architecture.kind == "logistic":
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        delta, losses = p - np.eye(len(p.T))[y], -np.log(p[np.arange(len(x)), y])
    else:
        delta, losses = 2 * (z - y), ((z - y) ** 2).sum(axis=1)
    gradient = np.concatenate([(delta.T @ x).ravel(), delta.sum(axis=0)]) / len(x)
    return losses.mean() + l2 / 2 * (theta**2).sum(), gradient + l2 * theta


# -- gradients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", [LOGISTIC, LINEAR], ids=["logistic", "linear"])
@pytest.mark.parametrize(("samples", "l2"), [(1, 0.0), (40, 0.3), (511, 0.1), (512, 0.1), (513, 0.1), (1500, 0.1)])
@every_dtype
def test_gradient_loss_and_evaluation_are_the_closed_form_also_where_they_are_computed_in_parts(
    with_shard, architecture, samples, l2, dtype
):
    """The metric is accuracy, or the mean squared error over samples and targets. The test loss has no l2."""
    assignment = with_shard(architecture, samples, samples, training={"l2": l2}, model={"dtype": dtype})
    learner, tolerance = Learner(assignment), TOLERANCE[dtype]
    assert learner.theta.dtype == learner.gradient()[1].dtype == np.dtype(dtype)
    learner.theta += np.linspace(-1, 1, architecture.size).astype(dtype)  # what is changed in place learns next
    theta = learner.theta.astype(np.float64)
    loss, gradient = learner.gradient()
    expected_loss, expected = closed_form(architecture, theta, *numbers(assignment, "train"), l2)
    assert loss == pytest.approx(expected_loss, rel=tolerance)
    np.testing.assert_allclose(gradient, expected, rtol=tolerance, atol=tolerance)
    x, y = numbers(assignment, "train")
    if architecture is LOGISTIC:  # what pulls features moves no parameter
        anchors, gradient = np.arange(12, dtype=dtype).reshape(3, 4), gradient.copy()
        pulled, same = learner.gradient(pull=(anchors, 0.5))
        np.testing.assert_array_equal(same, gradient)
        assert pulled == pytest.approx(loss + 0.5 * ((x - anchors[y]) ** 2).sum(1).mean(), rel=tolerance)
    x, y = numbers(assignment, "test")
    z = scores(theta, x, architecture.outputs)
    metric = np.mean(z.argmax(axis=1) == y) if architecture is LOGISTIC else ((z - y) ** 2).mean()
    assert learner.evaluate() == pytest.approx((closed_form(architecture, theta, x, y)[0], metric), rel=tolerance)
    np.testing.assert_array_equal(learner.theta, theta)


def test_the_gradient_of_a_network_is_the_same_in_parts(with_shard):
    architecture = Architecture("cnn", (1, 12, 12), 3, filters=(3, 5), hidden=(6,))
    assignment = with_shard(architecture, 600)
    learner, whole = Learner(assignment), np.zeros(architecture.size)
    x, y = map(torch.from_numpy, numbers(assignment, "train"))
    expected = TorchModel(architecture, "classification", learner.theta.copy(), whole).add_gradient(x, y, 600)
    loss, gradient = learner.gradient()
    assert loss == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient, whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("outputs", [1, 10])
def test_the_bits_of_a_linear_model_do_not_depend_on_where_in_memory_it_lies(task, outputs):
    random = np.random.default_rng(0)
    d, n, features = outputs * 64 + outputs, 33, 64
    theta, x = random.standard_normal(d, "f4"), random.standard_normal((n, features), "f4")
    y = random.integers(outputs, size=n) if task == "classification" else random.standard_normal((n, outputs), "f4")
    architecture = Architecture("linear" if task == "regression" else "logistic", (features,), outputs)
    seen = set()
    for shift in range(16):
        moved = []
        for array in (theta, np.zeros_like(theta), x, y):
            moved.append(np.empty(array.size + 16, array.dtype)[shift : shift + array.size].reshape(array.shape))
            moved[-1][:] = array
        model = LinearModel(architecture, task, *moved[:2])
        seen.add((model.add_gradient(*moved[2:], n), moved[1].tobytes(), model.evaluate(*moved[2:])))
    assert len(seen) == 1


@pytest.mark.parametrize("factor", [-0.1, 0.3, 1e-4])
def test_a_linear_model_adds_vectors_to_the_bit_as_torch_does(factor):
    random = np.random.default_rng(0)
    vector, other = (random.standard_normal(1000).astype(np.float32) for _ in range(2))
    expected = torch.from_numpy(vector.copy()).add_(torch.from_numpy(other), alpha=factor).numpy()
    LinearModel.add(vector, other, factor)
    np.testing.assert_array_equal(vector, expected)


@pytest.mark.parametrize(("same_start", "key"), [(True, ()), (False, (3,))])
def test_theta_starts_where_the_architecture_says(with_shard, same_start, key):
    learner = Learner(with_shard(LOGISTIC, 4, model={"same_start": same_start}))
    np.testing.assert_array_equal(learner.theta, LOGISTIC.start(11, *key))


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
            loss, gradient = closed_form(LOGISTIC, theta, x[rows], y[rows], 0.01)
            velocity = momentum * velocity + gradient + lam * pull
            theta = theta - 0.05 * velocity
            losses.append(loss)
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
def test_one_step_with_a_pull_is_the_step_and_then_the_pull_to_the_bit(with_shard, dtype):
    assignment = with_shard(LOGISTIC, 10, training={"alpha": 0.3}, model={"dtype": dtype})
    together, apart = Learner(assignment), Learner(assignment)
    pull = np.random.default_rng(2).normal(size=together.theta.size).astype(dtype)
    together.learn(pull, 0.7)
    apart.learn()
    apart.theta -= 0.3 * 0.7 * pull
    np.testing.assert_array_equal(together.theta, apart.theta)


def test_samples_are_counted_evaluation_leaves_learning_alone_and_a_shard_is_never_written_to(with_shard):
    work = {"work": "epochs", "epochs": 2, "batch_size": 4}
    assignment = with_shard(LOGISTIC, 10, test=7, training=work, model={"dtype": "float32"})
    before = assignment.shard.read_bytes()
    learner, plain = Learner(assignment), Learner(assignment)
    for each in (learner, plain):
        each.learn()
        if each is learner:
            each.evaluate()
        each.learn()
    np.testing.assert_array_equal(learner.theta, plain.theta)
    assert (learner.learnt_samples, learner.evaluated_samples) == (40, 7)
    assert assignment.shard.read_bytes() == before


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
