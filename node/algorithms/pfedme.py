"""pFedMe (Dinh et al. 2020): clients' own models are the proximal points of a common one, by Moreau envelopes.

    client i:  w_i = w, then for each mini-batch of the local work (r = 0 ... R - 1)
                   theta_i <- theta_i - alpha (grad f_i(theta_i) + lam (theta_i - w_i))        K times on that batch
                   w_i     <- w_i - eta lam (w_i - theta_i)
    server:    w <- (1 - beta) w + beta/|S| sum_i w_i                      over the clients S of the round

The K steps find about the minimiser of f_i(theta) + lam/2 ||theta - w_i||^2, and alpha is their rate. In the paper all
clients learn in every round and S of them upload; here the others pause, which leaves w the same.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt

from .base import Client
from .server import TAKES_OLD_UPLOADS, ServerAlgorithm, Uploads


@dataclass(frozen=True)
class PFedMe(ServerAlgorithm):
    name: Literal["pfedme"] = "pfedme"
    lam: Annotated[float, Gt(0), "Weight lambda of lam/2 ||theta_i - w_i||^2."] = 15.0
    eta: Annotated[float, Gt(0), "Learning rate of w_i; eta lam is the share of the way to theta_i that it goes."] = (
        0.005
    )
    beta: Annotated[float, Gt(0), "What the server makes of the mean: 1 takes it as it is, more goes beyond it."] = 1.0
    inner_steps: Annotated[int, Ge(1), "K: gradient steps for a proximal point."] = 5

    theta_is = "own beside common"
    traits = replace(TAKES_OLD_UPLOADS, momentum=False)

    def upload(self, client: Client) -> np.ndarray:
        theta, alpha, lam, eta = client.theta, client.alpha, self.lam, self.eta
        w = client.state.w.copy()
        theta[:] = w
        for batch in client.batches():
            for _ in range(self.inner_steps):
                theta -= alpha * (client.gradient_on(batch) + lam * (theta - w))
            w -= eta * lam * (w - theta)
        return w

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        beta = self.beta
        server.theta[:] = (1 - beta) * server.theta + beta * sum(uploads.values()) / len(uploads)
