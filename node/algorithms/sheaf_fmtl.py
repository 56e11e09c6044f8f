"""Sheaf-FMTL (Ben Issaid et al. 2025, Algorithm 1): neighbours agree on learned projections of their models.

theta_i <- theta_i - alpha (grad f_i(theta_i) + lam sum_j P_ij^T (P_ij theta_i - P_ji theta_j))       (18)
P_ij    <- P_ij - eta lam (P_ij theta_i - P_ji theta_j) theta_i^T                                     (19)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le

from ...transport.peers import Peers
from ..client import Client
from ..maps import DenseMaps, Maps
from ..maps.starts import StartKind
from .base import Algorithm


@dataclass(frozen=True)
class Settings:
    name: Literal["sheaf-fmtl"] = "sheaf-fmtl"
    gamma: Annotated[float, Gt(0), Le(1), "Size of the shared vectors: d_ij = max(1, floor(gamma min(d_i, d_j)))."] = (
        0.01
    )
    lam: Annotated[float, Ge(0), "Weight lambda of the neighbours' agreement in the objective (17)."] = 0.001
    eta: Annotated[float, Ge(0), "Learning rate of the restriction maps (19); 0 keeps them as they start."] = 0.1
    start: Annotated[
        StartKind,
        "Restriction maps at the start: gaussian N(0, 1), uniform U(-1, 1), orthogonal rows, or identity rows plus "
        "N(0, 0.01^2); all times start_scale.",
    ] = "gaussian"
    start_scale: Annotated[float, Gt(0), "Factor on the starting maps; zero maps would never learn."] = 1.0


class SheafFMTL(Algorithm):
    Settings = Settings

    def __init__(self, settings: Any, client: Client):
        super().__init__(settings, client)
        self.maps = self.starting_maps(client)

    def starting_maps(self, client: Client) -> Maps:
        rows = {
            j: shared_size(self.settings, client.theta.size, peer.parameters) for j, peer in client.neighbours.items()
        }
        return DenseMaps.start(client, rows, kind=self.settings.start, scale=self.settings.start_scale)

    @classmethod
    def vectors(cls, settings: Settings, d_i: int, d_j: int) -> tuple[int, ...]:
        d_ij = shared_size(settings, d_i, d_j)
        return (d_ij, d_ij) if settings.eta else (d_ij,)

    def round(self, client: Client, peers: Peers) -> None:
        theta, lam, eta = client.theta, self.settings.lam, self.settings.eta

        mine = self.maps.project(theta)
        theirs = peers.exchange(mine)  # Algorithm 1, line 5
        r = difference(mine, theirs)
        pull = self.maps.pull_back(r)
        client.learn()
        theta -= client.alpha * lam * pull  # (18)
        self.disagreement = norm(r)

        if eta:  # fixed maps need no second exchange
            mine = self.maps.project(theta)
            theirs = peers.exchange(mine)  # line 7
            self.maps.update(difference(mine, theirs), theta, eta * lam)  # (19)

    def state_bytes(self) -> int:
        return self.maps.state_bytes()

    def state(self) -> dict[str, np.ndarray]:
        return self.maps.state()

    def dense_maps(self) -> dict[int, np.ndarray]:
        return {j: self.maps.dense(j) for j in self.maps.neighbours}


def shared_size(settings: Settings, d_i: int, d_j: int) -> int:
    """d_ij, the same at both ends of an edge."""
    return max(1, math.floor(settings.gamma * min(d_i, d_j) + 1e-9))  # 0.29 * 100 is 28.999999999999996


def difference(mine: Mapping[int, np.ndarray], theirs: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
    return {j: mine[j] - theirs[j] for j in mine}


def norm(vectors: Mapping[int, np.ndarray]) -> float:
    return math.sqrt(sum(float(vector @ vector) for vector in vectors.values()))
