"""Selective sheaf: neighbours whose tasks are alike find each other in the sketches that they exchange.

Ours, not the paper's. Client i sends neighbour j, of its update Delta_i = theta_i - theta^0 since the common start,

    P_ij^k Delta_i  and  n_i = ||Delta_i||^2,

a vector of d_ij numbers and one number. P_ij^k = P_ji^k are d_ij orthonormal rows, the same at both ends and other ones
in each round. So both ends know r_ij = P_ij (theta_i - theta_j) and, with u = Delta / ||Delta||,

    x_ij = 1 - d/(2 d_ij) ||P_ij u_i - P_ij u_j||^2,    E x_ij = cos(Delta_i, Delta_j)

and average it over rounds (cosine.py). An edge pulls where the tasks at its ends are alike:

    theta_i <- theta_i - alpha (grad f_i(theta_i) + lam sum_j w_ij P_ij^T r_ij),    w_ij = 1 or 0,

w_ij = 1 once the average is surely at least the threshold c, 0 once it is surely below, and unchanged in between:
"surely" is by a number of standard errors. An edge that is surely off is quiet: it speaks in some rounds only.

Clients that pull at each other stay alike whatever becomes of their tasks. One whose loss is higher than it was at
theta^0 does better to start again from there (``restart``). n_i = 0 tells it: both ends forget what they had estimated.

Both ends draw the same rows and work out the same numbers, so they agree without a word on when to pull and when to
speak. Messages may be lost, though. The sign of n_i tells how the sender has decided, and w_ij = 1 takes both: whoever
hears each other in a round uses the same weight in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from ...transport.peers import Peers
from ..architecture import Architecture
from ..client import Client
from ..maps import FactoredMaps
from ..maps.start import shared_rows, shared_transform
from .base import Algorithm, SettingsError, same_size
from .cosine import CosineEstimate, sampled_cosine
from .sheaf_fmtl import norm, shared_size
from .stability import StabilityWatch


@dataclass(frozen=True)
class SelectiveSheafSettings:
    name: Literal["selective-sheaf"] = "selective-sheaf"
    gamma: Annotated[float, Gt(0), Le(1), "Size of the shared vectors: d_ij = max(1, floor(gamma d))."] = 0.1
    lam: Annotated[float, Ge(0), "Weight lambda of the agreement of neighbours that are alike."] = 1.0
    threshold: Annotated[
        float, Ge(-1), Le(1), "c: two clients are alike where the cosine between their updates is at least this."
    ] = 0.4
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


class SelectiveSheaf(Algorithm):
    Settings: ClassVar[type[Any]] = SelectiveSheafSettings
    maps: FactoredMaps

    def __init__(self, settings: SelectiveSheafSettings, client: Client):
        super().__init__(settings, client)
        self.start = client.theta.copy()
        self.rows = {
            j: shared_size(settings, client.theta.size, peer.parameters) for j, peer in client.neighbours.items()
        }
        self.blocks = block_sizes(settings, client.architecture)
        self.transform = shared_transform(client.seed, client.node, self.rows, self.blocks, dtype=client.theta.dtype)
        self.maps = FactoredMaps(self.transform)
        self.estimates = {j: [CosineEstimate(settings.smoothing) for _ in self.blocks] for j in client.neighbours}
        self.on = {j: np.zeros(len(self.blocks), bool) for j in client.neighbours}
        """{j: whether this end would have the edge on, (blocks,)}"""
        self.loss_at_start = math.nan
        self._stability = StabilityWatch()

    @classmethod
    def vectors(cls, settings: SelectiveSheafSettings, d_i: int, d_j: int, common: int = 0) -> tuple[int, ...]:
        return (shared_size(settings, d_i, d_j) + (2 if settings.blocks == "head" else 1),)

    @classmethod
    def check(cls, settings: SelectiveSheafSettings, sizes: Sequence[int], edges: Sequence[tuple[int, int]]) -> None:
        same_size("algorithm.name = 'selective-sheaf'", sizes, edges)

    @classmethod
    def check_models(
        cls, settings: SelectiveSheafSettings, architectures: Sequence[Architecture], same_start: bool
    ) -> None:
        if not same_start:
            raise SettingsError(
                "model.same_start",
                "= false: algorithm.name = 'selective-sheaf' compares updates since a common start; set it to true",
            )
        if settings.blocks == "head" and any(not block_sizes(settings, each)[0] for each in architectures):
            raise SettingsError(
                "algorithm.blocks", "= 'head' needs a model with layers before its last one; or set it to 'whole'"
            )

    @classmethod
    def bears(cls, settings: SelectiveSheafSettings) -> Literal["missing"]:
        return "missing"  # the rows of another round do not compare

    @classmethod
    def may_be_quiet(cls, settings: SelectiveSheafSettings) -> bool:
        return settings.probe_every > 1

    def round(self, client: Client, peers: Peers) -> None:
        rows = shared_rows(client.seed, client.node, self.rows, client.theta.size, peers.round - 1)
        self.transform.choose(rows)
        delta = client.theta - self.start
        sketches = self.maps.project(delta)  # {j: P_ij Delta_i}
        n = self._squared_norms(delta)

        quiet = {j for j in sketches if self._is_quiet(j, peers.round)}
        theirs = peers.exchange(
            {j: np.append(sketch, np.where(self.on[j], n, -n)) for j, sketch in sketches.items() if j not in quiet},
            quiet=quiet,
        )
        r, weights = {}, {}
        for j, message in theirs.items():
            sketch, signed = np.split(message, [-len(n)])
            r[j] = sketches[j] - sketch  # P_ij (theta_i - theta_j)
            block_of = self._blocks_of(rows[j])
            weights[j] = self._weights(j, ~np.signbit(signed))[block_of]
            self._see(j, block_of, sketches[j], sketch, n, np.abs(signed))
        self._descend(client, r, weights)
        if self.settings.restart:
            self._restart(client)

    def _squared_norms(self, delta: np.ndarray) -> np.ndarray:
        """n_i of each block, as it travels."""
        parts = np.split(delta, np.cumsum(self.blocks)[:-1])
        return np.array([part @ part for part in parts], delta.dtype)

    def _blocks_of(self, rows: np.ndarray) -> np.ndarray:
        """The block of theta that each row belongs to."""
        return np.searchsorted(np.cumsum(self.blocks), rows, side="right")

    def _weights(self, j: int, theirs: np.ndarray) -> np.ndarray:
        """w_ij (blocks,): both ends decide; ``theirs`` is how the other has."""
        on = self.on[j] & theirs
        if self.settings.weights == "hard":
            return on.astype(self.start.dtype)
        cosines = [max(0.0, estimate.mean) if estimate.seen else 0.0 for estimate in self.estimates[j]]
        return np.where(on, np.square(cosines), 0).astype(self.start.dtype)

    def _see(
        self, j: int, block_of: np.ndarray, mine: np.ndarray, theirs: np.ndarray, n: np.ndarray, n_theirs: np.ndarray
    ) -> None:
        """Takes the sketches of a round into the estimates, and decides with which weight the edge goes on."""
        settings = self.settings
        for block, (size, estimate) in enumerate(zip(self.blocks, self.estimates[j], strict=True)):
            chosen = block_of == block
            if n[block] == 0 or n_theirs[block] == 0:  # who starts, or starts again, is known from nothing yet
                self.on[j][block] = False
                estimate.forget()
            if n[block] > 0 and n_theirs[block] > 0 and chosen.any():
                cosine = sampled_cosine(mine[chosen], theirs[chosen], n[block], n_theirs[block], size)
                estimate.see(cosine, int(chosen.sum()), size)
            if estimate.seen >= settings.listen:
                if estimate.mean - settings.sure * estimate.error >= settings.threshold:
                    self.on[j][block] = True
                elif self._surely_off(estimate):
                    self.on[j][block] = False

    def _surely_off(self, estimate: CosineEstimate) -> bool:
        settings = self.settings
        return estimate.seen >= settings.listen and estimate.mean + settings.sure * estimate.error < settings.threshold

    def _is_quiet(self, j: int, round: int) -> bool:
        return round % self.settings.probe_every != 0 and all(map(self._surely_off, self.estimates[j]))

    def _descend(self, client: Client, r: Mapping[int, np.ndarray], weights: Mapping[int, np.ndarray]) -> None:
        """theta_i <- theta_i - alpha (grad f_i(theta_i) + lam sum_j w_ij P_ij^T r_ij)"""
        theta, alpha, lam = client.theta, client.alpha, self.settings.lam
        before = theta.copy()
        pull = self.maps.pull_back({j: weights[j] * r[j] for j in r})
        client.learn()
        theta -= alpha * lam * pull
        self._report(client, r, weights, pull, before)

    def _restart(self, client: Client) -> None:
        loss = math.inf if client.train_loss is None else client.train_loss
        if math.isnan(self.loss_at_start):
            self.loss_at_start = loss
        elif loss > self.loss_at_start:
            client.theta[:] = self.start
            self.loss_at_start = math.nan
            self.on = {j: np.zeros_like(on) for j, on in self.on.items()}

    def _report(self, client: Client, r, weights, pull: np.ndarray, before: np.ndarray) -> None:
        report, lam = self.report, self.settings.lam
        report.disagreements = {j: norm(vector) for j, vector in r.items()}
        pulled = sum(float(weights[j] @ vector**2) for j, vector in r.items())
        report.penalty = lam / 4 * pulled
        report.weights = {j: math.sqrt(np.square(weights[j]).mean()) if j in weights else 0.0 for j in self.on}
        report.cosines = {
            j: self._cosine(j) for j, estimates in self.estimates.items() if any(e.seen for e in estimates)
        }
        if client.takes_one_full_step:
            report.gradient_norm = norm(before - client.theta) / client.alpha
        report.warnings += self._stability.see(
            models=lam * client.alpha * norm(pull) ** 2 / pulled if pulled else 0.0, maps=0.0
        )
        report.cause_of_divergence = self._stability.cause()

    def _cosine(self, j: int) -> float:
        """The estimate, a mean over blocks by their size."""
        known = [(size, e.mean) for size, e in zip(self.blocks, self.estimates[j], strict=True) if e.seen]
        return sum(size * cosine for size, cosine in known) / sum(size for size, _ in known)

    def state_bytes(self) -> int:
        return super().state_bytes() + self.start.nbytes + sum(array.nbytes for array in self.state().values())

    def state(self) -> dict[str, np.ndarray]:
        """theta^0 and the rows follow from the run's seed; they are not kept."""
        estimates = [[(e.total, e.weight, e.variance, e.seen) for e in each] for each in self.estimates.values()]
        return {
            "cosine_estimates": np.array(estimates, np.float64).reshape(-1, len(self.blocks), 4),
            "edges_on": np.array(list(self.on.values()), np.uint8).reshape(-1, len(self.blocks)),
            "loss_at_start": np.array([self.loss_at_start]),
        }

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        for estimates, numbers in zip(self.estimates.values(), state["cosine_estimates"], strict=True):
            for estimate, (total, weight, variance, seen) in zip(estimates, numbers.tolist(), strict=True):
                estimate.total, estimate.weight, estimate.variance, estimate.seen = total, weight, variance, int(seen)
        self.on = dict(zip(self.on, state["edges_on"].astype(bool), strict=True))
        self.loss_at_start = float(state["loss_at_start"][0])


def block_sizes(settings: SelectiveSheafSettings, architecture: Architecture) -> tuple[int, ...]:
    """Numbers of theta in each block that has a weight of its own."""
    if settings.blocks == "whole":
        return (architecture.size,)
    head = sum(parameter.size for parameter in architecture.parameters()[-2:])  # weight and bias of the last layer
    return architecture.size - head, head
