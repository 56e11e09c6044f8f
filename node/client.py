"""A client, or a server, as its algorithm sees it."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from ..topology.randomness import generator
from ..transport.stopwatch import Stopwatch
from .assignment import Assignment, Neighbour, Period
from .model.architecture import Architecture, Block
from .model.moments import ClassMoments, Sketch
from .model.pull import Anchors, OfSamples

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
    """A client as its algorithm sees it, or the server, which has a theta, and clients as neighbours, but no data."""

    node: int
    """Its number, from 0; the server's comes after those of all clients."""
    role: Literal["client", "server"]
    clients: int  # of the run, without a server
    rounds: int  # of the run
    seed: int  # of the run
    facts: Any  # what ``Algorithm.facts`` has told it of the run
    model: Architecture
    alpha: float  # the learning rate of the round
    steps: int  # local steps in a round; 0 of a server
    takes_one_full_step: bool  # whether ``learn`` is theta <- theta - alpha grad f(theta), exactly
    train_samples: int
    train_loss: float | None  # the mean of the losses met in the round's local work, before each step
    state: Any  # what ``Algorithm.begin`` has returned: it is kept from round to round, and in checkpoints
    report: RoundReport
    neighbours: dict[int, Neighbour]
    """The other ends of its edges, by their numbers. Where the graph changes, those of the round, as in the next two.
    """
    successors: dict[int, Neighbour]  # those it sends to: on an undirected graph all neighbours
    predecessors: dict[int, Neighbour]  # those it hears from

    def __init__(
        self,
        assignment: Assignment,
        learner: "Learner",
        stopwatch: Stopwatch | None = None,
        sleep: Callable[[], None] = lambda: None,
    ):
        run, training = assignment.run, assignment.training
        self.node, self.role, self.model = assignment.node, assignment.role, assignment.architecture
        self.clients, self.rounds, self.seed = run.clients, run.rounds, run.seed
        self.facts, self.state, self.report = assignment.facts, None, RoundReport()
        self.neighbours = {peer.node: peer for peer in assignment.neighbours}
        self.successors = self.predecessors = self.neighbours
        self.train_loss, self.train_samples = None, learner.train_samples
        self.steps = training.count(self.train_samples) if self.role == "client" else 0
        self.takes_one_full_step = training.work == "full" and training.is_plain
        self._theta = learner.theta
        self._assignment, self._learner, self._sleep = assignment, learner, sleep
        self._stopwatch = stopwatch or Stopwatch("maps", running=False)
        self._period: Period | None = None
        self._losses: list[float] = []
        self.enter(assignment.incarnation.first_round)

    @property
    def theta(self) -> np.ndarray:
        """The model's parameters (d,), changed in place: ``client.theta[:] = ...``, or ``+=``. Layers are views of it,
        so ``client.theta = ...`` raises AttributeError."""
        return self._theta

    @theta.setter
    def theta(self, value: np.ndarray) -> None:
        # ``theta += ...`` sets the array itself
        if value is not self._theta:
            raise AttributeError(
                "client.theta = ... would leave the model as it is, since layers are views of this one array: write "
                "client.theta[:] = ... (client.theta += ... and -= change it in place, too)"
            )

    @cached_property
    def blocks(self) -> dict[Block, slice | np.ndarray]:
        """Where "body" and "head" are in theta, as ``model.head`` says: ``theta[blocks["head"]]`` is the head. Others
        than a slice are numbers of places. Raises ArchitectureError where a module of the user's has no head."""
        return {block: self.model.places_of(block) for block in get_args(Block)}

    def enter(self, round: int, met: Collection[int] | None = None) -> None:
        """``met``: whom it talks to in this round, where clients meet by time."""
        self.alpha = self._assignment.training.alpha_in(round, self.rounds)
        if met is not None:
            found = {peer.node: peer for peer in self._assignment.neighbours if peer.node in met}
            self.neighbours = self.successors = self.predecessors = found
        period = self._assignment.period(round)
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
        """Returns the local steps that a neighbour takes in a round."""
        return self._assignment.training.count(self.neighbours[client].samples)

    def learn(self, pull: np.ndarray | None = None, lam: float = 1.0) -> None:
        """Does the local work that [training] asks for: theta <- theta - alpha grad f(theta), or more than that. With a
        ``pull`` (d,), for a penalty whose gradient is lam pull, every local step takes grad f(theta) + lam pull: where
        models end does then not depend on how many steps there are."""
        with self._stopwatch.during("gradient"):
            self.train_loss = self._learner.train_loss = self._learner.learn(pull, lam)
        self._sleep()

    def gradient(self) -> np.ndarray:
        """Returns (theta before - theta after) / alpha (d,) of the local work, which is grad f(theta) where that is one
        full step; theta stays."""
        before = self.theta.copy()
        self.learn()
        gradient = (before - self.theta) / self.alpha
        self.theta[:] = before
        return gradient

    def batches(self, of: int = 1) -> Iterator[Batch | tuple[Batch, ...]]:
        """Yields the mini-batches of the round's local work, for algorithms that take steps of their own; their traits
        say ``momentum=False``. With ``of`` above 1 each item is a tuple of as many, drawn one after the other."""
        losses = self._losses = []
        drawn = self._learner.batches(of)
        yield from drawn if of == 1 else zip(*[drawn] * of, strict=True)
        self.train_loss = self._learner.train_loss = sum(losses) / len(losses)
        self._sleep()

    def gradient_on(self, batch: Batch | None = None, pull: Anchors | OfSamples | None = None) -> np.ndarray:
        """Returns grad f(theta) (d,) of one mini-batch, by default of all training samples; the next call overwrites
        it. With ``pull``, (anchors (classes, width), lam), it is that of f + lam ||features - anchor of its class||^2.
        Or ``pull`` is a function of what the last layer sees, ``pull(features, rows)``, (samples, width) and which of
        the mini-batch's samples these are, a slice: it returns what it adds to their losses, summed, and the gradient
        of that by the features."""
        with self._stopwatch.during("gradient"):
            loss, gradient = self._learner.gradient(batch, pull)
        self._losses.append(loss)
        return gradient

    def loss_of(self, theta: np.ndarray, batch: Batch | None = None) -> float:
        """Returns the mean loss, without the l2 term, of a model theta (d,) on its training samples, or on a mini-batch
        of ``batches`` or ``held_out``. It takes a pass forward, about a third of a gradient's operations, which counts
        as evaluation; nothing is drawn or left out, and the client's own theta stays."""
        with self._stopwatch.during("gradient"):
            return self._learner.loss_of(theta, batch)

    def features_of(self, theta: np.ndarray, batch: Batch | None = None) -> np.ndarray:
        """Returns what the last layer sees of a mini-batch, or of all training samples, those of one class after those
        of another as ``class_counts`` has them, in a model theta (d,): (samples, width); as ``loss_of``."""
        with self._stopwatch.during("gradient"):
            return self._learner.features_of(theta, batch)

    def hold_out(self, share: float) -> None:
        """Takes a share of the training samples, drawn once, out of local work, for ``loss_of(theta, held_out)``; in
        ``begin``. Local work has as many steps as before."""
        self._learner.hold_out(share)

    @property
    def held_out(self) -> Batch:
        """The training samples that ``hold_out`` has set aside."""
        return self._learner.held_out()

    def start(self, number: int = 0) -> np.ndarray:
        """Returns theta^0 (d,), or with a number above 0 another one, drawn as ``model.init`` = "uniform" draws it: for
        algorithms with several models. It is the same for all clients where theta^0 is."""
        return self._learner.start(number)

    def class_features(self) -> np.ndarray:
        """Returns the means (classes, features) of what the last layer sees of the training samples of each class."""
        return self.class_moments(self.theta, lambda z: z[:, :0]).means.astype(self.theta.dtype)

    def class_moments(self, theta: np.ndarray | None, sketch: Sketch) -> ClassMoments:
        """Returns the means (classes, h) of the training samples of each class, the sum of squared distances of samples
        from these, and the sum (k, k) of products e e^T, e being the sketch of what a sample is off from its class's
        mean: ``means``, ``scatter`` and ``products``, in double precision, 0 for classes without samples. They are of
        what the last layer sees of samples in a model theta (d,), as ``loss_of``, or of the h numbers of an input where
        it is None. ``sketch`` makes of rows (n, h) short ones (n, k), linearly."""
        with self._stopwatch.during("gradient"):
            return self._learner.class_moments(theta, sketch)

    def class_counts(self) -> np.ndarray:
        """Returns how many training samples it has of each class, (classes,)."""
        return np.bincount(self._learner.samples()[1], minlength=self.model.outputs)

    def inputs(self) -> np.ndarray:
        """Returns what it trains on, (samples, *input_shape), without the targets; read only."""
        return self._learner.samples()[0]

    def generator(self, purpose: str, *key: int) -> np.random.Generator:
        """Returns random draws that follow from seed, client, purpose and key alone: give the round as a key."""
        return generator(self.seed, purpose, self.node, *key)
