"""Per-FedAvg (Fallah et al. 2020): a common model from which one gradient step makes a good one of one's own.

    client i:  w_i = w, then for each step of the local work, D, D', D'' mini-batches of their own:
                   v   = grad f_i(w_i - alpha grad f_i(w_i; D); D')
                   w_i <- w_i - beta v                                     first-order
                   w_i <- w_i - beta (v - alpha H v)                       hessian-free,
                          H v = (grad f_i(w_i + delta v; D'') - grad f_i(w_i - delta v; D'')) / (2 delta)
    server:    w <- 1/|S| sum_i w_i                                        over the clients S of the round

The paper's beta is training.alpha. A client's own model is w - alpha grad f_i(w), on all of its training samples.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from annotated_types import Gt

from ...topology.section import Needs
from .base import Client
from .server import TAKES_OLD_UPLOADS, ServerAlgorithm, Uploads


@dataclass(frozen=True)
class PerFedAvg(ServerAlgorithm):
    name: Literal["per-fedavg"] = "per-fedavg"
    alpha: Annotated[float, Gt(0), "Learning rate of the one step from w to a client's own model."] = 0.01
    variant: Annotated[
        Literal["first-order", "hessian-free"],
        "What becomes of the second derivatives: left out, or taken from a difference of gradients.",
    ] = "first-order"
    delta: Annotated[
        float, Gt(0), Needs("variant", "hessian-free"), "hessian-free: how far apart these are, as a multiple of v."
    ] = 0.001

    traits = replace(TAKES_OLD_UPLOADS, momentum=False)

    def upload(self, client: Client) -> np.ndarray:
        w, alpha, beta, delta = client.theta, self.alpha, client.alpha, self.delta
        hessian_free = self.variant == "hessian-free"
        for batch, other, *third in client.batches(3 if hessian_free else 2):
            here = w.copy()
            w -= alpha * client.gradient_on(batch)
            v = client.gradient_on(other).copy()
            step = v
            if hessian_free:
                w[:] = here + delta * v
                ahead = client.gradient_on(*third).copy()
                w[:] = here - delta * v
                step = v - alpha * (ahead - client.gradient_on(*third)) / (2 * delta)
            w[:] = here - beta * step
        return w

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        server.theta[:] = sum(uploads.values()) / len(uploads)

    def personal_model(self, client: Client) -> np.ndarray:
        return client.theta - self.alpha * client.gradient_on()
