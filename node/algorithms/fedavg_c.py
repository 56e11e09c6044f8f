"""FedAvg-c (Liao et al. 2024, their baseline): FedAvg over the layers w_i that clients have in common.

client i:  (w_i, rest_i) <- local work from (w, rest_i)
server:    w <- sum_i n_i/n w_i                  over the clients of the round, n_i their training samples
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..client import Client
from .server import Uploads, weighted_mean
from .shared_layers import SharedLayers


@dataclass(frozen=True)
class FedAvgC(SharedLayers):
    name: Literal["fedavg-c"] = "fedavg-c"

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        self.w(server)[:] = weighted_mean(server, uploads)

    def reply(self, server: Client, client: int) -> np.ndarray:
        return self.w(server)
