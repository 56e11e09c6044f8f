"""A client under [privacy]: of its samples, its algorithm gets noised gradients alone."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ..topology.errors import UserError
from ..transport.stopwatch import Stopwatch
from .algorithms.base import Algorithm, Work, returned
from .assignment import Assignment
from .client import Client

if TYPE_CHECKING:
    from .model.learner import Learner
    from .model.private import PrivateLearner

_WITHHELD = "uses samples otherwise"


class NotPrivate(UserError):
    """Something that would tell more of training samples than [privacy] accounts for."""

    def __init__(self, what: str, why: str):
        super().__init__(f"[privacy] allows local work noised gradients alone: {what} {why}")


@dataclass(frozen=True, slots=True)
class Releases:
    """What a client takes of its samples in a round: ``batches`` mini-batches, drawn one by one, ``on_each`` gradients
    on each of them, and ``full`` gradients on all samples."""

    batches: int = 0
    on_each: int = 1
    full: int = 0


def releases_of(algorithm: Algorithm, own: Assignment, samples: int, round: int, run: Any) -> Releases:
    """Returns what a client with so many training samples takes of them in a round, at most. ``run`` is what
    ``Algorithm.participants`` takes."""
    taking_part = algorithm.participants(run, round)
    if taking_part is not None and own.node not in taking_part:
        return Releases()
    work = returned(algorithm, "work", algorithm.work(own, round), Work)
    on_each, gradients = max(1, work.on_one_batch), math.ceil(work.gradients)
    # One mini-batch has on_each of them; each of the others has one at least
    batches = max(1, gradients - on_each + 1) if gradients else 0
    return Releases(own.training.count(samples) * batches, on_each, math.ceil(work.full_gradients))


class Withheld(Sequence[Any]):
    """In place of ``RunFacts.classes``."""

    def __len__(self) -> int:
        raise NotPrivate("RunFacts.classes", "tells of samples")

    def __getitem__(self, place: Any) -> Any:
        len(self)


def _withheld(name: str) -> Callable[..., Any]:
    def method(*_: Any, **__: Any) -> Any:
        raise NotPrivate(f"client.{name}", _WITHHELD)

    return method


class PrivateClient(Client):
    """Raises NotPrivate where its algorithm looks at samples, and where it takes more gradients than it has told."""

    loss_of = _withheld("loss_of")
    features_of = _withheld("features_of")
    hold_out = _withheld("hold_out")
    held_out = property(_withheld("held_out"))
    class_features = _withheld("class_features")
    class_moments = _withheld("class_moments")
    class_counts = _withheld("class_counts")
    inputs = _withheld("inputs")

    def __init__(self, algorithm: Algorithm, assignment: Assignment, learner: "PrivateLearner", *others: Any):
        self._algorithm, self._private = algorithm, learner
        super().__init__(assignment, learner, *others)
        self.takes_one_full_step = False
        self._private.allowed = Releases()  # ``begin`` takes none

    def enter(self, round: int, met: Collection[int] | None = None) -> None:
        super().enter(round, met)
        self._private.allowed = releases_of(self._algorithm, self._assignment, self.train_samples, round, self)

    @property
    def train_loss(self) -> float | None:
        raise NotPrivate("client.train_loss", _WITHHELD)

    @train_loss.setter
    def train_loss(self, value: float | None) -> None:
        """The learner keeps it for the records."""


def client_of(
    algorithm: Algorithm, assignment: Assignment, learner: "Learner", stopwatch: Stopwatch, sleep: Callable[[], None]
) -> Client:
    if learner.noised:
        return PrivateClient(algorithm, assignment, cast("PrivateLearner", learner), stopwatch, sleep)
    return Client(assignment, learner, stopwatch, sleep)
