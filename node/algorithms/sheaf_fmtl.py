"""Sheaf-FMTL (Ben Issaid et al. 2025, Algorithm 1), and dFedU, which is Sheaf-FMTL with maps that are multiples of I.

theta_i <- theta_i - alpha (grad f_i(theta_i) + lam sum_j P_ij^T (P_ij theta_i - P_ji theta_j))       (18)
P_ij    <- P_ij - eta lam (P_ij theta_i - P_ji theta_j) theta_i^T                                     (19)

They descend on f(theta) + lam/2 sum over edges ||P_ij theta_i - P_ji theta_j||^2 (8), each edge once.

Several local steps a round are several steps (18), with the pull of the round's one exchange: models that such a round
leaves as they are, are stationary for (8), however many steps each client takes. One pull after them would not do that.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from ...topology.section import Index, Needs, NotNegative
from ..assignment import Assignment
from ..client import RoundReport
from ..edges import EdgeFacts, EdgesTable, both_ways, given_edges
from ..learned_maps import MapSettings, Owner
from ..maps import FixedMaps, Maps, Vectors, shared_rows
from .base import Algorithm, Client, Cost, Edge, Facts, Peers, RunFacts, SettingsError, State, Traits, Vector

_NO_SCENARIO_WITH_A_SERVER = (
    "algorithm.server = true: a scenario is planned for clients that all learn, and a server does not; set it to "
    "false, or leave the scenario out"
)


def warn(crossed: dict[str, str], report: RoundReport, *, models: float, maps: float, steps: int = 1) -> None:
    """Tells which of two numbers, each harmless while well below 1, is above it and drives the other up: once, with the
    keys that help. ``crossed`` is {number: the warning that told}; the first is to blame for infinite models.

    ``models``: R lam alpha ||P||^2 for R local steps a round, where ||P||^2 is seen as ||P^T r||^2 / ||r||^2 (never
    more than the true value, and equal to it when (18) runs away). ``maps``: eta lam ||theta||^2 of one client; (19)
    multiplies the disagreement over an edge by 1 - eta lam (||theta_i||^2 + ||theta_j||^2), which grows once both ends
    are above 1."""
    times, or_else = "", " or training.alpha"
    if steps > 1:
        times, or_else = f"{steps} local steps: {steps} ", ", training.alpha or the local steps"
    for which, value, formula, keys in (
        ("maps", maps, "eta lam ||theta||^2", "algorithm.eta or algorithm.lam"),
        ("models", models, f"{times}lam alpha ||P||^2", f"algorithm.lam, algorithm.start_scale{or_else}"),
    ):
        # where one of them is infinite already, neither tells of the cause
        if value > 1 and which not in crossed and math.isfinite(models) and math.isfinite(maps):
            crossed[which] = f"{formula} = {value:.3g} is above 1: the {which} may diverge; lower {keys}"
            report.warnings.append(crossed[which])
    report.cause_of_divergence = next(iter(crossed.values()), report.cause_of_divergence)


def exchanged(client: Client, peers: Peers) -> tuple[Vectors, Vectors]:
    """Returns P_ij theta_i of all neighbours, and r_ij = P_ij theta_i - P_ji theta_j of those that were heard."""
    mine = client.state.maps.project(client.theta)
    theirs = peers.exchange(mine)
    return mine, {j: mine[j] - theirs[j] for j in theirs}


def weighed(r: Vectors, weights: Vectors | None) -> Vectors:
    """Returns {j: a_ij r_ij}; without ``weights``, {j: (d_ij,)}, all a_ij are 1."""
    return r if weights is None else {j: weights[j] * r[j] for j in r}


def descend(client: Client, lam: float, r: Vectors, weights: Vectors | None = None, eta: float = 0.0) -> None:
    """Does (18), where edges are weighed with ``weights`` {j: (d_ij,)} on the rows of P_ij, and tells the report.
    ``eta`` is the step of (19), which the caller does: the gradient's norm and the warning need it."""
    theta, maps, report = client.theta, client.state.maps, client.report
    before = theta.copy()
    pull = maps.pull_back(weighed(r, weights))
    if client.role == "server":
        assert isinstance(maps, FixedMaps)
        coverage = maps.coverage()
        theta -= pull / np.where(coverage, coverage, 1)  # f_0 = 0: exactly the mean of what its edges sent
    else:
        client.learn(pull, lam)

    report.disagreements = {j: norm(vector) for j, vector in r.items()}
    if weights is None:
        squared = sum(value**2 for value in report.disagreements.values())
    else:
        squared = sum(float(weights[j] @ vector**2) for j, vector in r.items())
    report.penalty = lam / 4 * squared
    theta_squared = maps.curvature(before) if eta else 0.0
    if client.takes_one_full_step and client.role == "client" and not (eta and maps.is_constrained):
        of_theta, slope = norm(before - theta) / client.alpha, squared
        if weights is not None:
            slope = sum(norm(vector) ** 2 for vector in weighed(r, weights).values())
        report.gradient_norm = math.sqrt(of_theta**2 + (lam**2 * slope * theta_squared if eta else 0.0))
    models = client.steps * lam * client.alpha * norm(pull) ** 2 / squared if squared else 0.0
    warn(client.state._crossed, report, models=models, maps=eta * lam * theta_squared, steps=client.steps)


