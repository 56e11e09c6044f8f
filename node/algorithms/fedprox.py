"""FedProx: FedAvg whose local steps are held near the common model."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from ...topology.section import NotNegative
from .base import Client
from .common_model import FedAvg
from .server import TAKES_OLD_UPLOADS


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedProx (Li et al. 2020): FedAvg whose local steps are held near the common model w.

    client k:  w_k <- w_k - alpha (grad f_k(w_k) + mu (w_k - w))     for each mini-batch of the local work
    server:    w   <- sum_k n_k/n w_k"""

    name: Literal["fedprox"] = "fedprox"  # type: ignore[assignment]
    mu: Annotated[NotNegative, "Weight of mu/2 ||w_k - w||^2, which holds local steps near w."] = 0.1

    traits = replace(TAKES_OLD_UPLOADS, momentum=False)

    def upload(self, client: Client) -> np.ndarray:
        w = client.theta.copy()
        for batch in client.batches():
            client.theta -= client.alpha * (client.gradient_on(batch) + self.mu * (client.theta - w))
        return client.theta
