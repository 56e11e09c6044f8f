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
samples are noisy, so c_ij is lower there. An edge that is surely off is silent: it is used in some rounds only.

Clients that pull at each other stay alike whatever becomes of their tasks. One whose loss is higher than it was at
theta^0 does better to start again from there (``restart``). n_i = 0 tells it: both ends forget what they had estimated.

Neighbours that are unlike can be exchanged for others (``seek``, introductions.py).

Both ends draw the same rows and work out the same numbers, so they agree without a word on when to pull and when to
speak. (Where a codec rounds P_ij Delta_i, its sender goes by the rounded one, too; n_i travels as it is.) Messages may
be lost, though. The sign of n_i tells how the sender has decided, and w_ij = 1 takes both: whoever hears each other in
a round uses the same weight in it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from ...assignment import Assignment
from ...maps import StoredMaps
from ...maps.base import Vectors
from ...maps.start import shared_rows, shared_transform
from ...model.architecture import Architecture
from .. import base
from ..base import Algorithm, Client, Cost, Peers, RunFacts, SettingsError, State, Traits, Vector
from ..sheaf_fmtl import OF_A_TRANSFORM, cost_of_saving, shared_size
from ..stability import StabilityWatch, norm
from .edge import Edge
from .introductions import Introductions


class SelectiveState(State):
    """theta^0 and the rows follow from the run's seed: they are not saved."""

    maps: StoredMaps

    def __init__(self, algorithm: "SelectiveSheaf", client: Client):
        size = client.theta.size
        self.theta0 = client.theta.copy()
        self.blocks = block_sizes(algorithm.blocks, client.model)
        self.rows = {j: shared_size(algorithm.gamma, size, peer.parameters) for j, peer in client.neighbours.items()}
        self.chosen = shared_rows(client.seed, client.node, self.rows, size, 0)
        self.transform = shared_transform(client.seed, client.node, self.rows, self.blocks, dtype=client.theta.dtype)
        self.maps = StoredMaps(self.transform)
        m_i = client.train_samples
        self.edges = {j: Edge(algorithm, self.blocks, m_i, peer.samples) for j, peer in client.neighbours.items()}
        first = [j for j, peer in client.neighbours.items() if peer.weight or not algorithm.seek]
        self.introductions = Introductions(client.neighbours, first)
        self.loss_at_theta0 = math.nan
        self.stability = StabilityWatch()

    def arrays(self) -> dict[str, np.ndarray]:
        numbers = [edge.numbers for edge in self.edges.values()]
        return {
            "edges": np.array(numbers).reshape(-1, len(self.blocks), 6),
            "loss_at_theta0": np.array([self.loss_at_theta0]),
            **self.introductions.arrays(),
        }

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        for edge, numbers in zip(self.edges.values(), arrays["edges"], strict=True):
            edge.numbers[:] = numbers
        self.loss_at_theta0 = float(arrays["loss_at_theta0"][0])
        self.introductions.load(arrays)

    def nbytes(self) -> int:
        return self.maps.state_bytes() + self.theta0.nbytes + super().nbytes()


