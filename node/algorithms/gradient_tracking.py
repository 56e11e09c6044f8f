"""Gradient tracking (DIGing, Nedić, Olshevsky, Shi 2017): each client follows its estimate of the mean gradient of all.

    theta_i^{k+1} = sum_j W_ij theta_j^k - alpha y_i^k
    y_i^k         = sum_j W_ij y_j^{k-1} + grad f_i(theta_i^k) - grad f_i(theta_i^{k-1}),    y_i^0 = grad f_i(theta_i^0)

W is the run's mixing matrix; if the graph changes, that of the round. The trackers y_i always add up to the gradients
of all clients, so full gradients lead to the minimiser of the sum of all losses, however different these are. The
gradient is what the local work amounts to, (theta before - theta after) / alpha: with mini-batches that is stochastic
gradient tracking (Pu and Nedić 2021), with several steps their sum. Both vectors travel in one message, of length 2d.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...transport.peers import Peers
from ..client import Client
from .base import Algorithm, mixing_pull, same_size


@dataclass(frozen=True)
class GradientTrackingSettings:
    name: Literal["gradient-tracking"] = "gradient-tracking"


class GradientTracking(Algorithm):
    Settings = GradientTrackingSettings
    changing_graphs = True

    def __init__(self, settings: GradientTrackingSettings, client: Client):
        super().__init__(settings, client)
        self.y = np.zeros_like(client.theta)  # y^{-1} = grad f(theta^{-1}) = 0 make y^0 = grad f(theta^0)
        self.gradient = np.zeros_like(client.theta)

    @classmethod
    def vectors(cls, settings: GradientTrackingSettings, d_i: int, d_j: int, common: int = 0) -> tuple[int, ...]:
        return (2 * d_i,)

    @classmethod
    def check(cls, settings: GradientTrackingSettings, sizes: Sequence[int], edges: Sequence[tuple[int, int]]) -> None:
        same_size("algorithm.name = 'gradient-tracking'", sizes, edges)

    @classmethod
    def bears(cls, settings: GradientTrackingSettings) -> Literal["nothing"]:
        return "nothing"  # what one end of an edge gives and the other does not take is missing from sum_i y_i for good

    def round(self, client: Client, peers: Peers) -> None:
        theta, alpha = client.theta, client.alpha
        mine = np.concatenate([theta, self.y])
        theirs = peers.exchange(dict.fromkeys(client.neighbours, mine))
        mixed_theta, mixed_y = np.split(mine + mixing_pull(client, mine, theirs), 2)

        gradient = client.gradient()
        self.y = mixed_y + gradient - self.gradient
        self.gradient = gradient
        theta[:] = mixed_theta - alpha * self.y

    def state_bytes(self) -> int:
        return self.y.nbytes + self.gradient.nbytes

    def state(self) -> dict[str, np.ndarray]:
        return {"tracker": self.y, "gradient": self.gradient}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self.y, self.gradient = state["tracker"], state["gradient"]
