"""A client's model on its own shard: gradients, local work, evaluation."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...topology.randomness import generator
from .. import own_code
from ..assignment import Assignment
from ..settings import OptimizerSettings
from .architecture import Given
from .dense import DenseModel
from .moments import ClassMoments, Sketch, moments_of
from .optimizer import Adam
from .poison import ON_DATA, poisoned, with_trigger
from .pull import Anchors, OfSamples

if TYPE_CHECKING:
    from .networks import TorchModel
    from .own_optimizer import OwnOptimizer

Samples = Any  # x or y of some samples, as the client's model takes them
Batch = tuple[Samples, Samples]

_MOST_AT_ONCE = 512  # samples in one pass of a full gradient or an evaluation ...
_WIDEST_PASS = 1 << 21  # ... and numbers in its widest layer: both bound memory, not the result
_WIDEST_EVALUATION = 3 << 18  # the same, where no gradient is taken: 5 MB less of a client with a CNN, no slower


class Learner:
    """theta and its gradient are one contiguous buffer each; parameters are views of them. The local loss is the mean
    over samples of the architecture's loss plus l2/2 ||theta||^2."""

    _model: "DenseModel | TorchModel"
    noised = False  # whether gradients are those of [privacy]

    def __init__(self, assignment: Assignment):
        self._assignment, self._training = assignment, assignment.training
        architecture, run, dtype = assignment.architecture, assignment.run, assignment.dtype
        self._chunk, self._looks_at = (
            max(1, min(_MOST_AT_ONCE, most // architecture.widest())) for most in (_WIDEST_PASS, _WIDEST_EVALUATION)
        )
        self._own_draw = () if assignment.model.same_start else (assignment.node,)
        module = None
        if architecture.own:
            from .own import build

            module = build(architecture, run, dtype, *self._own_draw)
        self.theta, self._gradient = (_aligned(architecture.size, dtype) for _ in range(2))
        if module is None:
            self.theta[:] = self.start()
        self._velocity = _aligned(self.theta.size, dtype) if self._training.momentum else None
        self._alpha = self._training.alpha
        given = Given(architecture, run.task, self.theta, self._gradient, key=(run.seed, assignment.node))
        if module is not None:
            from .own import ModuleModel

            self._model = ModuleModel(given, module)
        elif architecture.is_dense and not self._training.loss.use:
            self._model = DenseModel(given)
        else:
            from .networks import TorchModel  # loads torch, which takes longer than many a run of small models

            self._model = TorchModel(given)
        self.in_torch = not isinstance(self._model, DenseModel)
        if own_loss := self._training.loss.use:
            loss = own_code.load_copy(own_loss, "training.loss.use", run.folder, run.code)
            cast("TorchModel", self._model).learn_with(loss, self._training.loss.options)
        self._optimizer = self._made_optimizer()
        shard: list[Samples] = [np.empty(0)] * 4  # what a server learns from
        if assignment.role == "client":
            shard = self._model.read(assignment.shard, ("x_train", "y_train", "x_test", "y_test"))
        self._x_train, self._y_train, self._x_test, self._y_test = shard
        self.train_samples, self.test_samples = len(self._x_train), len(self._x_test)
        self._kept: np.ndarray | None = None  # places of the samples that local work has left, where some are held out
        self._held = np.arange(self.train_samples)
        self._batches_drawn = 0
        self._pass = -1, np.empty(0, int)  # which pass over the shard goes on, and its order
        self._drifted = self._poisoned = False
        self._honest_y = self._y_train  # where it attacks by its data, that is no longer what it learns from
        self.train_loss: float | None = None  # as ``Client.train_loss``, for the records
        self.learnt_samples = self.evaluated_samples = 0  # that went through a gradient, and through an evaluation

    def start(self, number: int = 0) -> np.ndarray:
        """(d,), as ``Client.start`` says."""
        assignment = self._assignment
        architecture, run, dtype = assignment.architecture, assignment.run, assignment.dtype
        key = (*self._own_draw, number) if number else self._own_draw
        if architecture.own:
            from .own import build, flat

            return flat(build(architecture, run, dtype, *key))
        like = run.first_outputs if assignment.model.same_start else 0
        init = "uniform" if number else assignment.model.init
        return architecture.start(run.seed, *key, init=init, like=like).astype(dtype)

    def _made_optimizer(self) -> "Adam | OwnOptimizer | None":
        training, theta, run = self._training, self.theta, self._assignment.run
        if isinstance(own := training.optimizer, OptimizerSettings):
            from .own_optimizer import KEY, OwnOptimizer, parameters_of

            kind = own_code.load_copy(own.use, KEY, run.folder, run.code)
            parameters = parameters_of(self._assignment.architecture, theta, self._gradient)
            return OwnOptimizer(kind, own.options, training.alpha, parameters, (run.seed, self._assignment.node))
        if training.optimizer == "sgd":
            return None
        kept = [_aligned(theta.size, theta.dtype) for _ in range(2)]
        return Adam(
            theta, self._model.add, kept, training.betas, training.weight_decay * (training.optimizer == "adamw")
        )

    def enter(self, round: int) -> None:
        self.train_loss = None
        self._alpha = self._training.alpha_in(round, self._assignment.run.rounds)
        if not self._drifted and 0 < self._assignment.run.drift_round <= round:
            drifted = "x_train_drifted", "x_test_drifted"
            self._x_train, self._x_test = self._model.read(self._assignment.shard, drifted)
            self._drifted, self._poisoned = True, False
        attack = self._assignment.attack
        if self._assignment.attacks and attack.kind in ON_DATA and round >= attack.from_round and not self._poisoned:
            self._x_train, self._y_train = poisoned(self._assignment, self._x_train, self._honest_y)
            self._poisoned = True

    def learn(self, pull: np.ndarray | None = None, lam: float = 1.0) -> float:
        """Does a round's local work, as ``Client.learn`` says; returns the mean of the losses met on the way."""
        losses, alpha, training = [], self._alpha, self._training
        for batch in self.batches():
            loss, direction = self.gradient(batch)
            losses.append(loss)
            if training.clip and (norm := math.sqrt(direction @ direction)) > training.clip:
                direction *= training.clip / norm
            if self._optimizer is not None:
                if pull is not None:
                    direction += lam * pull
                self._optimizer.step(direction, alpha)
                continue
            if self._velocity is not None:
                self._velocity *= training.momentum
                self._velocity += direction
                direction = self._velocity
                if pull is not None:
                    direction += lam * pull
            self._model.add(self.theta, direction, -alpha)
            if pull is not None and self._velocity is None:
                self.theta -= alpha * lam * pull
        return sum(losses) / len(losses)

    def gradient(self, batch: Batch | None = None, pull: Anchors | OfSamples | None = None) -> tuple[float, np.ndarray]:
        """The loss at theta and its gradient, as ``Client.gradient_on`` says. The next call overwrites it."""
        x, y = batch or self._local()
        self._gradient.fill(0)
        self.learnt_samples += len(x)
        total = 0.0
        needs_two = (own := self._assignment.architecture.own) is not None and not own.learns_from_one
        for part in _slices(len(x), self._chunk + (needs_two and len(x) % self._chunk == 1)):
            of_part = (lambda features, rows=part: pull(features, rows)) if callable(pull) else pull
            total += self._model.add_gradient(x[part], y[part], len(x), of_part)
        if self._training.l2:
            total += self._training.l2 / 2 * float(self.theta @ self.theta)
            self._model.add(self._gradient, self.theta, self._training.l2)
        return total, self._gradient

    def loss_of(self, theta: np.ndarray, batch: Batch | None = None) -> float:
        """As ``Client.loss_of`` says."""
        x, y = batch or self._local()
        self.evaluated_samples += len(x)
        with self._as(theta):
            return sum(self._model.evaluate(x[part], y[part])[0] for part in _slices(len(x), self._chunk)) / len(x)

    def features_of(self, theta: np.ndarray, batch: Batch | None = None) -> np.ndarray:
        """As ``Client.features_of`` says."""
        if batch is None:
            by_class = np.argsort(np.asarray(self._y_train), kind="stable")
            return self.features_of(theta, (self._x_train, self._y_train))[by_class]
        x, _ = batch
        self.evaluated_samples += len(x)
        with self._as(theta):
            return np.concatenate([self._model.features(x[part]) for part in _slices(len(x), self._chunk)])

    def hold_out(self, share: float) -> None:
        """As ``Client.hold_out`` says."""
        run, n = self._assignment.run, self.train_samples
        order = generator(run.seed, "held-out samples", self._assignment.node).permutation(n)
        count = min(max(1, int(share * n + 0.5)), n - 1)  # 0 of a single sample, which then is both
        self._held, self._kept = order[: max(1, count)], order[count:]

    def held_out(self) -> Batch:
        return self._model.rows(self._x_train, self._held), self._model.rows(self._y_train, self._held)

    def _local(self) -> Batch:
        """All samples of local work."""
        if self._kept is None:
            return self._x_train, self._y_train
        return self._model.rows(self._x_train, self._kept), self._model.rows(self._y_train, self._kept)

    def evaluate(self, theta: np.ndarray | None = None, *, training: bool = False) -> tuple[float, float]:
        """(mean loss without the l2 term, accuracy or MSE) on the test samples, or on those for training, by default
        of the own theta."""
        x, y = (self._x_train, self._y_train) if training else (self._x_test, self._y_test)
        self.evaluated_samples += len(x)
        loss = score = 0.0
        with self._as(theta):
            for part in _slices(len(x), self._looks_at):
                losses, scores = self._model.evaluate(x[part], y[part])
                loss, score = loss + losses, score + scores
        # MSE is a mean over samples and targets
        targets = 1 if self._assignment.run.task == "classification" else self._assignment.architecture.outputs
        return loss / len(x), score / (len(x) * targets)

    def tested(
        self, theta: np.ndarray, *, training: bool = False, triggered: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns a model's outputs for all test samples, or those for training, and their targets. ``triggered``: the
        samples show the trigger of [attack]."""
        x, y = (self._x_train, self._y_train) if training else (self._x_test, self._y_test)
        if triggered:
            x = with_trigger(x, self._assignment.attack, self._assignment.architecture.input_shape)
        with self._as(theta):
            parts = [self._model.outputs(x[part]) for part in _slices(len(x), self._looks_at)]
        self.evaluated_samples += len(x)
        return np.concatenate(parts), np.asarray(y)

    def samples(self) -> tuple[np.ndarray, np.ndarray]:
        """x (samples, *input_shape) and y to train on."""
        shape = self._assignment.architecture.input_shape
        return np.asarray(self._x_train).reshape(-1, *shape), np.asarray(self._y_train)

    def class_moments(self, theta: np.ndarray | None, sketch: Sketch) -> ClassMoments:
        """As ``Client.class_moments`` says."""
        model, x, y = self._assignment.architecture, self._x_train, np.asarray(self._y_train)
        slices = _slices(self.train_samples, self._chunk)
        if theta is None:
            h = math.prod(model.input_shape)
            return moments_of((np.asarray(x[part]).reshape(-1, h) for part in slices), y, model.outputs, h, sketch)
        self.evaluated_samples += self.train_samples
        with self._as(theta):
            features = (self._model.features(x[part]) for part in slices)
            return moments_of(features, y, model.outputs, model.features, sketch)

    @contextmanager
    def _as(self, theta: np.ndarray | None) -> Iterator[None]:
        """With this one as its theta; None: its own."""
        if theta is None or theta is self.theta:
            yield
            return
        own = self.theta.copy()
        self.theta[:] = theta
        try:
            yield
        finally:
            self.theta[:] = own

    def batches(self, times: int = 1) -> Iterator[Batch]:
        """The mini-batches of one round, or ``times`` as many, from shuffled passes over the shard that follow each
        other across rounds."""
        if self._training.work == "full":
            yield from [self._local()] * times
            return
        kept = np.arange(self.train_samples) if self._kept is None else self._kept
        size = min(self._training.batch_size, len(kept))
        a_pass = -(-len(kept) // size)
        start = self._batches_drawn
        self._batches_drawn += times * self._training.count(self.train_samples)
        for batch in range(start, self._batches_drawn):
            passes, place = divmod(batch, a_pass)
            if self._pass[0] != passes:
                rng = generator(self._assignment.run.seed, "mini-batches", self._assignment.node, passes)
                self._pass = passes, rng.permutation(kept)
            chosen = self._pass[1][place * size : (place + 1) * size]
            yield self._model.rows(self._x_train, chosen), self._model.rows(self._y_train, chosen)

    def state(self) -> dict[str, np.ndarray]:
        state = {"theta": self.theta, "batches_drawn": np.array([self._batches_drawn])} | self._model.state()
        state |= {} if self._optimizer is None else self._optimizer.state()
        return state if self._velocity is None else state | {"velocity": self._velocity}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self.theta[:] = state["theta"]
        self._batches_drawn = int(state["batches_drawn"][0])
        if self._velocity is not None:
            self._velocity[:] = state["velocity"]
        if self._optimizer is not None:
            self._optimizer.load(state)
        self._model.load(state)

    def buffer_bytes(self) -> int:
        kept = 0 if self._optimizer is None else sum(array.nbytes for array in self._optimizer.state().values())
        return self.theta.nbytes * (1 + (self._velocity is not None)) + kept


@contextmanager
def trying(learner: Learner) -> Iterator[None]:
    """Forgets what gradients change beside theta: draws of dropout, running means of batch normalization. Gradients are
    exact in it, also under [privacy]: what is tried is not sent."""
    before = {name: array.copy() for name, array in learner._model.state().items()}
    noised, learner.noised = learner.noised, False
    try:
        yield
    finally:
        learner.noised = noised
        learner._model.load(before)


def time_of_a_step(learner: Learner, steps: int) -> float:
    """Seconds on this machine: the median over some rounds of local work, of ``steps`` each, after a warm-up."""
    rounds = list[float]()
    learner.learn()
    while len(rounds) < 3 or sum(rounds) < 0.3:
        start = time.perf_counter()
        learner.learn()
        rounds.append(time.perf_counter() - start)
    return float(np.median(rounds)) / steps


def _slices(samples: int, most: int) -> Iterator[slice]:
    return (slice(start, start + most) for start in range(0, samples, most))


def _aligned(size: int, dtype: np.dtype) -> np.ndarray:
    """Zeros that start at a multiple of 64 bytes: the same kernels, hence the same bits, in every process."""
    memory = np.zeros(size * dtype.itemsize + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size * dtype.itemsize].view(dtype)
