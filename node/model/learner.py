"""A client's model on its own shard: gradients, local work, evaluation."""

import statistics
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...topology.randomness import generator
from ..assignment import Assignment
from .architecture import Architecture
from .linear import LinearModel

if TYPE_CHECKING:
    from .networks import TorchModel

Samples = Any
"""x or y of some samples, as the client's model takes them."""

_MOST_AT_ONCE = 512  # samples in one pass of a full gradient or an evaluation ...
_WIDEST_PASS = 1 << 21  # ... and numbers in its widest layer: both bound memory, not the result


class Learner:
    """theta and its gradient are one contiguous buffer each; parameters are views of them.

    The local loss is the mean over samples of the architecture's loss plus l2/2 ||theta||^2. ``learnt_samples`` and
    ``evaluated_samples`` went through a gradient, and through an evaluation, since the start.
    """

    def __init__(self, assignment: Assignment):
        self._assignment = assignment
        self._architecture = assignment.architecture
        self._training = assignment.training
        self._chunk = max(1, min(_MOST_AT_ONCE, _WIDEST_PASS // self._architecture.widest()))
        own, like = ((), assignment.run.first_outputs) if assignment.model.same_start else ((assignment.node,), 0)
        start = self._architecture.start(assignment.run.seed, *own, init=assignment.model.init, like=like)
        self.theta, self._gradient = (_aligned(start.size, assignment.dtype) for _ in range(2))
        self.theta[:] = start
        self._velocity = _aligned(start.size, assignment.dtype) if self._training.momentum else None
        self._model = _model(self._architecture, assignment.run.task, self.theta, self._gradient)
        shard: list[Samples] = [np.empty(0)] * 4  # what a server learns from
        if assignment.role == "client":
            shard = self._model.read(assignment.shard, ("x_train", "y_train", "x_test", "y_test"))
        self._x_train, self._y_train, self._x_test, self._y_test = shard
        self.train_samples, self.test_samples = len(self._x_train), len(self._x_test)
        self._batches_drawn = 0
        self._pass = -1, np.empty(0, int)  # which pass over the shard goes on, and its order
        self._drifted = False
        self.learnt_samples = self.evaluated_samples = 0

    def enter(self, round: int) -> None:
        """From now on the task is that of this round."""
        if not self._drifted and 0 < self._assignment.run.drift_round <= round:
            drifted = "x_train_drifted", "x_test_drifted"
            self._x_train, self._x_test = self._model.read(self._assignment.shard, drifted)
            self._drifted = True

    def learn(self, pull: np.ndarray | None = None, lam: float = 1.0) -> float:
        """One round's local work on theta, in place; returns the mean of the losses met on the way.

        Each of its steps takes grad f(theta) + lam pull, with a ``pull`` (d,), for grad f(theta).
        """
        losses, alpha = [], self._training.alpha
        for x, y in self.batches():
            loss, direction = self.gradient(x, y)
            losses.append(loss)
            if self._velocity is not None:
                self._velocity *= self._training.momentum
                self._velocity += direction
                direction = self._velocity
                if pull is not None:
                    direction += lam * pull
            self._model.add(self.theta, direction, -alpha)
            if pull is not None and self._velocity is None:
                self.theta -= alpha * lam * pull
        return sum(losses) / len(losses)

    def gradient(
        self, x: Samples | None = None, y: Samples | None = None, pull: tuple[np.ndarray, float] | None = None
    ) -> tuple[float, np.ndarray]:
        """The loss at theta and its gradient (d,), by default on all training samples. The next call overwrites it.

        ``pull``, (anchors, weight), adds weight times the mean over samples of ||features - anchor of its class||^2,
        with anchors (classes, features).
        """
        x, y = (self._x_train, self._y_train) if x is None or y is None else (x, y)
        self._gradient.fill(0)
        self.learnt_samples += len(x)
        total = 0.0
        for start in range(0, len(x), self._chunk):
            part = slice(start, start + self._chunk)
            total += self._model.add_gradient(x[part], y[part], len(x), pull)
        if self._training.l2:
            total += self._training.l2 / 2 * float(self.theta @ self.theta)
            self._model.add(self._gradient, self.theta, self._training.l2)
        return total, self._gradient

    def evaluate(self, theta: np.ndarray | None = None) -> tuple[float, float]:
        """(mean loss without the l2 term, accuracy or MSE) on the test samples, by default of the own theta."""
        if theta is not None and theta is not self.theta:
            own = self.theta.copy()
            self.theta[:] = theta
            try:
                return self.evaluate()
            finally:
                self.theta[:] = own
        self.evaluated_samples += self.test_samples
        loss = score = 0.0
        for part in self._parts(self.test_samples):
            losses, scores = self._model.evaluate(self._x_test[part], self._y_test[part])
            loss, score = loss + losses, score + scores
        # MSE is a mean over samples and targets
        targets = 1 if self._assignment.run.task == "classification" else self._architecture.outputs
        return loss / self.test_samples, score / (self.test_samples * targets)

    def inputs(self) -> np.ndarray:
        return np.asarray(self._x_train).reshape(-1, *self._architecture.input_shape)

    def class_features(self) -> np.ndarray:
        """(classes, features): the mean over the training samples of each class; 0 for classes without any."""
        model, y = self._architecture, np.asarray(self._y_train)
        sums = np.zeros((model.outputs, model.features))
        self.evaluated_samples += self.train_samples
        for part in self._parts(self.train_samples):
            np.add.at(sums, y[part], self._model.features(self._x_train[part]))
        counts = np.bincount(y, minlength=model.outputs).clip(min=1)
        return (sums / counts[:, None]).astype(self.theta.dtype)

    def _parts(self, samples: int) -> Iterator[slice]:
        return (slice(start, start + self._chunk) for start in range(0, samples, self._chunk))

    def batches(self, times: int = 1) -> Iterator[tuple[Samples, Samples]]:
        """The mini-batches of one round, or ``times`` as many. Shuffled passes over the shard follow each other across
        rounds.
        """
        if self._training.work == "full":
            yield from [(self._x_train, self._y_train)] * times
            return
        size = min(self._training.batch_size, self.train_samples)
        a_pass = -(-self.train_samples // size)
        start = self._batches_drawn
        self._batches_drawn += times * self._training.count(self.train_samples)
        for batch in range(start, self._batches_drawn):
            passes, place = divmod(batch, a_pass)
            if self._pass[0] != passes:
                rng = generator(self._assignment.run.seed, "mini-batches", self._assignment.node, passes)
                self._pass = passes, rng.permutation(self.train_samples)
            chosen = self._pass[1][place * size : (place + 1) * size]
            yield self._model.rows(self._x_train, chosen), self._model.rows(self._y_train, chosen)

    def state(self) -> dict[str, np.ndarray]:
        """What a later process needs to go on exactly here."""
        state = {"theta": self.theta, "batches_drawn": np.array([self._batches_drawn])}
        return state if self._velocity is None else state | {"velocity": self._velocity}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Goes on from what ``state`` gave."""
        self.theta[:] = state["theta"]
        self._batches_drawn = int(state["batches_drawn"][0])
        if self._velocity is not None:
            self._velocity[:] = state["velocity"]

    def buffer_bytes(self) -> int:
        """Memory of the gradient and the velocity."""
        return self.theta.nbytes * (1 if self._velocity is None else 2)


def time_of_a_step(assignment: Assignment, steps: int) -> float:
    """Seconds on this machine: the median over some rounds of local work, of so many steps each, after a warm-up."""
    learner, rounds = Learner(assignment), list[float]()
    learner.learn()
    while len(rounds) < 3 or sum(rounds) < 0.3:
        start = time.perf_counter()
        learner.learn()
        rounds.append(time.perf_counter() - start)
    return statistics.median(rounds) / steps


def _model(model: Architecture, task: str, theta: np.ndarray, gradient: np.ndarray) -> "LinearModel | TorchModel":
    if model.is_linear:
        return LinearModel(model, task, theta, gradient)
    from .networks import TorchModel  # loads torch, which takes longer than many a run of linear models

    return TorchModel(model, task, theta, gradient)


def _aligned(size: int, dtype: np.dtype) -> np.ndarray:
    """Zeros that start at a multiple of 64 bytes: the same kernels, hence the same bits, in every process."""
    memory = np.zeros(size * dtype.itemsize + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size * dtype.itemsize].view(dtype)
