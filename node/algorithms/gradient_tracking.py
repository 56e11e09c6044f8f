"""Gradient tracking (DIGing, Nedić, Olshevsky, Shi 2017): each client follows its estimate of the mean gradient of all.

    theta_i^{k+1} = sum_j W_ij theta_j^k - alpha y_i^k
    y_i^k         = sum_j W_ij y_j^{k-1} + grad f_i(theta_i^k) - grad f_i(theta_i^{k-1}),    y_i^0 = grad f_i(theta_i^0)

W is the run's mixing matrix; if the graph changes, that of the round. The trackers y_i always add up to the gradients
of all clients, so full gradients lead to the minimiser of the sum of all losses, however different these are. The
gradient is what the local work amounts to, (theta before - theta after) / alpha: with mini-batches that is stochastic
gradient tracking (Pu and Nedić 2021), with several steps their sum. Both vectors travel in one message, of length 2d.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from .base import Algorithm, Client, Edge, Peers, State, Traits, Vector, mixing_pull


@dataclass(frozen=True)
class GradientTracking(Algorithm):
    name: Literal["gradient-tracking"] = "gradient-tracking"

    # what one end of an edge gives and the other does not take is missing from sum_i y_i for good
    traits = Traits(same_size=True, tolerates="nothing", changing_graphs=True)

    def messages(self, edge: Edge) -> list[Vector]:
        return [Vector(2 * edge.d_i)]

    def begin(self, client: Client) -> State:
        # y^{-1} = grad f(theta^{-1}) = 0 make y^0 = grad f(theta^0)
        return State(tracker=np.zeros_like(client.theta), gradient=np.zeros_like(client.theta))

    def round(self, client: Client, peers: Peers) -> None:
        theta, alpha, state = client.theta, client.alpha, client.state
        mine = np.concatenate([theta, state.tracker])
        theirs = peers.exchange(dict.fromkeys(client.neighbours, mine))
        mixed_theta, mixed_y = np.split(mine + mixing_pull(client, mine, theirs), 2)

        gradient = client.gradient()
        state.tracker = mixed_y + gradient - state.gradient
        state.gradient = gradient
        theta[:] = mixed_theta - alpha * state.tracker
