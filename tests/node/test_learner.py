"""Gradients, mini-batches and evaluation, against closed forms in numpy and torch's own modules."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from torch import nn

from sheafgossip.node.model.architecture import Architecture
from sheafgossip.node.model.learner import Learner
from sheafgossip.node.model.linear import LinearModel
from sheafgossip.node.model.networks import forward, loss

LOGISTIC = Architecture("logistic", (4,), 3)
LINEAR = Architecture("linear", (4,), 2)
CNN = Architecture("cnn", (1, 12, 12), 3, filters=(3, 5), hidden=(6,))


def numbers(assignment, part: str) -> tuple[np.ndarray, np.ndarray]:
    """x in double precision, and y, of the training or test samples."""
    shard = load_file(assignment.shard)
    return shard[f"x_{part}"].astype(np.float64), shard[f"y_{part}"]


def scores(theta: np.ndarray, x: np.ndarray, outputs: int) -> np.ndarray:
    """W x + b, theta being W row by row, then b."""
    weight, bias = theta[:-outputs].reshape(outputs, -1), theta[-outputs:]
    return x @ weight.T + bias


def logistic(theta, x, y, l2=0.0) -> tuple[float, np.ndarray]:
    """Mean cross-entropy + l2/2 ||theta||^2 and its gradient, in closed form."""
    z = scores(theta, x, 3)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    delta = (p - np.eye(3)[y]) / len(x)
    loss = -np.log(p[np.arange(len(x)), y]).mean() + l2 / 2 * (theta**2).sum()
    return loss, np.concatenate([(delta.T @ x).ravel(), delta.sum(axis=0)]) + l2 * theta


def squares(theta, x, y, l2=0.0) -> tuple[float, np.ndarray]:
    """Mean over samples of ||W x + b - y||^2, + l2/2 ||theta||^2, and its gradient, in closed form."""
    residual = scores(theta, x, 2) - y
    loss = (residual**2).sum() / len(x) + l2 / 2 * (theta**2).sum()
    delta = 2 * residual / len(x)
    return loss, np.concatenate([(delta.T @ x).ravel(), delta.sum(axis=0)]) + l2 * theta


CLOSED_FORMS = pytest.mark.parametrize(
    ("architecture", "closed_form"), [(LOGISTIC, logistic), (LINEAR, squares)], ids=["logistic", "linear"]
)


# -- gradients ---------------------------------------------------------------------------------------------------------


@CLOSED_FORMS
@pytest.mark.parametrize(("samples", "l2"), [(40, 0.0), (40, 0.3), (511, 0.1), (512, 0.1), (513, 0.1), (1500, 0.1)])
def test_the_gradient_and_loss_are_the_closed_form_also_where_they_are_computed_in_parts(
    with_shard, architecture, closed_form, samples, l2
):
    assignment = with_shard(architecture, samples, training={"l2": l2})
    learner = Learner(assignment)
    loss, gradient = learner.gradient()
    expected_loss, expected = closed_form(learner.theta, *numbers(assignment, "train"), l2)
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    np.testing.assert_allclose(gradient, expected, rtol=1e-12, atol=1e-12)


LENET = Architecture("cnn", (3, 32, 32), 10, filters=(32, 32, 64), kernel=5, padding=True, norm_groups=2)
"""decentralizepy's GN-LeNet."""


def layer_of_lenet(channels: int, filters: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, filters, 5, padding=2), nn.GroupNorm(2, filters), nn.ReLU(), nn.MaxPool2d(2)]


class LastState(nn.GRU):
    def forward(self, x):
        return super().forward(x)[0][:, -1]


