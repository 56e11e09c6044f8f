"""A client, or a server, as its algorithm sees it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..topology.randomness import generator
from ..transport.stopwatch import Stopwatch
from .assignment import Assignment, Neighbour, Period

if TYPE_CHECKING:  # the launcher knows algorithms, not what clients learn with
    from .model.learner import Learner

Batch = Any  # a mini-batch of training samples, from ``Client.batches`` for ``Client.gradient_on``


@dataclass(slots=True)
class RoundReport:
    """What an algorithm tells of its last round, for the records; disagreements and gradient are as it began."""

    disagreements: dict[int, float] = field(default_factory=dict)  # {j: ||P_ij theta_i - P_ji theta_j||}
    weights: dict[int, float] = field(default_factory=dict)  # {j: w_ij}, the factor on P_ij, where edges are weighed
    cosines: dict[int, float] = field(default_factory=dict)  # {j: the estimated one between the updates of i and j}
    penalty: float = 0.0  # its half of its edges' terms in (8), lam/4 sum_j ||P_ij theta_i - P_ji theta_j||^2
    gradient_norm: float | None = None  # its part of ||grad Psi(theta, P)||, where one full gradient step tells it
    warnings: list[str] = field(default_factory=list)  # for the user, each once a run
    events: list[tuple[str, str]] = field(default_factory=list)  # (kind, detail) of what else is worth a record
    cause_of_divergence: str = "the local steps diverged; lower training.alpha"  # should theta turn out to be infinite


class Client:
    """``theta`` is the model's flat parameter vector (d,): algorithms change it in place, and cannot rebind it. A
    server has a theta, and its clients as neighbours, but no data."""

    def __init__(
        self,
        assignment: Assignment,
        learner: "Learner",
        stopwatch: Stopwatch | None = None,
        sleep: Callable[[float], None] = lambda elapsed_s: None,
    ):
        run, training = assignment.run, assignment.training
        self.node, self.role, self.model = assignment.node, assignment.role, assignment.architecture
        self.clients, self.rounds, self.seed = run.clients, run.rounds, run.seed
        self.facts = assignment.facts  # what the algorithm asked this client to be told of the run
        self.state: Any = None  # what the algorithm keeps for the client from round to round, beside theta
        self.report = RoundReport()
        self.neighbours: dict[int, Neighbour] = {peer.node: peer for peer in assignment.neighbours}
        # Those it sends to, and those it hears from: on an undirected graph all neighbours
        self.successors = self.predecessors = self.neighbours
        self.train_loss: float | None = None
        self.train_samples = learner.train_samples
        # Local steps in a round; 0 of a server
        self.steps = training.count(self.train_samples) if self.role == "client" else 0
        # Whether ``learn`` is theta <- theta - alpha grad f(theta), exactly
        self.takes_one_full_step = training.work == "full" and training.is_plain
        self._theta = learner.theta
        self._assignment, self._learner, self._sleep = assignment, learner, sleep
        self._stopwatch = stopwatch or Stopwatch("maps", running=False)
        self._period: Period | None = None
        self._losses: list[float] = []
        self.enter(assignment.incarnation.first_round)

    @property
    def theta(self) -> np.ndarray:
        return self._theta

    @theta.setter
    def theta(self, value: np.ndarray) -> None:
        """Raises AttributeError, but for what ``theta += ...`` sets: the array itself."""
        if value is not self._theta:
            raise AttributeError(
                "client.theta = ... would leave the model as it is, since layers are views of this one array: write "
                "client.theta[:] = ... (client.theta += ... and -= change it in place, too)"
            )

    def enter(self, round: int) -> None:
        self.alpha = self._assignment.training.alpha_in(round, self.rounds)
        periods = self._assignment.periods
        period = periods[(round - 1) // self._assignment.run.rounds_a_period % len(periods)] if periods else None
        if period is None or period is self._period:
            return
        self._period, weights = period, period.weights
        self.neighbours = {
            peer.node: replace(peer, weight=weights.get(peer.node, 0.0))
            for peer in self._assignment.neighbours
            if peer.node in weights or peer.node in period.successors
        }
        self.successors = {j: self.neighbours[j] for j in period.successors}
        self.predecessors = {j: self.neighbours[j] for j in weights}

    def steps_of(self, client: int) -> int:
        return self._assignment.training.count(self.neighbours[client].samples)

    def learn(self, pull: np.ndarray | None = None, lam: float = 1.0) -> None:
        """theta <- theta - alpha grad f(theta), or whatever local work the run asks for. With a ``pull`` (d,), every
        local step takes grad f(theta) + lam pull instead: the theta that this leaves as it is has grad f(theta) + lam
        pull = 0, however many steps there are."""
        start = time.monotonic()
        with self._stopwatch.during("gradient"):
            self.train_loss = self._learner.learn(pull, lam)
        self._sleep(time.monotonic() - start)

    def gradient(self) -> np.ndarray:
        """grad f(theta), or the local work's (theta before - theta after) / alpha in its place; theta stays."""
        before = self.theta.copy()
        self.learn()
        gradient = (before - self.theta) / self.alpha
        self.theta[:] = before
        return gradient

    def batches(self, of: int = 1) -> Iterator[Batch | tuple[Batch, ...]]:
        """What ``learn`` would take its steps on, for algorithms that take steps of their own, without momentum. With
        ``of`` above 1 each item is a tuple of as many mini-batches, drawn one after the other."""
        losses = self._losses = []
        drawn = self._learner.batches(of)
        yield from drawn if of == 1 else zip(*[drawn] * of, strict=True)
        self.train_loss = sum(losses) / len(losses)

    def gradient_on(self, batch: Batch | None = None, pull: tuple[np.ndarray, float] | None = None) -> np.ndarray:
        """grad f(theta) (d,) of one mini-batch, by default of all training samples. The next call overwrites it. With
        ``pull``, (anchors (classes, features), lam), it is that of f + lam ||features - anchor of its class||^2."""
        with self._stopwatch.during("gradient"):
            loss, gradient = self._learner.gradient(batch, pull)
        self._losses.append(loss)
        return gradient

    def class_features(self) -> np.ndarray:
        """(classes, features): the mean of what the head gets to see of the training samples of each class."""
        with self._stopwatch.during("gradient"):
            return self._learner.class_features()

    def inputs(self) -> np.ndarray:
        """(n, *input_shape): what it trains on, without the targets; read only."""
        return self._learner.inputs()

    def generator(self, purpose: str, *key: int) -> np.random.Generator:
        return generator(self.seed, purpose, self.node, *key)
