"""A client's model on its own shard: gradients, local work, evaluation. The only place where torch computes; models of
one linear layer do without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from ..topology.seeds import generator
from . import linear
from .architecture import Architecture
from .assignment import Assignment
from .models import features, forward, loss, metric, views

Samples = Tensor | np.ndarray
"""Arrays where the model is one linear layer, x (n, features); else tensors, x (n, *input_shape)."""

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
        self._linear = self._architecture.is_linear
        self._x_train, self._y_train, self._x_test, self._y_test = map(self._as_learnt, shard)
        self.train_samples, self.test_samples = len(self._x_train), len(self._x_test)
        own = () if assignment.same_start else (assignment.node,)
        start = self._architecture.start(assignment.seed, *own, init=assignment.init)
        # torch's buffers start at multiples of 64 bytes: the same kernels, hence the same bits, in every process
        self._theta = torch.from_numpy(start).to(dtype, copy=True)
        self._gradient = torch.zeros_like(self._theta)
        self._parameters = views(self._architecture, self._theta)
        for parameter, gradient in zip(self._parameters, views(self._architecture, self._gradient), strict=True):
            parameter.requires_grad_().grad = gradient  # backward() adds into the flat buffer
        self._velocity = torch.zeros_like(self._theta) if self._training.momentum else None
        self._batches_drawn = 0
        self._pass = -1, np.empty(0, int)  # which pass over the shard goes on, and its order
        self._drifted = False
        self.learnt_samples = self.evaluated_samples = 0
        """Samples that went through a gradient, and through an evaluation, since the start."""
        self.theta: np.ndarray = self._theta.numpy()
        if self._linear:
            outputs = self._architecture.outputs
            self._layer, self._slope = (
                linear.Layer.of(vector.numpy(), outputs) for vector in (self._theta, self._gradient)
            )

    def _as_learnt(self, data: Tensor) -> Tensor | np.ndarray:
        """Samples or targets, for a linear model as arrays of two dimensions or one; the memory is the same."""
        if not self._linear or self._assignment.role == "server":
            return data
        return data.numpy() if data.ndim < 2 else data.numpy().reshape(len(data), -1)

    def enter(self, round: int) -> None:
        """From now on the task is that of this round."""
        if not self._drifted and 0 < self._assignment.drift_round <= round:
            dtype = getattr(torch, self._assignment.dtype)
            with safe_open(self._assignment.shard, framework="pt") as file:
                self._x_train, self._x_test = (
                    self._as_learnt(file.get_tensor(name).to(dtype)) for name in ("x_train_drifted", "x_test_drifted")
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
            if self._linear:
                total += linear.add_gradient(self._assignment.task, self._layer, self._slope, x[part], y[part], len(x))
                if pull is not None:  # of the samples themselves, which no parameter moves
                    total += float(pull[1] * np.square(x[part] - pull[0][y[part]]).sum() / len(x))
                continue
            seen = features(self._architecture, self._parameters, x[part])
            summed = loss(self._assignment.task, F.linear(seen, *self._parameters[-2:]), y[part])
            if pull is not None:
                anchors, weight = torch.from_numpy(pull[0]), pull[1]
                summed = summed + weight * ((seen - anchors[y[part]]) ** 2).sum()
            mean = summed / len(x)
            mean.backward()
            total += float(mean.detach())
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
        with torch.no_grad():
            for start in range(0, self.test_samples, self._chunk):
                part = slice(start, start + self._chunk)
                if self._linear:
                    losses, scores = linear.evaluate(task, self._layer, self._x_test[part], self._y_test[part])
                    summed += losses
                    scored += scores
                    continue
                predictions = forward(self._architecture, self._parameters, self._x_test[part])
                summed += float(loss(task, predictions, self._y_test[part]))
                scored += metric(task, predictions, self._y_test[part])
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
        with torch.no_grad():
            for start in range(0, self.train_samples, self._chunk):
                part = slice(start, start + self._chunk)
                seen = features(model, self._parameters, torch.as_tensor(self._x_train[part]))
                sums.index_add_(0, torch.as_tensor(self._y_train[part]), seen.double())
        counts = torch.bincount(torch.as_tensor(self._y_train), minlength=model.outputs).clamp(min=1)
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
            if self._linear:
                yield self._x_train.take(chosen, 0), self._y_train.take(chosen, 0)
            else:
                rows = torch.from_numpy(chosen)
                yield self._x_train[rows], self._y_train[rows]

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
