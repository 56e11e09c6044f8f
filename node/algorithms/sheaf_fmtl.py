"""Sheaf-FMTL (Ben Issaid et al. 2025, Algorithm 1), and dFedU, which is Sheaf-FMTL with maps that are multiples of I.

theta_i <- theta_i - alpha (grad f_i(theta_i) + lam sum_j P_ij^T (P_ij theta_i - P_ji theta_j))       (18)
P_ij    <- P_ij - eta lam (P_ij theta_i - P_ji theta_j) theta_i^T                                     (19)

They descend on f(theta) + lam/2 sum over edges ||P_ij theta_i - P_ji theta_j||^2 (8), each edge once.

Several local steps a round are several steps (18), with the pull of the round's one exchange: models that such a round
leaves as they are, are stationary for (8), however many steps each client takes. One pull after them would not do that.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Le

from ...topology.section import Index, Needs, NotNegative, Positive
from ..assignment import Assignment, Neighbour
from ..client import RoundReport
from ..maps import FixedMaps, Maps, Vectors, shared_rows, starting_maps
from ..stored_maps import Storage, StoredMaps
from .base import Algorithm, Client, Cost, Edge, Facts, Peers, RunFacts, SettingsError, State, Traits, Vector

_NEED_ROWS = Needs("start", "gaussian", "uniform", "orthogonal", "identity", "shared")

_NO_SCENARIO_WITH_A_SERVER = (
    "algorithm.server = true: a scenario is planned for clients that all learn, and a server does not; set it to "
    "false, or leave the scenario out"
)

OF_A_TRANSFORM = 12
"""Vectors of d_i numbers that structured maps take at most, what their transforms make on the way included."""


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


def descend(client: Client, lam: float, r: Vectors, weights: Vectors | None = None, eta: float = 0.0) -> None:
    """Does (18), where edges are weighed with ``weights`` {j: (d_ij,)} on the rows of P_ij, and tells the report.
    ``eta`` is the step of (19), which the caller does: the gradient's norm and the warning need it."""
    theta, maps, report = client.theta, client.state.maps, client.report
    before = theta.copy()
    pull = maps.pull_back(r if weights is None else {j: weights[j] * r[j] for j in r})
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
    theta_squared = float(before @ before) if eta else 0.0
    if client.takes_one_full_step and client.role == "client":
        of_theta = norm(before - theta) / client.alpha
        report.gradient_norm = math.sqrt(of_theta**2 + (lam**2 * squared * theta_squared if eta else 0.0))
    models = client.steps * lam * client.alpha * norm(pull) ** 2 / squared if squared else 0.0
    warn(client.state._crossed, report, models=models, maps=eta * lam * theta_squared, steps=client.steps)


class SheafAlgorithm(Algorithm):
    """Descends on the objective (8) with maps of one kind or another; by itself with fixed ones."""

    lam: float
    eta: float = 0.0
    start: str = "selection"

    def restriction_maps(self, node: int, seed: int, theta: np.ndarray, neighbours: Mapping[int, Neighbour]) -> Maps:
        """Returns those of a client before the first round; of ``theta`` the size and the type are used."""
        raise NotImplementedError

    def begin(self, client: Client) -> State:
        maps = self.restriction_maps(client.node, client.seed, client.theta, client.neighbours)
        return State(maps=maps, _crossed={}, _period=0)

    def round(self, client: Client, peers: Peers) -> None:
        _, r = exchanged(client, peers)
        descend(client, self.lam, r, eta=self.eta)


@dataclass(frozen=True)
class DFedU(SheafAlgorithm):
    """dFedU (Dinh et al. 2022), conventional federated multi-task learning: Sheaf-FMTL with P_ij = sqrt(a_ij) I, fixed.

    theta_i <- theta_i - alpha (grad f_i(theta_i) + lam sum_j a_ij (theta_i - theta_j))"""

    name: Literal["dfedu"] = "dfedu"
    lam: NotNegative = 0.001
    """Weight lambda of the neighbours' agreement: lam/2 a_ij ||theta_i - theta_j||^2 for each edge, once."""
    weights: Literal["ones", "mixing"] = "ones"
    """Weights a_ij of the edges: all 1, as in the paper's experiments, or the run's mixing weights W_ij."""
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

    def restriction_maps(self, node: int, seed: int, theta: np.ndarray, neighbours: Mapping[int, Neighbour]) -> Maps:
        a = {j: peer.weight if self.weights == "mixing" else 1.0 for j, peer in neighbours.items()}
        return FixedMaps(theta.size, dict.fromkeys(a, slice(None)), a)


