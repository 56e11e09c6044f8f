"""Sheaf-FMTL (Ben Issaid et al. 2025, Algorithm 1): neighbours agree on learned projections of their models.

theta_i <- theta_i - alpha (grad f_i(theta_i) + lam sum_j P_ij^T (P_ij theta_i - P_ji theta_j))       (18)
P_ij    <- P_ij - eta lam (P_ij theta_i - P_ji theta_j) theta_i^T                                     (19)

They descend on f(theta) + lam/2 sum over edges ||P_ij theta_i - P_ji theta_j||^2 (8), each edge once.

Several local steps a round are several steps (18): each has its own grad f_i, and all have the pull of the round's one
exchange. Models that such a round leaves as they are, are stationary for (8), however many steps each client takes.
With all steps along grad f_i first and one pull after them, it would be models that depend on the number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
from annotated_types import Ge, Gt, Le

from ...transport.peers import Peers
from ..assignment import Neighbour
from ..client import Client
from ..maps import FactoredMaps, Maps, SelectionMaps, Storage, starting_maps, store
from ..maps.base import FixedMaps, Vectors
from ..maps.start import TransformStart, shared_rows
from ..needs import Needs
from .base import Algorithm, SettingsError, same_size
from .stability import StabilityWatch

_NEED_ROWS = Needs("start", "gaussian", "uniform", "orthogonal", "identity", "shared")


@dataclass(frozen=True)
class SheafFMTLSettings:
    name: Literal["sheaf-fmtl"] = "sheaf-fmtl"
    gamma: Annotated[
        float, Gt(0), Le(1), _NEED_ROWS, "Size of the shared vectors: d_ij = max(1, floor(gamma min(d_i, d_j)))."
    ] = 0.01
    lam: Annotated[
        float, Ge(0), "Weight lambda of the neighbours' agreement in the objective (8), which counts each edge once."
    ] = 0.001
    eta: Annotated[
        float, Ge(0), "Learning rate of the restriction maps (19); 0 keeps them as they start, and sends half as much."
    ] = 0.1
    start: Annotated[
        Literal["gaussian", "uniform", "orthogonal", "identity", "shared", "selection"],
        "Restriction maps at the start. The paper's: gaussian N(0, 1), uniform U(-1, 1), orthogonal (random "
        "orthonormal rows), identity (rows of the identity plus N(0, 0.01^2)). Ours: shared (both ends of an edge have "
        "the same orthonormal rows). All times start_scale. Fixed, with eta = 0: selection (the parameters that both "
        "ends have, where clients see different features).",
    ] = "gaussian"
    start_scale: Annotated[float, Gt(0), _NEED_ROWS, "Factor on the starting maps; zero maps would never learn."] = 1.0
    server: Annotated[
        bool,
        "With selection maps: the clients talk to a server without a loss of its own; each of its parameters is the "
        "mean over the clients who have it: (16).",
    ] = False
    rotate_every: Annotated[
        int,
        Ge(0),
        "shared, with eta = 0: both ends draw new rows every so many rounds; 0 never does. Ours, not the paper's.",
    ] = 0
    exchange: Annotated[
        Literal["two-phase", "fused"],
        Needs("eta"),
        "two-phase: as Algorithm 1 is written; fused: the same iterates from one message a round, which also carries "
        "||theta||^2.",
    ] = "two-phase"
    storage: Annotated[
        Storage,
        "How maps are kept, exactly in every case: dense matrices, factored into start and history, or auto: factored "
        "until dense is cheaper.",
    ] = "auto"
    rank_cap: Annotated[
        int,
        Ge(0),
        Needs("eta"),
        "At most so many rows of history in factored maps, the rest approximated, with a bound on the error in the "
        "records; 0 keeps all, exactly.",
    ] = 0


class End(Protocol):
    """What a client's maps begin from; of ``theta`` the size and the type."""

    @property
    def node(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def theta(self) -> np.ndarray: ...
    @property
    def neighbours(self) -> Mapping[int, Neighbour]: ...


class SheafFMTL(Algorithm):
    Settings: ClassVar[type[Any]] = SheafFMTLSettings
    libraries: ClassVar[tuple[str, ...]] = ("scipy.fft", "scipy.linalg.blas")  # of structured maps, of dense ones
    maps: Maps

    def __init__(self, settings: Any, client: Client):
        super().__init__(settings, client)
        self.maps = self.starting_maps(settings, client)
        self._stability = StabilityWatch()
        self._turn = 0
        self._is_server = client.role == "server"

    @classmethod
    def starting_maps(cls, settings: Any, client: End) -> Maps:
        size = client.theta.size
        if settings.start == "selection":
            return SelectionMaps({j: np.array(peer.common) for j, peer in client.neighbours.items()}, size)
        start = starting_maps(
            settings.start,
            seed=client.seed,
            node=client.node,
            rows={j: shared_size(settings, size, peer.parameters) for j, peer in client.neighbours.items()},
            size=size,
            scale=settings.start_scale,
            dtype=client.theta.dtype,
        )
        storage: Storage = "factored" if settings.rotate_every else settings.storage
        return store(start, storage, settings.rank_cap or None)

    @classmethod
    def map_rows(cls, settings: Any, d_i: int, d_j: int, common: int = 0) -> int:
        return common if settings.start == "selection" else shared_size(settings, d_i, d_j)

    @classmethod
    def vectors(cls, settings: Any, d_i: int, d_j: int, common: int = 0) -> tuple[int, ...]:
        d_ij = cls.map_rows(settings, d_i, d_j, common)
        if settings.start == "selection":
            return (d_ij,)
        if not settings.eta:
            return (d_ij,)
        return (d_ij + 1,) if settings.exchange == "fused" else (d_ij, d_ij)

    @classmethod
    def numbers_kept(cls, settings: Any, d_i: int, d_j: Sequence[int], rounds: int) -> int:
        height = sum(shared_size(settings, d_i, size) for size in d_j)
        dense = height * d_i
        start = OF_A_TRANSFORM * d_i if settings.start in ("orthogonal", "shared", "selection") else dense
        if not settings.eta:
            return start
        history = min(rounds, settings.rank_cap or rounds) * (d_i + height)
        return (
            dense
            if settings.storage == "dense"
            else start + min(history, dense if settings.storage == "auto" else history)
        )

    @classmethod
    def check(cls, settings: Any, sizes: Sequence[int], edges: Sequence[tuple[int, int]]) -> None:
        if settings.start == "shared":
            same_size("algorithm.start = 'shared'", sizes, edges)
        if settings.rotate_every and (settings.start != "shared" or settings.eta):
            raise SettingsError(
                "algorithm.rotate_every",
                f"= {settings.rotate_every} needs start = 'shared' and eta = 0; or set it to 0",
            )
        if settings.rank_cap and settings.storage == "dense":
            raise SettingsError(
                "algorithm.rank_cap", "dense maps have no history; use storage = 'factored', or rank_cap = 0"
            )
        if settings.start == "selection" and settings.eta:
            raise SettingsError("algorithm.start", "= 'selection' are fixed maps; they need eta = 0")
        if settings.server and settings.start != "selection":
            raise SettingsError("algorithm.server", "= true needs start = 'selection'; or use algorithm.name = 'dfedu'")

    @classmethod
    def has_server(cls, settings: Any) -> bool:
        return bool(settings.server)

    @classmethod
    def bears(cls, settings: Any) -> Literal["late", "missing", "nothing"]:
        if settings.eta and settings.exchange == "fused":
            return "nothing"  # both ends follow the same r_ij
        return "missing" if settings.rotate_every else "late"  # the rows of another turn do not compare

    @classmethod
    def hardier(cls, settings: Any) -> str:
        return {"nothing": "algorithm.exchange = 'two-phase'", "missing": "algorithm.rotate_every = 0", "late": ""}[
            cls.bears(settings)
        ]

    @classmethod
    def exact(cls, settings: Any) -> tuple[int, ...]:
        return (1,) if settings.eta and settings.exchange == "fused" else ()

    @classmethod
    def may_lose(cls, settings: Any) -> Literal["entries", "digits", "nothing"]:
        if settings.server or settings.rotate_every or (settings.eta and settings.exchange == "fused"):
            return "digits"  # a server takes over what it hears; the rows of another turn do not add up
        return "entries"

    def round(self, client: Client, peers: Peers) -> None:
        if self.settings.rotate_every:
            self._rotate(client, peers.round)
        if self.settings.eta and self.settings.exchange == "fused":
            self._fused_round(client, peers)
        else:
            self._two_phase_round(client, peers)

    def _two_phase_round(self, client: Client, peers: Peers) -> None:
        theta, lam, eta = client.theta, self.settings.lam, self.settings.eta

        mine = self.maps.project(theta)
        theirs = peers.exchange(mine)  # Algorithm 1, line 5
        self._descend(client, difference(mine, theirs))  # (18)

        if eta:  # fixed maps need no second exchange
            mine = self.maps.project(theta)
            theirs = peers.exchange(mine)  # line 7
            self.maps.update(mine, difference(mine, theirs), theta, eta * lam)  # (19)

    def _fused_round(self, client: Client, peers: Peers) -> None:
        """Lines 7-8 of the round before and line 5 of this one, from one exchange.

        The message is P_ij^k theta_i^{k+1} and n_i = ||theta_i^{k+1}||^2. Both ends then know r_ij = -r_ji, and with it
        what line 5 of the next round would bring: P_ij^{k+1} theta_i - P_ji^{k+1} theta_j = (1 - c (n_i + n_j)) r_ij.
        Where a codec rounds what is sent, r_ij is that of the rounded vectors, at both ends.
        """
        theta, c = client.theta, self.settings.eta * self.settings.lam

        mine = self.maps.project(theta)
        n = theta.dtype.type(theta @ theta)
        messages = {j: np.append(vector, n) for j, vector in mine.items()}
        heard = peers.as_heard(messages)
        received = peers.exchange(messages)
        r = {j: heard[j][:-1] - received[j][:-1] for j in mine}
        if peers.round > 1:  # before the first round no map has been used yet
            self.maps.update(mine, r, theta, c)  # (19)
            r = {j: (1 - c * (n + received[j][-1])) * r[j] for j in r}
        self._descend(client, r)  # (18)

    def _descend(self, client: Client, r: Vectors) -> None:
        """(18), from the disagreements r_ij = P_ij theta_i - P_ji theta_j."""
        theta = client.theta
        before = theta.copy()
        pull = self.maps.pull_back(r)
        if self._is_server:
            assert isinstance(self.maps, FixedMaps)
            coverage = self.maps.coverage()
            theta -= pull / np.where(coverage, coverage, 1)  # f_0 = 0: exactly the mean of what its edges sent
        else:
            client.learn(pull, self.settings.lam)
        self._report(client, r, pull, before)

    def _report(self, client: Client, r: Vectors, pull: np.ndarray, before: np.ndarray) -> None:
        report, lam, eta = self.report, self.settings.lam, self.settings.eta
        report.disagreements = {j: norm(vector) for j, vector in r.items()}
        squared = sum(value**2 for value in report.disagreements.values())
        report.penalty = lam / 4 * squared
        theta_squared = float(before @ before)
        if client.takes_one_full_step and not self._is_server:
            of_theta = norm(before - client.theta) / client.alpha
            of_maps = lam**2 * squared * theta_squared if eta else 0.0
            report.gradient_norm = math.sqrt(of_theta**2 + of_maps)
        report.warnings += self._stability.see(
            models=client.steps * lam * client.alpha * norm(pull) ** 2 / squared if squared else 0.0,
            maps=eta * lam * theta_squared,
            steps=client.steps,
        )
        report.cause_of_divergence = self._stability.cause()

    def _rotate(self, client: Client, round: int) -> None:
        turn = (round - 1) // self.settings.rotate_every
        if turn != self._turn and isinstance(self.maps, FactoredMaps) and isinstance(self.maps.start, TransformStart):
            self._turn = turn
            rows = {j: part.stop - part.start for j, part in self.maps.stacking.parts.items()}
            self.maps.start.choose(shared_rows(client.seed, client.node, rows, client.theta.size, turn))


OF_A_TRANSFORM = 12
"""Vectors of d_i numbers that structured maps take at most, what their transforms make on the way included."""


def shared_size(settings: Any, d_i: int, d_j: int) -> int:
    """d_ij, the same at both ends of an edge."""
    return max(1, math.floor(settings.gamma * min(d_i, d_j) + 1e-9))  # 0.29 * 100 is 28.999999999999996


def difference(mine: Vectors, theirs: Vectors) -> dict[int, np.ndarray]:
    """r_ij of the neighbours that were heard: the terms of the others are left out."""
    return {j: mine[j] - theirs[j] for j in theirs}


def norm(vector: np.ndarray) -> float:
    return math.sqrt(float(vector @ vector))