@dataclass(frozen=True)
class SelectiveSheaf(Algorithm):
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

    @property
    def traits(self) -> Traits:
        return Traits(
            same_size=True,
            tolerates="missing",  # the rows of another round do not compare
            silent_edges=self.probe_every > 1 or self.seek,
            new_edges=self.seek,
            no_scenario="algorithm.seek = true: a scenario is planned for a graph that stays the same; set it to "
            "false, or leave the scenario out"
            if self.seek
            else "",
            mixes=False,
            has_maps=True,
            libraries=("scipy.fft",),
        )

    def messages(self, edge: base.Edge) -> list[Vector]:
        blocks = len(block_sizes(self.blocks, edge.model))
        sketch = Vector(shared_size(self.gamma, edge.d_i, edge.d_j) + blocks, exact=blocks)
        return [sketch, Vector(2, exact=2)] if self.seek else [sketch]

    def check(self, run: RunFacts) -> None:
        if not run.same_start:
            raise SettingsError(
                "model.same_start",
                "= false: algorithm.name = 'selective-sheaf' compares updates since a common start; set it to true",
            )
        if not all(size for model in run.models for size in block_sizes(self.blocks, model)):
            raise SettingsError(
                "algorithm.blocks", "= 'head' needs a model with layers before its last one; or set it to 'whole'"
            )

    def begin(self, client: Client) -> State:
        return SelectiveState(self, client)

    def round(self, client: Client, peers: Peers) -> None:
        theta, state, edges = client.theta, client.state, client.state.edges
        rows = {j: state.rows[j] for j in state.rows if j in state.introductions.neighbours}
        state.chosen |= shared_rows(client.seed, client.node, rows, theta.size, peers.round - 1)
        state.transform.choose(state.chosen)

        delta = theta - state.theta0
        sketches = state.maps.project(delta)  # P_ij Delta_i
        ends = np.cumsum(state.blocks)
        n = np.array([part @ part for part in np.split(delta, ends[:-1])], delta.dtype)  # n_i of each block
        silent = {j for j in rows if edges[j].is_silent(peers.round)}
        messages = {j: np.append(sketches[j], np.where(edges[j].on, n, -n)) for j in rows if j not in silent}
        sketches |= {j: message[: -len(n)] for j, message in peers.as_heard(messages).items()}
        theirs = peers.exchange(messages, quiet=silent)

        r, weights = {}, {}
        for j, message in theirs.items():
            sketch, n_j = np.split(message, [-len(n)])
            block = np.searchsorted(ends, state.chosen[j], side="right")  # of theta, that a row belongs to
            r[j] = sketches[j] - sketch  # P_ij (theta_i - theta_j)
            weights[j] = edges[j].weights(~np.signbit(n_j))[block].astype(theta.dtype)
            edges[j].see(block, sketches[j], sketch, n, np.abs(n_j))

        before = theta.copy()
        pull = state.maps.pull_back({j: weights[j] * r[j] for j in r})
        client.learn(pull, self.lam)
        self._report(client, r, weights, pull, before)
        if self.restart:
            self._restart_where_lost(client)
        if self.seek and peers.round > self.listen and peers.round % self.probe_every == 0:
            self._meet(client, peers)

    def _meet(self, client: Client, peers: Peers) -> None:
        introductions, edges = client.state.introductions, client.state.edges
        on = {j for j in introductions.neighbours if edges[j].on.any()}
        off = {j for j in introductions.neighbours if edges[j].is_surely_off}
        messages = introductions.messages(on, off, client.generator("introductions", peers.round))
        told = {j: message.astype(client.theta.dtype) for j, message in messages.items()}
        for j in introductions.hear(told, peers.exchange(told)):
            edges[j].listen[:] = min(3, self.listen)  # fewer: both have been learning for a while

    def _restart_where_lost(self, client: Client) -> None:
        assert client.train_loss is not None
        state = client.state
        if math.isnan(state.loss_at_theta0):
            state.loss_at_theta0 = client.train_loss
        elif client.train_loss > state.loss_at_theta0:
            client.theta[:] = state.theta0
            state.loss_at_theta0 = math.nan
            for edge in state.edges.values():
                edge.on[:] = False

    def _report(self, client: Client, r: Vectors, weights: Vectors, pull: np.ndarray, before: np.ndarray) -> None:
        report, state, neighbours = client.report, client.state, client.state.introductions.neighbours
        report.disagreements = {j: norm(vector) for j, vector in r.items()}
        report.weights = {j: norm(weights[j]) / math.sqrt(state.rows[j]) if j in r else 0.0 for j in neighbours}
        report.cosines = {j: cosine for j in neighbours if (cosine := state.edges[j].cosine) is not None}
        if client.takes_one_full_step:
            report.gradient_norm = norm(before - client.theta) / client.alpha
        pulled = sum(float(weights[j] @ vector**2) for j, vector in r.items())
        state.stability.tell(client, self.lam, pull, pulled)

    def cost(self, own: Assignment) -> Cost:
        d_i = own.architecture.size
        rows = [shared_size(self.gamma, d_i, peer.parameters) for peer in own.neighbours]
        return Cost(OF_A_TRANSFORM * d_i + 2 * sum(rows) + cost_of_saving(own, rows))


def block_sizes(blocks: Literal["whole", "head"], architecture: Architecture) -> tuple[int, ...]:
    """Numbers of theta in each block that has a weight of its own."""
    head = architecture.head_size
    return (architecture.size,) if blocks == "whole" else (architecture.size - head, head)
