"""A client's model on its own shard: gradients, local work, evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from ..topology.seeds import generator
from .architecture import Architecture
from .assignment import Assignment
from .linear import LinearModel
from .models import TorchModel

Samples = Any
"""x or y of some samples, as the client's model takes them."""

_MOST_AT_ONCE = 512  # samples in one pass of a full gradient or an evaluation ...
_WIDEST_PASS = 1 << 21  # ... and numbers in its widest layer: both bound memory, not the result


class Learner:
    """theta and its gradient are one contiguous buffer each; parameters are views of them.

    The local loss is the mean over samples of the architecture's loss plus l2/2 ||theta||^2.
    """

    def __init__(self, assignment: Assignment):
        self._assignment = assignment
        self._architecture: Architecture = assignment.architecture
        self._training = assignment.training
        self._chunk = max(1, min(_MOST_AT_ONCE, _WIDEST_PASS // self._architecture.widest()))
        dtype = getattr(torch, assignment.dtype)
        shard = _no_shard(dtype) if assignment.role == "server" else _open_shard(assignment.shard, dtype)
        own = () if assignment.same_start else (assignment.node,)
        start = self._architecture.start(assignment.seed, *own, init=assignment.init)
        # torch's buffers start at multiples of 64 bytes: the same kernels, hence the same bits, in every process
        self._theta = torch.from_numpy(start).to(dtype, copy=True)
        self._gradient = torch.zeros_like(self._theta)
        self.theta: np.ndarray = self._theta.numpy()
        self._model: LinearModel | TorchModel
        if self._architecture.is_linear:
            self._model = LinearModel(self._architecture, assignment.task, self.theta, self._gradient.numpy())
        else:
            self._model = TorchModel(self._architecture, assignment.task, self._theta, self._gradient)
        as_taken: list[Samples] = [self._model.data(part) for part in shard]
        self._x_train, self._y_train, self._x_test, self._y_test = as_taken
        self.train_samples, self.test_samples = len(self._x_train), len(self._x_test)
        self._velocity = torch.zeros_like(self._theta) if self._training.momentum else None
        self._batches_drawn = 0
        self._pass = -1, np.empty(0, int)  # which pass over the shard goes on, and its order
        self._drifted = False
        self.learnt_samples = self.evaluated_samples = 0
        """Samples that went through a gradient, and through an evaluation, since the start."""

    def enter(self, round: int) -> None:
        """From now on the task is that of this round."""
        if not self._drifted and 0 < self._assignment.drift_round <= round:
            dtype = getattr(torch, self._assignment.dtype)
            with safe_open(self._assignment.shard, framework="pt") as file:
                self._x_train, self._x_test = (
                    self._model.data(file.get_tensor(name).to(dtype)) for name in ("x_train_drifted", "x_test_drifted")
                )
            self._drifted = True

    def learn(self) -> float:
        """One round's local work on theta, in place; returns the mean of the losses met on the way."""
        losses = [self._step(x, y) for x, y in self.batches()]
        return sum(losses) / len(losses)

    def gradient(
        self, x: Samples | None = None, y: Samples | None = None, pull: tuple[np.ndarray, float] | None = None
    ) -> tuple[float, np.ndarray]:
        """The loss at theta and its gradient (d,), by default on all training samples. The next call overwrites it.

        ``pull``, (anchors, weight), adds weight times the mean over samples of ||features - anchor of its class||^2,
        with anchors (classes, features).
        """
        x, y = (self._x_train, self._y_train) if x is None or y is None else (x, y)
        self._gradient.zero_()
        self.learnt_samples += len(x)
        total = 0.0
        for start in range(0, len(x), self._chunk):
            part = slice(start, start + self._chunk)
            total += self._model.add_gradient(x[part], y[part], len(x), pull)
        if self._training.l2:
            total += self._training.l2 / 2 * float(self._theta @ self._theta)
            self._gradient.add_(self._theta, alpha=self._training.l2)
        return total, self._gradient.numpy()

    def evaluate(self, theta: np.ndarray | None = None) -> tuple[float, float]:
        """(mean loss without the l2 term, accuracy or MSE) on the test samples, by default of the own theta."""
        if theta is not None and theta is not self.theta:
            own = self.theta.copy()
            self.theta[:] = theta
            try:
                return self.evaluate()
            finally:
                self.theta[:] = own
        task, summed, scored = self._assignment.task, 0.0, 0.0
        self.evaluated_samples += self.test_samples
        for start in range(0, self.test_samples, self._chunk):
            part = slice(start, start + self._chunk)
            losses, scores = self._model.evaluate(self._x_test[part], self._y_test[part])
            summed += losses
            scored += scores
        # MSE is a mean over samples and targets
        values = self.test_samples * (1 if task == "classification" else self._architecture.outputs)
        return summed / self.test_samples, scored / values

    def inputs(self) -> np.ndarray:
        return np.asarray(self._x_train).reshape(-1, *self._architecture.input_shape)

    def class_features(self) -> np.ndarray:
        """(classes, features): the mean over the training samples of each class; 0 for classes without any."""
        model = self._architecture
        sums = torch.zeros(model.outputs, model.features, dtype=torch.float64)
        self.evaluated_samples += self.train_samples
        y = torch.as_tensor(self._y_train)
        for start in range(0, self.train_samples, self._chunk):
            part = slice(start, start + self._chunk)
            sums.index_add_(0, y[part], self._model.features(self._x_train[part]).double())
        counts = torch.bincount(y, minlength=model.outputs).clamp(min=1)
        return (sums / counts[:, None]).to(self._theta.dtype).numpy()

    def _step(self, x: Samples, y: Samples) -> float:
        value, _ = self.gradient(x, y)
        direction = self._gradient
        if self._velocity is not None:
            direction = self._velocity.mul_(self._training.momentum).add_(self._gradient)
        self._theta.add_(direction, alpha=-self._training.alpha)
        return value

    def batches(self, times: int = 1) -> Iterator[tuple[Samples, Samples]]:
        """The mini-batches of one round, or ``times`` as many. Shuffled passes over the shard follow each other across
        rounds.
        """
        if self._training.work == "full":
            yield from [(self._x_train, self._y_train)] * times
            return
        size = min(self._training.batch_size, self.train_samples)
        a_pass = -(-self.train_samples // size)
        count = self._training.steps if self._training.work == "steps" else self._training.epochs * a_pass
        start = self._batches_drawn
        self._batches_drawn += times * count
        for batch in range(start, self._batches_drawn):
            passes, place = divmod(batch, a_pass)
            if self._pass[0] != passes:
                rng = generator(self._assignment.seed, "mini-batches", self._assignment.node, passes)
                self._pass = passes, rng.permutation(self.train_samples)
            chosen = self._pass[1][place * size : (place + 1) * size]
            yield self._model.rows(self._x_train, chosen), self._model.rows(self._y_train, chosen)

    def state(self) -> dict[str, np.ndarray]:
        """What a later process needs to go on exactly here."""
        state = {"theta": self.theta, "batches_drawn": np.array([self._batches_drawn])}
        if self._velocity is not None:
            state["velocity"] = self._velocity.numpy()
        return state

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Goes on from what ``state`` gave."""
        self.theta[:] = state["theta"]
        self._batches_drawn = int(state["batches_drawn"][0])
        if self._velocity is not None:
            self._velocity.numpy()[:] = state["velocity"]

    def buffer_bytes(self) -> int:
        """Memory of the gradient and the velocity."""
        return self.theta.nbytes * (1 if self._velocity is None else 2)


def _no_shard(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    nothing = torch.empty(0, dtype=dtype)
    return nothing, nothing, nothing, nothing


def _open_shard(path: Path, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The shard's tensors, mapped from the file; only another floating point type makes copies."""
    with safe_open(path, framework="pt") as file:
        x_train, y_train, x_test, y_test = map(file.get_tensor, ("x_train", "y_train", "x_test", "y_test"))
    targets = [y.to(dtype) if y.is_floating_point() else y for y in (y_train, y_test)]
    return x_train.to(dtype), targets[0], x_test.to(dtype), targets[1]
