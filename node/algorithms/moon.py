"""MOON: local steps draw what the last layer sees towards the common model's, and away from the client's own before."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import numpy as np

from ...topology.section import NotNegative, Positive
from ..assignment import Assignment
from .base import Client, RunFacts, State, Work
from .common_model import FedAvg
from .server import TAKES_OLD_UPLOADS


@dataclass(frozen=True)
class MOON(FedAvg):
    """MOON (Li, He, Song 2021): FedAvg whose clients' features are to be more like the common model's than like those
    that the client itself had a round ago.

    client k:  w_k <- w_k - alpha grad (f_k(w_k) + mu l(w_k))      for each mini-batch of the local work
               l = mean of -log(e^(s / tau) / (e^(s / tau) + e^(s' / tau)))      over its samples
               s = cos(z, z_w),  s' = cos(z, z_before)
    server:    w   <- sum_k n_k/n w_k

    z, z_w and z_before are the inputs (the features) of the last layer, of w_k, of w, and of what w_k was when the
    client last ended its local work; the paper has a projection of them, two more layers."""

    name: Literal["moon"] = "moon"  # type: ignore[assignment]
    mu: Annotated[NotNegative, "Weight of the features' loss l."] = 1.0
    tau: Annotated[Positive, "Temperature: how much a small difference between cosines counts is 1/tau."] = 0.5

    traits = replace(TAKES_OLD_UPLOADS, momentum=False, reads_samples=True)

    def check(self, run: RunFacts) -> None:
        super().check(run)
        run.require_body(f"algorithm.name = {self.name!r}")

    def begin(self, client: Client) -> State:
        return State(before=client.theta.copy()) if client.role == "client" else State()

    def work(self, own: Assignment, round: int) -> Work:
        return Work(passes=2)

    def upload(self, client: Client) -> np.ndarray:
        theta, state, w = client.theta, client.state, client.theta.copy()
        for batch in client.batches():
            z_w, z_before = client.features_of(w, batch), client.features_of(state.before, batch)
            theta -= client.alpha * client.gradient_on(batch, partial(self.apart, z_w=z_w, z_before=z_before))
        state.before = theta.copy()
        return theta

    def apart(self, z: np.ndarray, rows: slice, z_w: np.ndarray, z_before: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns mu times the sum of l over samples, and its gradient by z (samples, width)."""
        (s, to_w), (other, to_before) = cosine(z, z_w[rows]), cosine(z, z_before[rows])
        gap = (other - s) / self.tau
        share = 1 / (1 + np.exp(-gap))  # of e^(s' / tau) in the sum
        slope = (self.mu / self.tau * share)[:, None] * (to_before - to_w)
        return float(self.mu * np.logaddexp(0, gap).sum()), slope.astype(z.dtype)


def cosine(z: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns that of each sample (samples,), and its gradient by z (samples, width); 0 where either is 0."""
    length, of_other = (np.linalg.norm(each, axis=1, keepdims=True) for each in (z, other))
    length, of_other = (np.where(each, each, np.inf) for each in (length, of_other))
    found = (z / length * other / of_other).sum(axis=1)
    return found, (other / of_other - found[:, None] * z / length) / length
