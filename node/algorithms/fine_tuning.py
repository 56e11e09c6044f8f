"""FedAvg, whose common model each client tunes to its own samples before it uses it."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from ...topology.section import Count
from .base import Client
from .common_model import FedAvg


def fine_tuned(client: Client, model: np.ndarray, steps: int) -> np.ndarray:
    """Returns ``model`` (d,) after so many gradient steps on all training samples; theta stays as it is."""
    theta = client.theta.copy()
    client.theta[:] = model
    for _ in range(steps):
        client.theta -= client.alpha * client.gradient_on()
    tuned = client.theta.copy()
    client.theta[:] = theta
    return tuned


@dataclass(frozen=True)
class FedAvgFT(FedAvg):
    """FedAvg with fine-tuning (Wang et al. 2019, Yu et al. 2020): the model that a client uses is the common one after
    some steps on its own training samples. They are made for each evaluation, and change nothing of the training.

    w:       FedAvg's
    v_k = w, then v_k <- v_k - alpha grad f_k(v_k)      steps times, on all training samples of client k"""

    name: Literal["fedavg-ft"] = "fedavg-ft"  # type: ignore[assignment]
    steps: Annotated[Count, "Gradient steps from the common model to a client's own, at the rate of [training]."] = 10

    def personal_model(self, client: Client) -> np.ndarray:
        return fine_tuned(client, client.theta, self.steps)
