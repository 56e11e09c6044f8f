"""Ditto (Li et al. 2021): a model of one's own beside the common one, held near to it.

    client k:  w_k <- local work from w                                    (for the common model, as in FedAvg)
               v_k <- v_k - alpha (grad f_k(v_k) + lam (v_k - w))          for each mini-batch of the local work
    server:    w   <- w + 1/|S| sum_k (w_k - w)                            over the clients S of the round

w_k - w is what travels to the server. theta is v_k at a client, w at the server.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge

from .base import Client
from .server import NEEDS_NEW_UPLOADS, ServerAlgorithm, Uploads


@dataclass(frozen=True)
class Ditto(ServerAlgorithm):
    name: Literal["ditto"] = "ditto"
    lam: Annotated[float, Ge(0), "Weight lambda of lam/2 ||v_k - w||^2, which holds a client's model near w."] = 0.1

    theta_is = "own beside common"
    traits = replace(NEEDS_NEW_UPLOADS, momentum=False)

    def upload(self, client: Client) -> np.ndarray:
        theta, w, alpha, lam = client.theta, client.state.w, client.alpha, self.lam
        v = theta.copy()
        theta[:] = w
        client.learn()
        delta = theta - w
        theta[:] = v
        for batch in client.batches():
            theta -= alpha * (client.gradient_on(batch) + lam * (theta - w))
        return delta

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        server.theta += sum(uploads.values()) / len(uploads)
