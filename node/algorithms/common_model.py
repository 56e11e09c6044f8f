"""Algorithms with a server and one model w that clients have in common; S are the clients of a round."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from ...topology.section import Count, Needs, NotNegative, Positive
from ..assignment import Assignment
from .base import Client, Work
from .robust import RobustMixing
from .secure import SecureSum
from .server import NEEDS_NEW_UPLOADS, TAKES_OLD_UPLOADS, Uploads


@dataclass(frozen=True)
class FedAvg(RobustMixing, SecureSum):
    """FedAvg (McMahan et al. 2017): clients train the common model, the server takes the mean of what they made of it.

    client k:  w_k <- local work from w                  (ClientUpdate: epochs or steps of mini-batch SGD)
    server:    w   <- sum_k n_k/n w_k                    over S, n_k their training samples"""

    name: Literal["fedavg"] = "fedavg"

    traits = TAKES_OLD_UPLOADS
    weighted = True

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        server.theta[:] = self.mean(server, uploads, server.theta)


@dataclass(frozen=True)
class Ditto(SecureSum):
    """Ditto (Li et al. 2021): a model of one's own beside the common one, held near to it.

    client k:  w_k <- local work from w                  (for the common model, as in FedAvg), sends w_k - w
               v_k <- v_k - alpha (grad f_k(v_k) + lam (v_k - w))         for each mini-batch of the local work
    server:    w   <- w + 1/|S| sum_k (w_k - w)

    theta is v_k at a client, w at the server."""

    name: Literal["ditto"] = "ditto"
    lam: Annotated[NotNegative, "Weight lambda of lam/2 ||v_k - w||^2, which holds a client's model near w."] = 0.1

    theta_is = "own beside common"
    traits = replace(NEEDS_NEW_UPLOADS, momentum=False)

    def work(self, own: Assignment, round: int) -> Work:
        return Work(gradients=2)

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


@dataclass(frozen=True)
class PFedMe(SecureSum):
    """pFedMe (Dinh et al. 2020): clients' own models are the proximal points of a common one, by Moreau envelopes.

    client i:  w_i = w, then for each mini-batch of the local work
                   theta_i <- theta_i - alpha (grad f_i(theta_i) + lam (theta_i - w_i))       K times on that batch
                   w_i     <- w_i - eta lam (w_i - theta_i)
    server:    w <- (1 - beta) w + beta/|S| sum_i w_i

    The K steps find about the minimiser of f_i(theta) + lam/2 ||theta - w_i||^2. In the paper all clients learn in each
    round and those of S upload; here the others pause, which leaves w the same."""

    name: Literal["pfedme"] = "pfedme"
    lam: Annotated[Positive, "Weight lambda of lam/2 ||theta_i - w_i||^2."] = 15.0
    eta: Annotated[Positive, "Learning rate of w_i; eta lam is the share of the way to theta_i that it goes."] = 0.005
    beta: Annotated[Positive, "What the server makes of the mean: 1 takes it as it is, more goes beyond it."] = 1.0
    inner_steps: Annotated[Count, "K: gradient steps for a proximal point."] = 5

    theta_is = "own beside common"
    traits = replace(TAKES_OLD_UPLOADS, momentum=False)

    def work(self, own: Assignment, round: int) -> Work:
        return Work(gradients=self.inner_steps, on_one_batch=self.inner_steps)

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


@dataclass(frozen=True)
class PerFedAvg(SecureSum):
    """Per-FedAvg (Fallah et al. 2020): a common model from which one gradient step makes a good one of one's own.

    client i:  w_i = w, then for each step of the local work, D, D', D'' mini-batches of their own:
                   v   = grad f_i(w_i - alpha grad f_i(w_i; D); D')
                   w_i <- w_i - beta v                                    first-order
                   w_i <- w_i - beta (v - alpha H v)                      hessian-free,
                          H v = (grad f_i(w_i + delta v; D'') - grad f_i(w_i - delta v; D'')) / (2 delta)
    server:    w <- 1/|S| sum_i w_i

    The paper's beta is training.alpha. A client's own model is w - alpha grad f_i(w), on all of its training samples.
    """

    name: Literal["per-fedavg"] = "per-fedavg"
    alpha: Annotated[Positive, "Learning rate of the one step from w to a client's own model."] = 0.01
    variant: Literal["first-order", "hessian-free"] = "first-order"
    """What becomes of the second derivatives: left out, or taken from a difference of gradients."""
    delta: Annotated[Positive, Needs("variant", "hessian-free")] = 0.001
    """hessian-free: how far apart these are, as a multiple of v."""

    traits = replace(TAKES_OLD_UPLOADS, momentum=False)

    def work(self, own: Assignment, round: int) -> Work:
        return Work(gradients=4, on_one_batch=2) if self.variant == "hessian-free" else Work(gradients=2)

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
