"""Stochastic gradient push (Assran et al. 2019): push-sum averages with weights that the sender alone chooses.

    x_i <- x_i - alpha grad f_i(z_i)
    x_i <- sum_j P_ij x_j,    w_i <- sum_j P_ij w_j,    z_i = x_i / w_i,    w_i^0 = 1

P_ij = 1 / (1 + outdeg_j): client j gives itself and each client it sends to the same share. The columns of P sum to 1
and its rows need not, so that no client has to know another's degree, and arcs may go one way; dividing by w takes out
the bias of the rows. z is the model (theta), x = w z. The weight travels as the last number of a message, of length
d + 1. With more local work than one step, its whole change takes the gradient step's place. The run's mixing weights W
are not used.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from .base import Algorithm, Client, Edge, Peers, State, Traits, Vector


@dataclass(frozen=True)
class PushSum(Algorithm):
    name: Literal["push-sum"] = "push-sum"

    # sum_i x_i and sum_i w_i lose the share that is not used, or gain one that is used twice: it tolerates nothing
    traits = Traits(same_size=True, tolerates="nothing", changing_graphs=True, directed_graphs="all", mixes=False)

    def messages(self, edge: Edge) -> list[Vector]:
        return [Vector(edge.d_i + 1)]

    def begin(self, client: Client) -> State:
        return State(push_sum_weight=np.ones(1, client.theta.dtype))

    def round(self, client: Client, peers: Peers) -> None:
        z, w, alpha = client.theta, client.state.push_sum_weight, client.alpha
        x = w * z - alpha * client.gradient()
        share = np.concatenate([x, w]) / (1 + len(client.successors))
        theirs = peers.exchange(dict.fromkeys(client.successors, share), client.predecessors)
        x, w = np.split(sum(theirs.values(), start=share), [-1])
        z[:] = x / w
        client.state.push_sum_weight = w