@dataclass(frozen=True)
class SheafFMTL(SheafAlgorithm):
    """Sheaf-FMTL (Ben Issaid et al. 2025, Algorithm 1): neighbours agree on learned projections of their models."""

    name: Literal["sheaf-fmtl"] = "sheaf-fmtl"
    gamma: Annotated[Positive, Le(1), _NEED_ROWS] = 0.01
    """Size of the shared vectors: d_ij = max(1, floor(gamma min(d_i, d_j)))."""
    lam: NotNegative = 0.001
    """Weight lambda of the neighbours' agreement in the objective (8), which counts each edge once."""
    eta: NotNegative = 0.1
    """Learning rate of the restriction maps (19); 0 keeps them as they start, and sends half as much."""
    start: Literal["gaussian", "uniform", "orthogonal", "identity", "shared", "selection"] = "gaussian"
    """Restriction maps at the start. The paper's: gaussian N(0, 1), uniform U(-1, 1), orthogonal (random orthonormal
    rows), identity (rows of the identity plus N(0, 0.01^2)). Ours: shared (both ends of an edge have the same
    orthonormal rows). All times start_scale. Fixed, with eta = 0: selection (the parameters that both ends have, where
    clients see different features)."""
    start_scale: Annotated[Positive, _NEED_ROWS, "Factor on the starting maps; zero maps would never learn."] = 1.0
    server: bool = False
    """With selection maps: the clients talk to a server without a loss of its own; each of its parameters is the mean
    over the clients who have it: (16)."""
    rotate_every: Index = 0
    """shared, with eta = 0: both ends draw new rows every so many rounds; 0 never does. Ours, not the paper's."""
    exchange: Annotated[Literal["two-phase", "fused"], Needs("eta")] = "two-phase"
    """two-phase: as Algorithm 1 is written; fused: the same iterates from one message a round, which also carries
    ||theta||^2."""
    storage: Storage = "auto"
    """How maps are kept, exactly in every case: dense matrices, factored into start and history, or auto: factored
    until dense is cheaper."""
    rank_cap: Annotated[Index, Needs("eta")] = 0
    """At most so many rows of history in factored maps, the rest approximated, with a bound on the error in the
    records; 0 keeps all, exactly."""

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
        d_ij = self._rows(edge.d_i, edge.d_j, edge.facts)
        if self.is_fused:
            return [Vector(d_ij + 1, exact=1)]
        return [Vector(d_ij)] * (2 if self.eta else 1)

    def check(self, run: RunFacts) -> None:
        if self.start == "shared":
            run.require_same_size("algorithm.start = 'shared'")
        key, text = "", ""
        if self.rotate_every and (self.start != "shared" or self.eta):
            key, text = "rotate_every", f"= {self.rotate_every} needs start = 'shared' and eta = 0; or set it to 0"
        elif self.rank_cap and self.storage == "dense":
            key, text = "rank_cap", "dense maps have no history; use storage = 'factored', or rank_cap = 0"
        elif self.start == "selection" and self.eta:
            key, text = "start", "= 'selection' are fixed maps; they need eta = 0"
        elif self.server and self.start != "selection":
            key, text = "server", "= true needs start = 'selection'; or use algorithm.name = 'dfedu'"
        if key:
            raise SettingsError(f"algorithm.{key}", text)

    def facts(self, run: RunFacts) -> Facts:
        """Tells, with selection maps, which coordinates of one's own theta the other end of an edge has, too."""
        if self.start != "selection":
            return Facts()
        return Facts(edges={ends: common_coordinates(run, *ends) for e in run.graph.edges for ends in (e, e[::-1])})

    def restriction_maps(self, node: int, seed: int, theta: np.ndarray, neighbours: Mapping[int, Neighbour]) -> Maps:
        if self.start == "selection":
            return FixedMaps(theta.size, {j: np.array(peer.facts) for j, peer in neighbours.items()})
        rows = {j: shared_size(self.gamma, theta.size, peer.parameters) for j, peer in neighbours.items()}
        start = starting_maps(self.start, seed=seed, node=node, rows=rows, theta=theta, scale=self.start_scale)
        return StoredMaps(start, "factored" if self.rotate_every else self.storage, self.rank_cap or None)

    def round(self, client: Client, peers: Peers) -> None:
        if self.is_fused:
            self._fused_round(client, peers)
            return
        state, maps = client.state, client.state.maps
        period = (peers.round - 1) // self.rotate_every if self.rotate_every else 0
        if period != state._period:  # both ends draw new rows
            state._period = period
            maps.start.choose(shared_rows(client.seed, client.node, maps.stacking.rows, client.theta.size, period))

        super().round(client, peers)  # Algorithm 1, line 5, and (18)
        if self.eta:  # fixed maps need no second exchange
            mine, r = exchanged(client, peers)  # line 7
            maps.update(mine, r, client.theta, self.eta * self.lam)  # (19)

    def _fused_round(self, client: Client, peers: Peers) -> None:
        """Lines 7-8 of the round before and line 5 of this one, from one exchange. The message is P_ij^k theta_i^{k+1}
        and n_i = ||theta_i^{k+1}||^2. Both ends then know r_ij = -r_ji, and with it what line 5 of the next round would
        bring: P_ij^{k+1} theta_i - P_ji^{k+1} theta_j = (1 - c (n_i + n_j)) r_ij. Where a codec rounds what is sent,
        r_ij is that of the rounded vectors, at both ends."""
        theta, maps, c = client.theta, client.state.maps, self.eta * self.lam

        mine = maps.project(theta)
        n = theta.dtype.type(theta @ theta)
        messages = {j: np.append(vector, n) for j, vector in mine.items()}
        heard = peers.as_heard(messages)
        received = peers.exchange(messages)
        r = {j: heard[j][:-1] - received[j][:-1] for j in mine}
        if peers.round > 1:  # before the first round no map has been used yet
            maps.update(mine, r, theta, c)  # (19)
            r = {j: (1 - c * (n + received[j][-1])) * r[j] for j in r}
        descend(client, self.lam, r, eta=self.eta)  # (18)

    def _rows(self, d_i: int, d_j: int, common: Sequence[int]) -> int:
        return len(common) if self.start == "selection" else shared_size(self.gamma, d_i, d_j)

    def cost(self, own: Assignment) -> Cost:
        d_i, rounds = own.architecture.size, own.run.rounds
        rows = [self._rows(d_i, peer.parameters, peer.facts) for peer in own.neighbours]
        dense = sum(rows) * d_i
        if own.role == "server":
            return Cost()
        if self.eta and self.storage == "dense":
            return Cost(dense)
        start = OF_A_TRANSFORM * d_i if self.start in ("orthogonal", "shared", "selection") else dense
        history = min(rounds, self.rank_cap or rounds) * (d_i + sum(rows)) if self.eta else 0
        return Cost(start + (min(history, dense) if self.storage == "auto" else history))


def norm(vector: np.ndarray) -> float:
    return math.sqrt(float(vector @ vector))


def shared_size(gamma: float, d_i: int, d_j: int) -> int:
    """Returns d_ij, the same at both ends of an edge."""
    return max(1, math.floor(gamma * min(d_i, d_j) + 1e-9))  # 0.29 * 100 is 28.999999999999996


def common_coordinates(run: RunFacts, i: int, j: int) -> tuple[int, ...]:
    """Returns the coordinates of client i's theta, of a linear model, that client j has too: the weights of the
    features that both see, and the biases. A server sees all. Raises SettingsError where there are none."""
    server = tuple(range(math.prod(run.models[-1].input_shape))) if None not in run.features else None
    mine, theirs = (run.features[node] if node < len(run.features) else server for node in (i, j))
    if mine is None or theirs is None:
        raise SettingsError(
            "algorithm.start = 'selection'",
            f"clients {i} and {j} have no parameter in common; set data.features_held below 1, or choose another start",
        )
    outputs = run.models[i].outputs
    common = np.append(np.tile(np.isin(mine, theirs), outputs), np.ones(outputs, bool))
    return tuple(np.flatnonzero(common).tolist())
