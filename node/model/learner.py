"""A client's model on its own shard: gradients, local work, evaluation; and models of one linear layer."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import safe_open

from ...topology.randomness import generator
from ..assignment import Assignment
from .architecture import Architecture

if TYPE_CHECKING:
    from .networks import TorchModel

Samples = Any  # x or y of some samples, as the client's model takes them
Pull = tuple[np.ndarray, float]  # (anchors (classes, features), weight), see ``Client.gradient_on``
Batch = tuple[Samples, Samples]

_MOST_AT_ONCE = 512  # samples in one pass of a full gradient or an evaluation ...
_WIDEST_PASS = 1 << 21  # ... and numbers in its widest layer: both bound memory, not the result


class LinearModel:
    """TorchModel in closed form: numpy takes a third of the time that torch itself needs, which is not even loaded.

    Shapes: x (n, features), whatever the shape of a sample, W (outputs, features), b (outputs,), Z = x W^T + b.

        classification    loss = sum_i log sum_k exp Z_ik - Z_i,y_i     dloss/dZ = softmax(Z) - onehot(y)
        regression        loss = ||Z - y||^2                            dloss/dZ = 2 (Z - y)
        dloss/dW = (dloss/dZ)^T x      dloss/db = sum_i (dloss/dZ)_i"""

    def __init__(self, architecture: Architecture, task: str, theta: np.ndarray, gradient: np.ndarray):
        self._classifies, outputs = task == "classification", architecture.outputs
        self._weight, self._bias = theta[:-outputs].reshape(outputs, -1), theta[-outputs:]
        self._weight_slope, self._bias_slope = gradient[:-outputs].reshape(outputs, -1), gradient[-outputs:]

    def read(self, shard: Path, names: Sequence[str]) -> list[np.ndarray]:
        with safe_open(shard, framework="numpy") as file:
            arrays = [file.get_tensor(name) for name in names]
        rows = [x if x.ndim < 2 else x.reshape(len(x), -1) for x in arrays]
        return [x.astype(self._weight.dtype, copy=False) if x.dtype.kind == "f" else x for x in rows]

    def rows(self, x: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        return x.take(chosen, 0)

    def add_gradient(self, x: np.ndarray, y: np.ndarray, samples: int, pull: Pull | None = None) -> float:
        """What ``pull`` adds to the loss depends on no parameter: the features of a sample are the sample."""
        summed, slope = self._loss_and_slope(x @ self._weight.T + self._bias, y)
        slope /= samples
        self._weight_slope += slope.T @ x
        self._bias_slope += slope.sum(0)
        if pull is not None:
            summed += float(pull[1] * np.square(x - pull[0][y]).sum())
        return summed / samples

    def evaluate(self, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
        z = x @ self._weight.T + self._bias
        right = float((z.argmax(1) == y).sum()) if self._classifies else None
        summed, _ = self._loss_and_slope(z, y)
        return summed, summed if right is None else right

    def features(self, x: np.ndarray) -> np.ndarray:
        return x

    @staticmethod
    def add(vector: np.ndarray, other: np.ndarray, factor: float) -> None:
        """vector += factor * other, rounded once, as torch does it."""
        exact = other * np.float64(vector.dtype.type(factor))
        exact += vector
        vector[:] = exact

    def _loss_and_slope(self, z: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
        """Overwrites z."""
        if not self._classifies:
            z -= y
            return float(np.square(z).sum()), 2 * z
        z -= z.max(1, keepdims=True)
        rows = np.arange(len(y))
        of_the_right = z[rows, y].sum()
        np.exp(z, out=z)
        total = z.sum(1)
        z /= total[:, None]
        z[rows, y] -= 1
        return float(np.log(total).sum() - of_the_right), z


class Learner:
    """theta and its gradient are one contiguous buffer each; parameters are views of them. The local loss is the mean
    over samples of the architecture's loss plus l2/2 ||theta||^2."""

    _model: "LinearModel | TorchModel"

    def __init__(self, assignment: Assignment):
        self._assignment, self._training = assignment, assignment.training
        architecture, run, dtype = assignment.architecture, assignment.run, assignment.dtype
        self._chunk = max(1, min(_MOST_AT_ONCE, _WIDEST_PASS // architecture.widest()))
        own, like = ((), run.first_outputs) if assignment.model.same_start else ((assignment.node,), 0)
        start = architecture.start(run.seed, *own, init=assignment.model.init, like=like)
        self.theta, self._gradient = (_aligned(start.size, dtype) for _ in range(2))
        self.theta[:] = start
        self._velocity = _aligned(start.size, dtype) if self._training.momentum else None
        model = architecture, run.task, self.theta, self._gradient
        if architecture.is_linear:
            self._model = LinearModel(*model)
        else:
            from .networks import TorchModel  # loads torch, which takes longer than many a run of linear models

            self._model = TorchModel(*model)
        shard: list[Samples] = [np.empty(0)] * 4  # what a server learns from
        if assignment.role == "client":
            shard = self._model.read(assignment.shard, ("x_train", "y_train", "x_test", "y_test"))
        self._x_train, self._y_train, self._x_test, self._y_test = shard
        self.train_samples, self.test_samples = len(self._x_train), len(self._x_test)
        self._batches_drawn = 0
        self._pass = -1, np.empty(0, int)  # which pass over the shard goes on, and its order
        self._drifted = False
        self.learnt_samples = self.evaluated_samples = 0  # that went through a gradient, and through an evaluation

    def enter(self, round: int) -> None:
        if not self._drifted and 0 < self._assignment.run.drift_round <= round:
            drifted = "x_train_drifted", "x_test_drifted"
            self._x_train, self._x_test = self._model.read(self._assignment.shard, drifted)
            self._drifted = True

    def learn(self, pull: np.ndarray | None = None, lam: float = 1.0) -> float:
        """Does a round's local work, as ``Client.learn`` says; returns the mean of the losses met on the way."""
        losses, alpha = [], self._training.alpha
        for batch in self.batches():
            loss, direction = self.gradient(batch)
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

    def gradient(self, batch: Batch | None = None, pull: Pull | None = None) -> tuple[float, np.ndarray]:
        """The loss at theta and its gradient, as ``Client.gradient_on`` says. The next call overwrites it."""
        x, y = batch or (self._x_train, self._y_train)
        self._gradient.fill(0)
        self.learnt_samples += len(x)
        total = 0.0
        for part in self._parts(len(x)):
            total += self._model.add_gradient(x[part], y[part], len(x), pull)
        if self._training.l2:
            total += self._training.l2 / 2 * float(self.theta @ self.theta)
            self._model.add(self._gradient, self.theta, self._training.l2)
        return total, self._gradient

    def evaluate(self, theta: np.ndarray | None = None) -> tuple[float, float]:
        """(mean loss without the l2 term, accuracy or MSE) on the test samples, by default of the own theta."""
        own = self.theta if theta is None or theta is self.theta else self.theta.copy()
        self.theta[:] = own if theta is None else theta
        self.evaluated_samples += self.test_samples
        loss = score = 0.0
        for part in self._parts(self.test_samples):
            losses, scores = self._model.evaluate(self._x_test[part], self._y_test[part])
            loss, score = loss + losses, score + scores
        self.theta[:] = own
        # MSE is a mean over samples and targets
        targets = 1 if self._assignment.run.task == "classification" else self._assignment.architecture.outputs
        return loss / self.test_samples, score / (self.test_samples * targets)

    def inputs(self) -> np.ndarray:
        return np.asarray(self._x_train).reshape(-1, *self._assignment.architecture.input_shape)

    def class_features(self) -> np.ndarray:
        """(classes, features): the mean over the training samples of each class; 0 for classes without any."""
        model, y = self._assignment.architecture, np.asarray(self._y_train)
        sums = np.zeros((model.outputs, model.features))
        self.evaluated_samples += self.train_samples
        for part in self._parts(self.train_samples):
            np.add.at(sums, y[part], self._model.features(self._x_train[part]))
        counts = np.bincount(y, minlength=model.outputs).clip(min=1)
        return (sums / counts[:, None]).astype(self.theta.dtype)

    def _parts(self, samples: int) -> Iterator[slice]:
        return (slice(start, start + self._chunk) for start in range(0, samples, self._chunk))

    def batches(self, times: int = 1) -> Iterator[Batch]:
        """The mini-batches of one round, or ``times`` as many, from shuffled passes over the shard that follow each
        other across rounds."""
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
        state = {"theta": self.theta, "batches_drawn": np.array([self._batches_drawn])}
        return state if self._velocity is None else state | {"velocity": self._velocity}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self.theta[:] = state["theta"]
        self._batches_drawn = int(state["batches_drawn"][0])
        if self._velocity is not None:
            self._velocity[:] = state["velocity"]

    def buffer_bytes(self) -> int:
        return self.theta.nbytes * (1 if self._velocity is None else 2)


def time_of_a_step(assignment: Assignment) -> float:
    """Seconds on this machine: the median over some rounds of local work, of ``timed_steps`` each, after a warm-up."""
    learner, rounds = Learner(assignment), list[float]()
    learner.learn()
    while len(rounds) < 3 or sum(rounds) < 0.3:
        start = time.perf_counter()
        learner.learn()
        rounds.append(time.perf_counter() - start)
    return float(np.median(rounds)) / assignment.timed_steps


def _aligned(size: int, dtype: np.dtype) -> np.ndarray:
    """Zeros that start at a multiple of 64 bytes: the same kernels, hence the same bits, in every process."""
    memory = np.zeros(size * dtype.itemsize + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size * dtype.itemsize].view(dtype)