class SheafAlgorithm(Algorithm):
    """Descends on the objective (8) with maps of one kind or another; by itself with fixed ones."""

    lam: float
    eta: float = 0.0
    start: str = "selection"

    def restriction_maps(self, of: Client | Owner) -> Maps:
        """Returns those of a client before the first round."""
        raise NotImplementedError

    def begin(self, client: Client) -> State:
        return State(maps=self.restriction_maps(client), _weights=None, _crossed={}, _period=0)

    def round(self, client: Client, peers: Peers) -> None:
        _, r = exchanged(client, peers)
        descend(client, self.lam, r, client.state._weights, self.eta)


@dataclass(frozen=True)
class DFedU(SheafAlgorithm):
    """dFedU (Dinh et al. 2022), conventional federated multi-task learning: Sheaf-FMTL with P_ij = sqrt(a_ij) I, fixed.

    theta_i <- theta_i - alpha (grad f_i(theta_i) + lam sum_j a_ij (theta_i - theta_j))"""

    name: Literal["dfedu"] = "dfedu"
    lam: NotNegative = 0.001
    """Weight lambda of the neighbours' agreement: lam/2 a_ij ||theta_i - theta_j||^2 for each edge, once."""
    weights: Literal["ones", "mixing"] = "ones"
    """Weights a_ij of the edges: all 1, as in the paper's experiments, or the run's mixing weights W_ij."""
    edges: EdgesTable = EdgesTable()
    server: bool = False
    """The clients talk to a server without a loss of its own, whose model is the mean of theirs: (15)."""

    @property
    def traits(self) -> Traits:
        return Traits(
            same_size=True,
            codec_may_drop="digits" if self.server else "entries",  # a server takes over what it hears
            server="exchanges" if self.server else "none",
            no_scenario=_NO_SCENARIO_WITH_A_SERVER if self.server else "",
            mixes=self.weights == "mixing",
            has_maps=True,
        )

    def check(self, run: RunFacts) -> None:
        if self.edges.is_given and self.weights == "mixing":
            raise SettingsError("algorithm.weights", "= 'mixing' and algorithm.edges both give a_ij; leave one out")

    def facts(self, run: RunFacts) -> Facts:
        if not self.edges.is_given:
            return Facts()
        sizes = [model.size for model in run.models]
        return Facts(edges=both_ways(given_edges(self.edges, run.graph.edges, sizes, with_rows=False)))

    def restriction_maps(self, of: Client | Owner) -> Maps:
        mixing = self.weights == "mixing"
        a = {j: peer.weight if mixing else EdgeFacts.of(peer.facts).a for j, peer in of.neighbours.items()}
        return FixedMaps(of.theta.size, dict.fromkeys(a, slice(None)), a)


