"""Selective sheaf: neighbours whose tasks are alike find each other in the sketches that they exchange.

Ours, not the paper's. Client i sends neighbour j, of its update Delta_i = theta_i - theta^0 since the common start,

    P_ij^k Delta_i  and  n_i = ||Delta_i||^2,

a vector of d_ij numbers and one number. P_ij^k = P_ji^k are d_ij orthonormal rows, the same at both ends and other ones
in each round. So both ends know r_ij = P_ij (theta_i - theta_j) and, with u = Delta / ||Delta||,

    x_ij = 1 - d/(2 d_ij) ||P_ij u_i - P_ij u_j||^2,    E x_ij = cos(Delta_i, Delta_j)

and average it over rounds (cosine.py). An edge pulls where the tasks at its ends are alike:

    theta_i <- theta_i - alpha (grad f_i(theta_i) + lam sum_j w_ij P_ij^T r_ij),    w_ij = 1 or 0,

in every local step, with the pull of the round's messages. w_ij = 1 once the average is surely at least the threshold
c_ij, 0 once it is surely below, and unchanged in between: "surely" is by a number of standard errors. Updates of few
samples are noisy, so c_ij is lower there. An edge that is surely off is quiet: it speaks in some rounds only.

Clients that pull at each other stay alike whatever becomes of their tasks. One whose loss is higher than it was at
theta^0 does better to start again from there (``restart``). n_i = 0 tells it: both ends forget what they had estimated.

Neighbours that are unlike can be exchanged for others (``seek``, introductions.py).

Both ends draw the same rows and work out the same numbers, so they agree without a word on when to pull and when to
speak. (Where a codec rounds P_ij Delta_i, its sender goes by the rounded one, too; n_i travels as it is.) Messages may
be lost, though. The sign of n_i tells how the sender has decided, and w_ij = 1 takes both: whoever hears each other in
a round uses the same weight in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from ...transport.peers import Peers
from ..client import Client
from ..maps import FactoredMaps
from ..maps.base import Vectors
from ..maps.start import shared_rows, shared_transform
from ..model.architecture import Architecture
from .base import Algorithm, SettingsError, same_size
from .cosine import CosineEstimate, sampled_cosine
from .introductions import Introductions
from .sheaf_fmtl import OF_A_TRANSFORM, norm, shared_size
from .stability import StabilityWatch


@dataclass(frozen=True)
class SelectiveSheafSettings:
    name: Literal["selective-sheaf"] = "selective-sheaf"
    gamma: Annotated[float, Gt(0), Le(1), "Size of the shared vectors: d_ij = max(1, floor(gamma d))."] = 0.1
    lam: Annotated[float, Ge(0), "Weight lambda of the agreement of neighbours that are alike."] = 1.0
    threshold: Annotated[
        float,
        Ge(-1),
        Le(1),
        "c: two clients with much data are alike where the cosine between their updates is at least this.",
    ] = 0.55
    noise_samples: Annotated[
        float,
        Ge(0),
        "kappa: of so many training samples, half of an update is noise. Clients with m_i and m_j samples are alike "
        "from a cosine of c sqrt(rho_i rho_j), rho = m / (m + kappa); 0: from c.",
    ] = 12.0
    smoothing: Annotated[
        float, Ge(0), Lt(1), "How much a round's estimate of the cosine counts against that of the next one."
    ] = 0.9
    listen: Annotated[int, Ge(1), "Rounds in which an edge is only listened to, before anything is decided."] = 10
    sure: Annotated[float, Ge(0), "Standard errors between the estimate and c that it takes to decide anew."] = 2.0
    weights: Annotated[
        Literal["hard", "soft"], "w_ij of an edge that is on: 1, or the square of the estimated cosine."
    ] = "hard"
    blocks: Annotated[
        Literal["whole", "head"],
        "whole: one weight an edge; head: one for the last layer, and one for all layers before it.",
    ] = "whole"
    probe_every: Annotated[
        int, Ge(1), "An edge that is surely off speaks in every so many rounds only; 1: in all of them."
    ] = 10
    restart: Annotated[
        bool,
        "A client whose training loss is higher than it was at theta^0 starts again from there: its task has changed.",
    ] = False
    seek: Annotated[
        bool,
        "Clients introduce their neighbours to one another every probe_every rounds, and edges that are surely off "
        "make room: the graph is only where it begins.",
    ] = False


BLOCKS = {"whole": 1, "head": 2}
FEWEST = 3
"""Samples of a neighbour that was met on the way, before anything is decided: both have been learning for a while."""


class SelectiveSheaf(Algorithm):
    Settings: ClassVar[type[Any]] = SelectiveSheafSettings
    libraries = ("scipy.fft",)
    maps: FactoredMaps

    def __init__(self, settings: SelectiveSheafSettings, client: Client):
        super().__init__(settings, client)
        size = client.theta.size
        self.theta0 = client.theta.copy()
        self.blocks = block_sizes(settings, client.model)
        self.rows = {j: shared_size(settings, size, peer.parameters) for j, peer in client.neighbours.items()}
        self.chosen = shared_rows(client.seed, client.node, self.rows, size, 0)
        self.rotating = shared_transform(client.seed, client.node, self.rows, self.blocks, dtype=client.theta.dtype)
        self.maps = FactoredMaps(self.rotating)
        m_i = client.train_samples
        self.edges = {
            j: Edge(settings, self.blocks, alike_from(settings, m_i, peer.samples))
            for j, peer in client.neighbours.items()
        }
        first = [j for j, peer in client.neighbours.items() if peer.weight or not settings.seek]
        self.talks = Introductions(client.neighbours, first)
        self.loss_at_theta0 = math.nan
        self._stability = StabilityWatch()

    @classmethod
    def vectors(cls, settings: SelectiveSheafSettings, d_i: int, d_j: int, common: int = 0) -> tuple[int, ...]:
        message = shared_size(settings, d_i, d_j) + BLOCKS[settings.blocks]
        return (message, 2) if settings.seek else (message,)

    @classmethod
    def map_rows(cls, settings: SelectiveSheafSettings, d_i: int, d_j: int, common: int = 0) -> int:
        return shared_size(settings, d_i, d_j)

    @classmethod
    def numbers_kept(cls, settings: SelectiveSheafSettings, d_i: int, d_j: Sequence[int], rounds: int) -> int:
        return OF_A_TRANSFORM * d_i + 2 * sum(shared_size(settings, d_i, size) for size in d_j)

    @classmethod
    def exact(cls, settings: SelectiveSheafSettings) -> tuple[int, ...]:
        return (BLOCKS[settings.blocks], 2) if settings.seek else (BLOCKS[settings.blocks],)

    @classmethod
    def check(cls, settings: SelectiveSheafSettings, sizes: Sequence[int], edges: Sequence[tuple[int, int]]) -> None:
        same_size("algorithm.name = 'selective-sheaf'", sizes, edges)

    @classmethod
    def check_models(
        cls, settings: SelectiveSheafSettings, models: Sequence[Architecture], task: str, same_start: bool
    ) -> None:
        if not same_start:
            raise SettingsError(
                "model.same_start",
                "= false: algorithm.name = 'selective-sheaf' compares updates since a common start; set it to true",
            )
        if not all(size for each in models for size in block_sizes(settings, each)):
            raise SettingsError(
                "algorithm.blocks", "= 'head' needs a model with layers before its last one; or set it to 'whole'"
            )

    @classmethod
    def bears(cls, settings: SelectiveSheafSettings) -> Literal["missing"]:
        return "missing"  # the rows of another round do not compare

    @classmethod
    def may_be_quiet(cls, settings: SelectiveSheafSettings) -> bool:
        return settings.probe_every > 1 or settings.seek

    @classmethod
    def may_meet(cls, settings: SelectiveSheafSettings) -> bool:
        return settings.seek

    def round(self, client: Client, peers: Peers) -> None:
        theta = client.theta
        rows = {j: self.rows[j] for j in self.rows if j in self.talks.neighbours}
        self.chosen |= shared_rows(client.seed, client.node, rows, theta.size, peers.round - 1)
        self.rotating.choose(self.chosen)

        delta = theta - self.theta0
        sketches = self.maps.project(delta)  # P_ij Delta_i
        n = self._squared_norms(delta)
        quiet = {j for j in rows if self.edges[j].is_quiet(peers.round)}
        messages = {j: np.append(sketches[j], self.edges[j].signed(n)) for j in rows if j not in quiet}
        sketches |= {j: message[: -len(n)] for j, message in peers.as_heard(messages).items()}
        theirs = peers.exchange(messages, quiet=quiet)

        r, weights = {}, {}
        for j, message in theirs.items():
            sketch, n_j = np.split(message, [-len(n)])
            block = np.searchsorted(
                np.cumsum(self.blocks), self.chosen[j], side="right"
            )  # of theta, that a row belongs to
            r[j] = sketches[j] - sketch  # P_ij (theta_i - theta_j)
            weights[j] = self.edges[j].weights(~np.signbit(n_j))[block].astype(theta.dtype)
            self.edges[j].see(block, sketches[j], sketch, n, np.abs(n_j))

        before = theta.copy()
        pull = self.maps.pull_back({j: weights[j] * r[j] for j in r})
        client.learn(pull, self.settings.lam)
        self._report(client, r, weights, pull, before)
        if self.settings.restart:
            self._restart_where_lost(client)
        if self.settings.seek and peers.round > self.settings.listen and peers.round % self.settings.probe_every == 0:
            self._meet(client, peers)

    def _meet(self, client: Client, peers: Peers) -> None:
        neighbours = self.talks.neighbours
        on = {j for j in neighbours if self.edges[j].on.any()}
        off = {j for j in neighbours if self.edges[j].is_surely_off}
        words = self.talks.words(on, off, client.generator("introductions", peers.round))
        told = {j: word.astype(client.theta.dtype) for j, word in words.items()}
        for j in self.talks.hear(told, peers.exchange(told)):
            self.edges[j].listen = min(FEWEST, self.settings.listen)

    def _squared_norms(self, delta: np.ndarray) -> np.ndarray:
        """n_i of each block, as it travels."""
        return np.array([part @ part for part in np.split(delta, np.cumsum(self.blocks)[:-1])], delta.dtype)

    def _restart_where_lost(self, client: Client) -> None:
        assert client.train_loss is not None
        if math.isnan(self.loss_at_theta0):
            self.loss_at_theta0 = client.train_loss
        elif client.train_loss > self.loss_at_theta0:
            client.theta[:] = self.theta0
            self.loss_at_theta0 = math.nan
            for edge in self.edges.values():
                edge.on[:] = False

    def _report(self, client: Client, r: Vectors, weights: Vectors, pull: np.ndarray, before: np.ndarray) -> None:
        report, lam = self.report, self.settings.lam
        report.disagreements = {j: norm(vector) for j, vector in r.items()}
        pulled = sum(float(weights[j] @ vector**2) for j, vector in r.items())
        report.penalty = lam / 4 * pulled
        talks = self.talks.neighbours
        report.weights = {j: norm(weights[j]) / math.sqrt(self.rows[j]) if j in r else 0.0 for j in talks}
        report.cosines = {j: cosine for j in talks if (cosine := self.edges[j].cosine) is not None}
        if client.takes_one_full_step:
            report.gradient_norm = norm(before - client.theta) / client.alpha
        report.warnings += self._stability.see(
            models=client.steps * lam * client.alpha * norm(pull) ** 2 / pulled if pulled else 0.0,
            maps=0.0,
            steps=client.steps,
        )
        report.cause_of_divergence = self._stability.cause()

    def state_bytes(self) -> int:
        return super().state_bytes() + self.theta0.nbytes + sum(array.nbytes for array in self.state().values())

    def state(self) -> dict[str, np.ndarray]:
        """theta^0 and the rows follow from the run's seed."""
        numbers = [edge.numbers() for edge in self.edges.values()]
        return {
            "edges": np.array(numbers, np.float64).reshape(-1, len(self.blocks), 6),
            "loss_at_theta0": np.array([self.loss_at_theta0]),
            **self.talks.state(),
        }

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        for edge, numbers in zip(self.edges.values(), state["edges"].tolist(), strict=True):
            edge.load(numbers)
        self.loss_at_theta0 = float(state["loss_at_theta0"][0])
        self.talks.load(state)