@pytest.mark.parametrize(
    ("architecture", "samples", "layers", "tolerance"),
    [
        (
            CNN,
            600,
            [
                *(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 5, 3), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Flatten(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)),
            ],
            1e-12,
        ),
        (
            LENET,
            12,
            [
                *(*layer_of_lenet(3, 32), *layer_of_lenet(32, 32), *layer_of_lenet(32, 64)),
                *(nn.Flatten(), nn.Linear(1024, 10)),
            ],
            1e-10,
        ),
        (
            Architecture("gru", (6, 2), 3, hidden=(5,)),
            600,
            [LastState(2, 5, batch_first=True), nn.Linear(5, 3)],
            1e-12,
        ),
    ],
    ids=["cnn", "lenet with group norm", "gru"],
)
def test_the_gradient_is_that_of_torchs_own_modules(with_shard, architecture, samples, layers, tolerance):
    assignment = with_shard(architecture, samples)
    learner = Learner(assignment)
    model = nn.Sequential(*layers).double()
    nn.utils.vector_to_parameters(torch.from_numpy(learner.theta.copy()), model.parameters())
    x, y = map(torch.from_numpy, numbers(assignment, "train"))
    expected = nn.functional.cross_entropy(model(x), y)
    expected.backward()
    loss, gradient = learner.gradient()
    assert loss == pytest.approx(expected.item(), rel=tolerance)
    slopes = torch.cat([p.grad.flatten() for p in model.parameters()])
    np.testing.assert_allclose(gradient, slopes, rtol=100 * tolerance, atol=tolerance)


def test_a_group_norm_starts_as_torchs_does():
    assert LENET.size == 89_834
    starts = {block.name: block.start for block in LENET.parameters()}
    for number in range(3):
        assert (starts[f"norm{number}.weight"], starts[f"norm{number}.bias"]) == (1.0, 0.0)
    assert (nn.GroupNorm(2, 32).weight == 1).all()