@dataclass(frozen=True)
class SheafFMTL(MapSettings, SheafAlgorithm):
    """Sheaf-FMTL (Ben Issaid et al. 2025, Algorithm 1): neighbours agree on learned projections of their models."""

    name: Literal["sheaf-fmtl"] = "sheaf-fmtl"
    lam: NotNegative = 0.001
    """Weight lambda of the neighbours' agreement in the objective (8), which counts each edge once."""
    eta: NotNegative = 0.1
    """Learning rate of the restriction maps (19); 0 keeps them as they start, and sends half as much."""
    edges: EdgesTable = EdgesTable()
    server: bool = False
    """With selection maps: the clients talk to a server without a loss of its own; each of its parameters is the mean
    over the clients who have it: (16)."""
    rotate_every: Index = 0
    """shared, with eta = 0: both ends draw new rows every so many rounds; 0 never does. Ours, not the paper's."""
    exchange: Annotated[Literal["two-phase", "fused"], Needs("eta")] = "two-phase"
    """two-phase: as Algorithm 1 is written; fused: the same iterates from one message a round, which also carries
    ||theta||^2."""

    @property
    def is_fused(self) -> bool:
        return bool(self.eta) and self.exchange == "fused"

    @property
    def traits(self) -> Traits:
        fused, rotates = self.is_fused, bool(self.rotate_every)
        keeps = "algorithm.exchange = 'two-phase'" if fused else "algorithm.rotate_every = 0" if rotates else ""
        return Traits(
            # both ends follow the same r_ij; the rows of another period do not compare
            tolerates="nothing" if fused else "missing" if rotates else "late",
            more_tolerant=keeps,
            # a server takes over what it hears; the rows of another period do not add up
            codec_may_drop="digits" if self.server or rotates or fused else "entries",
            server="exchanges" if self.server else "none",
            no_scenario=_NO_SCENARIO_WITH_A_SERVER if self.server else "",
            mixes=False,
            has_maps=True,
            libraries=("scipy.fft", "scipy.linalg.blas"),  # of structured maps, of dense ones
        )

    def messages(self, edge: Edge) -> list[Vector]:
        d_ij = self.rows(edge.d_i, edge.d_j, EdgeFacts.of(edge.facts))
        if self.is_fused:
            return [Vector(d_ij + 1, exact=1)]
        return [Vector(d_ij)] * (2 if self.eta else 1)

    def check(self, run: RunFacts) -> None:
        if self.start == "shared":
            run.require_same_size("algorithm.start = 'shared'")
        key, text = self.unfit(fused=self.is_fused, server=self.server, learns=bool(self.eta))
        if self.rotate_every and (self.start != "shared" or self.eta):
            key, text = "rotate_every", f"= {self.rotate_every} needs start = 'shared' and eta = 0; or set it to 0"
        elif self.server and self.start != "selection":
            key, text = "server", "= true needs start = 'selection'; or use algorithm.name = 'dfedu'"
        if key:
            raise SettingsError(f"algorithm.{key}", text)

    def facts(self, run: RunFacts) -> Facts:
        return Facts(edges=self.edge_facts(run, self.edges, learns=bool(self.eta)))

    def restriction_maps(self, of: Client | Owner) -> Maps:
        return (replace(self, storage="factored") if self.rotate_every else self).maps(of)

    def begin(self, client: Client) -> State:
        state, a = super().begin(client), {j: EdgeFacts.of(peer.facts).a for j, peer in client.neighbours.items()}
        maps = state.maps
        if maps and set(a.values()) - {1.0} and not isinstance(maps, FixedMaps):  # these have sqrt(a_ij) in them
            state._weights = {j: np.full(d_ij, a[j], client.theta.dtype) for j, d_ij in maps.stacking.rows.items()}
        return state

    def round(self, client: Client, peers: Peers) -> None:
        if self.is_fused:
            self._fused_round(client, peers)
            return
        state, maps = client.state, client.state.maps
        period = (peers.round - 1) // self.rotate_every if self.rotate_every else 0
        if period != state._period:  # both ends draw new rows
            state._period = period
            maps.start.choose(shared_rows(client.seed, client.node, maps.stacking.rows, maps.start.size, period))

        super().round(client, peers)  # Algorithm 1, line 5, and (18)
        if self.eta:  # fixed maps need no second exchange
            mine, r = exchanged(client, peers)  # line 7
            maps.update(mine, weighed(r, state._weights), client.theta, self.eta * self.lam)  # (19)
            maps.constrain()  # onto the set that they are to stay in, if any

    def _fused_round(self, client: Client, peers: Peers) -> None:
        """Lines 7-8 of the round before and line 5 of this one, from one exchange. The message is P_ij^k theta_i^{k+1}
        and n_i = ||theta_i^{k+1}||^2. Both ends then know r_ij = -r_ji, and with it what line 5 of the next round would
        bring: P_ij^{k+1} theta_i - P_ji^{k+1} theta_j = (1 - c a_ij (n_i + n_j)) r_ij. Where a codec rounds what is
        sent, r_ij is that of the rounded vectors, at both ends."""
        theta, maps, a, c = client.theta, client.state.maps, client.state._weights, self.eta * self.lam

        mine = maps.project(theta)
        n = theta.dtype.type(maps.curvature(theta))
        messages = {j: np.append(vector, n) for j, vector in mine.items()}
        heard = peers.as_heard(messages)
        received = peers.exchange(messages)
        r = {j: heard[j][:-1] - received[j][:-1] for j in mine}
        if peers.round > 1:  # before the first round no map has been used yet
            maps.update(mine, weighed(r, a), theta, c)  # (19)
            r = {j: (1 - c * (1.0 if a is None else a[j]) * (n + received[j][-1])) * r[j] for j in r}
        descend(client, self.lam, r, a, self.eta)  # (18)

    def cost(self, own: Assignment) -> Cost:
        if own.role == "server":
            return Cost()
        d_i, learns = own.architecture.size, bool(self.eta)
        rows = [self.rows(d_i, peer.parameters, EdgeFacts.of(peer.facts)) for peer in own.neighbours]
        return Cost(self.numbers(own.architecture, rows, own.run.rounds, learns=learns))


def norm(vector: np.ndarray) -> float:
    return math.sqrt(float(vector.dot(vector)))
