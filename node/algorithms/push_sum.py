"""Stochastic gradient push (Assran et al. 2019): push-sum averages with weights that the sender alone chooses.

    x_i <- x_i - alpha grad f_i(z_i)
    x_i <- sum_j P_ij x_j,    w_i <- sum_j P_ij w_j,    z_i = x_i / w_i,    w_i^0 = 1

P_ij = 1 / (1 + outdeg_j): client j gives itself and each client it sends to the same share. The columns of P sum to 1
and its rows need not, so that no client has to know another's degree, and arcs may go one way; dividing by w takes out
the bias of the rows. z is the model (theta), x = w z. The weight travels as the last number of a message, of length
d + 1. With more local work than one step, its whole change takes the gradient step's place. The run's mixing weights W
are not used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...transport.peers import Peers
from ..client import Client
from .base import Algorithm, same_size


@dataclass(frozen=True)
class PushSumSettings:
    name: Literal["push-sum"] = "push-sum"


class PushSum(Algorithm):
    Settings = PushSumSettings
    changing_graphs = True
    directed_graphs = "all"

    def __init__(self, settings: PushSumSettings, client: Client):
        super().__init__(settings, client)
        self.w = np.ones(1, client.theta.dtype)

    @classmethod
    def mixes(cls, settings: PushSumSettings) -> bool:
        return False

    @classmethod
    def vectors(cls, settings: PushSumSettings, d_i: int, d_j: int, common: int = 0) -> tuple[int, ...]:
        return (d_i + 1,)

    @classmethod
    def check(cls, settings: PushSumSettings, sizes: Sequence[int], edges: Sequence[tuple[int, int]]) -> None:
        same_size("algorithm.name = 'push-sum'", sizes, edges)

    @classmethod
    def bears(cls, settings: PushSumSettings) -> Literal["nothing"]:
        return "nothing"  # sum_i x_i and sum_i w_i lose the share that is not used, or gain one that is used twice

    def round(self, client: Client, peers: Peers) -> None:
        z, alpha = client.theta, client.alpha
        x = self.w * z - alpha * client.gradient()
        share = np.concatenate([x, self.w]) / (1 + len(client.successors))
        theirs = peers.exchange(dict.fromkeys(client.successors, share), client.predecessors)
        x, self.w = np.split(sum(theirs.values(), start=share), [-1])
        z[:] = x / self.w

    def state_bytes(self) -> int:
        return self.w.nbytes

    def state(self) -> dict[str, np.ndarray]:
        return {"push_sum_weight": self.w}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self.w = state["push_sum_weight"]