class Edge:
    """What one end knows of an edge, for each block of theta that has a weight of its own."""

    def __init__(self, settings: SelectiveSheafSettings, sizes: Sequence[int], threshold: float):
        self.settings = settings
        self.sizes = sizes
        self.threshold = threshold
        self.estimates = [CosineEstimate(settings.smoothing) for _ in sizes]
        self.on = np.zeros(len(sizes), bool)
        """Whether this end would have it on."""
        self.listen = settings.listen
        """Samples that it takes at least to decide."""

    def signed(self, n: np.ndarray) -> np.ndarray:
        """n_i, with a minus where this end would have the edge off."""
        return np.where(self.on, n, -n)

    def weights(self, others: np.ndarray) -> np.ndarray:
        """w_ij; the other end's opinion is that of its message."""
        on = (self.on & others).astype(float)
        return on if self.settings.weights == "hard" else on * [max(0.0, e.mean) ** 2 for e in self.estimates]

    def see(
        self, block: np.ndarray, mine: np.ndarray, theirs: np.ndarray, n_mine: np.ndarray, n_theirs: np.ndarray
    ) -> None:
        """Takes in the sketches of a round, of which ``block`` tells the rows' blocks, and decides for the next one."""
        for b, (size, estimate) in enumerate(zip(self.sizes, self.estimates, strict=True)):
            chosen = block == b
            if n_mine[b] == 0 or n_theirs[b] == 0:  # somebody begins, or begins again
                estimate.forget()
                self.on[b], self.listen = False, self.settings.listen
            elif chosen.any():
                cosine = sampled_cosine(mine[chosen], theirs[chosen], n_mine[b], n_theirs[b], size)
                estimate.see(cosine, int(chosen.sum()), size)
            if self._is_surely_on(estimate):
                self.on[b] = True
            elif self._is_surely_off(estimate):
                self.on[b] = False

    def is_quiet(self, round: int) -> bool:
        return round % self.settings.probe_every != 0 and self.is_surely_off

    @property
    def is_surely_off(self) -> bool:
        """In all blocks."""
        return all(map(self._is_surely_off, self.estimates))

    def _is_surely_on(self, estimate: CosineEstimate) -> bool:
        enough = estimate.seen >= self.listen
        return enough and estimate.mean - self.settings.sure * estimate.error >= self.threshold

    def _is_surely_off(self, estimate: CosineEstimate) -> bool:
        enough = estimate.seen >= self.listen
        return enough and estimate.mean + self.settings.sure * estimate.error < self.threshold

    @property
    def cosine(self) -> float | None:
        """The mean over blocks, by their size; None before there is any."""
        known = [(size, e.mean) for size, e in zip(self.sizes, self.estimates, strict=True) if e.seen]
        return sum(size * mean for size, mean in known) / sum(size for size, _ in known) if known else None

    def numbers(self) -> list[list[float]]:
        """All that it knows, a row a block."""
        return [[*astuple(estimate)[1:], on, self.listen] for estimate, on in zip(self.estimates, self.on, strict=True)]

    def load(self, numbers: Sequence[Sequence[float]]) -> None:
        for block, (total, weight, variance, seen, on, listen) in enumerate(numbers):
            self.estimates[block] = CosineEstimate(self.settings.smoothing, total, weight, variance, int(seen))
            self.on[block], self.listen = bool(on), int(listen)


def alike_from(settings: SelectiveSheafSettings, m_i: int, m_j: int) -> float:
    """The cosine between two clients of m_i and m_j training samples from which they count as alike.

    An update is signal and noise. Of m samples, a share rho = m / (m + kappa) of its squared length is signal, so the
    cosine between two updates is sqrt(rho_i rho_j) times that between their signals. The same to the last bit at both
    ends.
    """
    kappa = settings.noise_samples
    return settings.threshold * math.sqrt(m_i * m_j / ((m_i + kappa) * (m_j + kappa)))


def block_sizes(settings: SelectiveSheafSettings, architecture: Architecture) -> tuple[int, ...]:
    """Numbers of theta in each block that has a weight of its own."""
    if settings.blocks == "whole":
        return (architecture.size,)
    head = sum(parameter.size for parameter in architecture.parameters()[-2:])  # weight and bias of the last layer
    return architecture.size - head, head
