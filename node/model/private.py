"""DP-SGD (Abadi et al. 2016): what a client takes of its samples under [privacy] of the configuration."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...topology.randomness import generator
from ..assignment import Assignment
from ..privacy import NotPrivate, Releases
from .dense import DenseModel
from .learner import Learner, _slices
from .pull import Anchors, OfSamples


@dataclass(frozen=True, slots=True)
class Drawn:
    """A mini-batch, in which only the learner looks up the samples."""

    number: int  # of those of the round
    rows: np.ndarray


class PrivateLearner(Learner):
    """Of g_i, the gradients of the losses of single samples, without the l2 term, every gradient takes

    g = (sum_{i in B} min(1, C/||g_i||) g_i + N(0, (noise C)^2 I)) / b

    with b the expected size of B. With ``correlated`` (DECOR, Allouah et al. 2024) it takes g + sum_j v_ij over its
    neighbours j, v_ij = -v_ji ~ N(0, (correlated C / max(b_i, b_j))^2 I) drawn alike by both ends. A mini-batch has
    each sample with probability b/n, independently (a Poisson draw); on all samples B has them all. What follows from g
    does not look at samples again. The loss that is told, for records alone, is divided by b, too.

    Draws are named by the client's incarnation, the round and the place in it: who comes back from an old checkpoint
    never repeats a noise on another model."""

    allowed: Releases | None = None  # None: whatever is asked for

    def __init__(self, assignment: Assignment):
        super().__init__(assignment)
        self.noised = True
        self._round, self._taken, self._full = 0, Counter[int](), 0  # {mini-batch of the round: gradients on it}
        self._noises = 0  # of the round

    def enter(self, round: int) -> None:
        super().enter(round)
        self._round, self._noises, self._full = round, 0, 0
        self._batches_drawn = 0
        self._taken.clear()

    def batches(self, times: int = 1) -> Iterator[Any]:
        if not self.noised:
            yield from super().batches(times)
            return
        n, training = self.train_samples, self._training
        for _ in range(times * training.count(n)):
            number = self._batches_drawn
            self._batches_drawn += 1
            rows = np.arange(n)
            if training.work != "full":
                rows = np.flatnonzero(self._draws("private mini-batch", number).random(n) < self.expected / n)
            yield Drawn(number, rows)

    @property
    def expected(self) -> int:
        """Returns b of a mini-batch."""
        return self._training.expected(self.train_samples)

    def _correlated_noise(self) -> np.ndarray:
        """Returns sum_j v_ij."""
        own, section, total = self._assignment, self._assignment.privacy, np.zeros(len(self._gradient))
        for peer in own.neighbours:
            i, j = sorted((own.node, peer.node))
            rng = generator(own.run.seed, "correlated noise", i, j, self._round, self._noises)
            scale = section.correlated * section.clip / max(self.expected, self._training.expected(peer.samples))
            total += (scale if own.node == i else -scale) * rng.standard_normal(len(total))
        return total

    def gradient(self, batch: Any = None, pull: Anchors | OfSamples | None = None) -> tuple[float, np.ndarray]:
        """Raises NotPrivate for more than is ``allowed``."""
        if not self.noised:
            return super().gradient(batch, pull)
        if pull is not None:
            raise NotPrivate("gradient_on(batch, pull)", "adds another loss of samples")
        self._note(batch)
        section, all_of_them = self._assignment.privacy, batch is None
        rows = np.arange(self.train_samples) if all_of_them else batch.rows
        total = self._clipped_sum(rows, section.clip)
        assert section.noise is not None
        noise = self._draws("private noise", self._noises).standard_normal(len(self._gradient))
        expected = self.train_samples if all_of_them else self.expected
        self._gradient += (section.noise * section.clip * noise).astype(self._gradient.dtype)
        self._gradient /= expected
        if section.correlated:
            self._gradient += self._correlated_noise().astype(self._gradient.dtype)
        self._noises += 1
        total /= expected
        if self._training.l2:
            total += self._training.l2 / 2 * float(self.theta @ self.theta)
            self._model.add(self._gradient, self.theta, self._training.l2)
        return total, self._gradient

    def _draws(self, purpose: str, place: int) -> np.random.Generator:
        own = self._assignment
        return generator(own.run.seed, purpose, own.node, own.incarnation.number, self._round, place)

    def _note(self, batch: Drawn | None) -> None:
        allowed = self.allowed
        if batch is None:
            self._full += 1
        else:
            self._taken[batch.number] += 1
        if allowed is None:
            return
        too_many = batch and (batch.number >= allowed.batches or self._taken[batch.number] > allowed.on_each)
        if too_many or self._full > allowed.full:
            raise NotPrivate("round", "takes more gradients of samples than the algorithm's work() tells")

    def _clipped_sum(self, rows: np.ndarray, clip: float) -> float:
        """Makes the gradient sum_i min(1, C/||g_i||) g_i; returns the sum of the losses."""
        gradient, total, model = self._gradient, 0.0, self._model
        self.learnt_samples += len(rows)
        gradient.fill(0)
        if isinstance(model, DenseModel):
            for part in _slices(len(rows), self._chunk):
                x, y = (model.rows(each, rows[part]) for each in (self._x_train, self._y_train))
                total += model.add_clipped(x, y, clip)
            return total
        # Any module, sample by sample: nothing can mix them, and batches of one cost less here than vmap
        clipped = np.zeros_like(gradient)
        for row in rows:
            gradient.fill(0)
            total += model.add_gradient(self._x_train[row : row + 1], self._y_train[row : row + 1], 1)
            clipped += gradient * gradient.dtype.type(clip / max(clip, math.sqrt(gradient @ gradient)))
        gradient[:] = clipped
        return total


def learner_of(assignment: Assignment) -> Learner:
    is_private = assignment.privacy.clip and assignment.role == "client"
    return PrivateLearner(assignment) if is_private else Learner(assignment)
