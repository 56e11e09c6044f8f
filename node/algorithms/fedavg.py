"""FedAvg (McMahan et al. 2017): clients train the common model, the server takes the mean of what they made of it.

client k:  w_k <- local work from w                  (ClientUpdate: epochs or steps of mini-batch SGD)
server:    w   <- sum_k n_k/n w_k                    over the clients of the round, n_k their training samples
"""

from dataclasses import dataclass
from typing import Literal

from .base import Client
from .server import TAKES_OLD_UPLOADS, ServerAlgorithm, Uploads, weighted_mean


@dataclass(frozen=True)
class FedAvg(ServerAlgorithm):
    name: Literal["fedavg"] = "fedavg"

    traits = TAKES_OLD_UPLOADS

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        server.theta[:] = weighted_mean(server, uploads)