@pytest.mark.parametrize(("architecture", "task"), [(LOGISTIC, "classification"), (LINEAR, "regression")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("samples", [1, 8, 400])
def test_the_gradient_of_one_linear_layer_is_that_of_backward(architecture, task, dtype, samples):
    random = torch.Generator().manual_seed(samples)
    theta, x = (torch.randn(*shape, generator=random, dtype=dtype) for shape in ((15,), (samples, 4)))
    y = torch.randint(3, (samples,), generator=random) if task == "classification" else x[:, :3].clone()
    parameters = [theta[:12].view(3, 4).requires_grad_(), theta[12:].requires_grad_()]
    mean = loss(task, forward(architecture, parameters, x), y) / samples
    mean.backward()
    gradient = np.ones(15, theta.numpy().dtype)
    model = LinearModel(Architecture(architecture.kind, (4,), 3), task, theta.numpy(), gradient)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    value = model.add_gradient(x.numpy(), y.numpy(), samples)
    assert value == pytest.approx(float(mean.detach()), rel=tolerance)
    expected = 1 + torch.cat([parameter.grad.flatten() for parameter in parameters]).numpy()
    np.testing.assert_allclose(gradient, expected, rtol=tolerance, atol=tolerance)
    figures = model.evaluate(x.numpy(), y.numpy())
    predictions = forward(architecture, parameters, x).detach()
    expected_score = float(
        (predictions.argmax(1) == y).sum() if task == "classification" else loss(task, predictions, y)
    )
    assert figures == (
        pytest.approx(samples * float(mean.detach()), rel=tolerance),
        pytest.approx(expected_score, rel=tolerance),
    )


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

        def moved(array, shift=shift):
            space = np.empty(array.size + 16, array.dtype)[shift : shift + array.size].reshape(array.shape)
            space[:] = array
            return space

        gradient = moved(np.zeros(d, "f4"))
        model = LinearModel(architecture, task, moved(theta), gradient)
        value = model.add_gradient(moved(x), moved(y), n)
        seen.add((value, gradient.tobytes(), model.evaluate(moved(x), moved(y))))
    assert len(seen) == 1


@pytest.mark.parametrize("factor", [-0.1, 0.3, 1e-4])
def test_a_linear_model_adds_vectors_to_the_bit_as_torch_does(factor):
    random = np.random.default_rng(0)
    vector, other = (random.standard_normal(1000).astype(np.float32) for _ in range(2))
    expected = torch.from_numpy(vector.copy()).add_(torch.from_numpy(other), alpha=factor).numpy()
    LinearModel.add(vector, other, factor)
    np.testing.assert_array_equal(vector, expected)


def test_what_pulls_features_moves_no_parameter_of_a_linear_model(with_shard):
    assignment = with_shard(LOGISTIC, 40)
    learner = Learner(assignment)
    loss_alone, gradient = learner.gradient()
    gradient = gradient.copy()
    x, y = numbers(assignment, "train")
    anchors = np.arange(12.0).reshape(3, 4)
    pulled, same = learner.gradient(None, None, (anchors, 0.5))
    np.testing.assert_array_equal(same, gradient)
    distances = ((x.reshape(len(x), -1) - anchors[y]) ** 2).sum(1)
    assert pulled == pytest.approx(loss_alone + 0.5 * distances.mean(), rel=1e-12)


def test_theta_changed_in_place_is_the_theta_that_learns_next(with_shard):
    assignment = with_shard(LOGISTIC, 40)
    learner = Learner(assignment)
    learner.theta += np.linspace(-1, 1, LOGISTIC.size)
    theta = learner.theta
    expected = logistic(theta.copy(), *numbers(assignment, "train"))[1]
    np.testing.assert_allclose(learner.gradient()[1], expected, rtol=1e-12, atol=1e-12)
    before = theta.copy()
    learner.learn()
    assert learner.theta is theta
    np.testing.assert_allclose(theta, before - 0.1 * expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_everything_is_computed_in_the_runs_precision(with_shard, dtype):
    learner = Learner(with_shard(LOGISTIC, 40, model={"dtype": dtype}))
    assert learner.theta.dtype == learner.gradient()[1].dtype == np.dtype(dtype)


@pytest.mark.parametrize(("same_start", "key"), [(True, ()), (False, (3,))])
def test_theta_starts_where_the_architecture_says(with_shard, same_start, key):
    learner = Learner(with_shard(LOGISTIC, 4, model={"same_start": same_start}))
    np.testing.assert_array_equal(learner.theta, LOGISTIC.start(11, *key))


# -- local work --------------------------------------------------------------------------------------------------------


class Watched(Learner):
    """Notes which samples each gradient is taken on; sample k has k as its first feature."""

    def __init__(self, assignment):
        super().__init__(assignment)
        self._x_train[:, 0] = np.arange(len(self._x_train))
        self.seen: list[list[int]] = []

    def gradient(self, x=None, y=None):
        self.seen.append([int(k) for k in x[:, 0]])
        assert (y == self._y_train[self.seen[-1]]).all()
        return super().gradient(x, y)


def passes(batches: list[list[int]], samples: int) -> list[list[int]]:
    """The samples in the order of their use, cut into passes over the shard."""
    order = [sample for batch in batches for sample in batch]
    return [order[start : start + samples] for start in range(0, len(order), samples)]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(samples=st.integers(1, 30), size=st.integers(1, 40), epochs=st.integers(1, 3))
def test_an_epoch_covers_every_sample_once_in_ceil_n_over_b_batches(with_shard, samples, size, epochs):
    work = {"work": "epochs", "epochs": epochs, "batch_size": size}
    learner = Watched(with_shard(LOGISTIC, samples, training=work))
    learner.learn()
    assert len(learner.seen) == epochs * -(-samples // size)
    assert all(len(batch) <= size for batch in learner.seen)
    for one in passes(learner.seen, samples):
        assert sorted(one) == list(range(samples))


def test_steps_go_on_across_rounds_pass_after_pass(with_shard):
    work = {"work": "steps", "steps": 3, "batch_size": 4}
    learner = Watched(with_shard(LOGISTIC, 10, training=work))
    for _ in range(4):
        learner.learn()
    assert [len(batch) for batch in learner.seen] == [4, 4, 2] * 4  # 12 steps, 4 passes of 3 batches
    assert all(sorted(one) == list(range(10)) for one in passes(learner.seen, 10))
    assert len({tuple(one) for one in passes(learner.seen, 10)}) == 4  # shuffled anew


@pytest.mark.parametrize("steps", [1, 2, 4, 12])
def test_the_batches_are_the_same_however_they_are_divided_into_rounds(with_shard, steps):
    def drawn(steps: int) -> list[list[int]]:
        learner = Watched(with_shard(LOGISTIC, 10, training={"work": "steps", "steps": steps, "batch_size": 4}))
        for _ in range(12 // steps):
            learner.learn()
        return learner.seen

    assert drawn(steps) == drawn(3)


def test_the_seed_and_the_client_alone_decide_the_batches(with_shard):
    work = {"work": "epochs", "batch_size": 4}

    def drawn(seed: int = 11, node: int = 3) -> list[list[int]]:
        given = with_shard(LOGISTIC, 20, training=work, run={"seed": seed})
        own = replace(given, node=node)
        own.shard.write_bytes(given.shard.read_bytes())
        learner = Watched(own)
        learner.learn()
        return learner.seen

    expected = drawn()
    np.random.seed(0)
    torch.manual_seed(0)
    torch.rand(3)
    assert drawn() == expected
    assert drawn(seed=12) != expected
    assert drawn(node=4) != expected


@pytest.mark.parametrize(
    ("samples", "work", "batches"), [(600, {}, 1), (3, {"work": "steps", "steps": 2, "batch_size": 100}, 2)]
)
def test_full_work_and_batches_larger_than_the_shard_take_all_samples(with_shard, samples, work, batches):
    learner = Watched(with_shard(LOGISTIC, samples, training=work))
    learner.learn()
    assert [sorted(batch) for batch in learner.seen] == [list(range(samples))] * batches


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_learning_is_the_recursion_of_sgd_with_momentum(with_shard, momentum):
    """v <- momentum v + g; theta <- theta - alpha v; v lives on from round to round."""
    work = {"work": "steps", "steps": 3, "batch_size": 8, "momentum": momentum, "alpha": 0.05, "l2": 0.01}
    assignment = with_shard(LOGISTIC, 20, training=work)
    x, y = numbers(assignment, "train")
    watched = Watched(assignment)  # for the order of the samples alone
    learner = Learner(assignment)
    theta, velocity = learner.theta.copy(), np.zeros(LOGISTIC.size)
    for _ in range(3):
        watched.seen.clear()
        watched.learn()
        losses = []
        for batch in watched.seen:
            loss, gradient = logistic(theta, x[batch], y[batch], 0.01)
            velocity = momentum * velocity + gradient
            theta = theta - 0.05 * velocity
            losses.append(loss)
        assert learner.learn() == pytest.approx(np.mean(losses), rel=1e-11)
        np.testing.assert_allclose(learner.theta, theta, rtol=1e-11, atol=1e-12)


# -- evaluation --------------------------------------------------------------------------------------------------------


def test_evaluation_of_a_classifier_is_mean_cross_entropy_and_accuracy(with_shard):
    assignment = with_shard(LOGISTIC, 5, 700, training={"l2": 0.5})
    learner = Learner(assignment)
    x, y = numbers(assignment, "test")
    loss, accuracy = learner.evaluate()
    assert loss == pytest.approx(logistic(learner.theta, x, y)[0], rel=1e-12)
    assert accuracy == np.mean(scores(learner.theta, x, 3).argmax(axis=1) == y)


def test_evaluation_of_a_regression_is_the_mean_squared_error_over_samples_and_targets(with_shard):
    assignment = with_shard(LINEAR, 5, 700, training={"l2": 0.5})
    learner = Learner(assignment)
    x, y = numbers(assignment, "test")
    squared = (scores(learner.theta, x, 2) - y) ** 2
    assert learner.evaluate() == pytest.approx((squared.sum(axis=1).mean(), squared.mean()), rel=1e-12)


def test_evaluation_leaves_theta_and_the_next_gradient_alone(with_shard):
    assignment = with_shard(LOGISTIC, 20)
    evaluated, plain = Learner(assignment), Learner(assignment)
    evaluated.evaluate()
    evaluated.learn()
    plain.learn()
    np.testing.assert_array_equal(evaluated.theta, plain.theta)


# -- state -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_state_is_theta_the_batches_drawn_and_with_momentum_the_velocity(with_shard, momentum):
    work = {"work": "steps", "steps": 2, "batch_size": 4, "momentum": momentum}
    learner = Learner(with_shard(LOGISTIC, 10, training=work))
    learner.learn()
    learner.learn()
    state = learner.state()
    assert set(state) == {"theta", "batches_drawn"} | ({"velocity"} if momentum else set())
    np.testing.assert_array_equal(state["theta"], learner.theta)
    assert state["batches_drawn"].tolist() == [4]
    assert learner.buffer_bytes() == (2 if momentum else 1) * 8 * LOGISTIC.size  # the gradient, the velocity


def test_the_velocity_is_what_theta_has_moved_by(with_shard):
    learner = Learner(with_shard(LOGISTIC, 10, training={"momentum": 0.9}))
    start = learner.theta.copy()
    learner.learn()
    np.testing.assert_allclose(learner.state()["velocity"], (start - learner.theta) / 0.1, rtol=1e-12)


def test_samples_are_counted_where_they_are_learnt_and_evaluated(with_shard):
    work = {"work": "epochs", "epochs": 2, "batch_size": 4}
    learner = Learner(with_shard(LOGISTIC, 10, test=7, training=work))
    learner.learn()
    learner.learn()
    learner.evaluate()
    assert (learner.learnt_samples, learner.evaluated_samples) == (40, 7)


def test_a_shard_is_mapped_and_never_written_to(with_shard):
    assignment = with_shard(LOGISTIC, 10, model={"dtype": "float32"})
    before = assignment.shard.read_bytes()
    learner = Learner(replace(assignment, training=replace(assignment.training, work="epochs", batch_size=4)))
    learner.learn()
    learner.evaluate()
    assert assignment.shard.read_bytes() == before


def test_from_the_round_of_its_change_on_a_client_learns_and_is_tested_on_the_other_task(with_shard):
    assignment = with_shard(LOGISTIC, 40, run={"drift_round": 4})
    arrays = load_file(assignment.shard)
    changed = {f"{name}_drifted": -arrays[name] for name in ("x_train", "x_test")}
    save_file(arrays | changed, assignment.shard)
    still = replace(assignment.run, drift_round=0)
    learner, before = Learner(assignment), Learner(replace(assignment, run=still))
    elsewhere = replace(assignment, run=replace(still, folder=assignment.run.folder / "elsewhere"))
    elsewhere.shard.parent.mkdir(parents=True)
    save_file(arrays | {name.removesuffix("_drifted"): array for name, array in changed.items()}, elsewhere.shard)
    after = Learner(elsewhere)
    for round in range(1, 8):
        learner.enter(round)
        expected = before if round < 4 else after
        assert learner.gradient()[0] == expected.gradient()[0]
        assert learner.evaluate() == expected.evaluate()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_step_with_a_pull_is_the_step_and_then_the_pull_to_the_bit(with_shard, dtype):
    assignment = with_shard(LOGISTIC, 10, training={"alpha": 0.3}, model={"dtype": dtype})
    together, apart = Learner(assignment), Learner(assignment)
    pull = np.random.default_rng(2).normal(size=together.theta.size).astype(dtype)
    together.learn(pull, 0.7)
    apart.learn()
    apart.theta -= 0.3 * 0.7 * pull
    np.testing.assert_array_equal(together.theta, apart.theta)


def test_every_local_step_has_the_pull_and_momentum_takes_it_along(with_shard):
    work = {"work": "steps", "steps": 3, "batch_size": 4, "momentum": 0.6, "alpha": 0.05}
    learner = Learner(with_shard(LOGISTIC, 10, training=work))
    steps = Learner(with_shard(LOGISTIC, 10, training=work))
    pull, velocity = np.random.default_rng(2).normal(size=learner.theta.size), np.zeros(learner.theta.size)
    for _ in range(2):
        for x, y in steps.batches():
            velocity = 0.6 * velocity + steps.gradient(x, y)[1] + 0.7 * pull
            steps.theta -= 0.05 * velocity
        learner.learn(pull, 0.7)
    np.testing.assert_allclose(learner.theta, steps.theta, rtol=1e-12)
