"""AD-PSGD: clients average in pairs, whenever one of them has done its local work."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from .base import Algorithm, Client, Peers, State, Traits


@dataclass(frozen=True)
class ADPSGD(Algorithm):
    """AD-PSGD (Lian et al. 2018): nobody waits for slow clients.

    g_i = grad f_i(theta_i)                              begun whenever client i has taken its last step
    theta_i, theta_j <- (theta_i + theta_j) / 2          when it is done, with a neighbour j drawn at random
    theta_i <- theta_i - alpha g_i                       theta_i may have been averaged by others in the meantime

    A round of a client lasts until its next average, whoever has asked for it. When that is follows from the time that
    local work takes, hence from the plan: time.clock = "virtual"."""

    name: Literal["ad-psgd"] = "ad-psgd"

    traits = Traits(same_size=True, meets=True, mixes=False)

    def begin(self, client: Client) -> State:
        return State(gradient=np.zeros_like(client.theta), is_at_work=np.zeros(1, bool))

    def round(self, client: Client, peers: Peers) -> None:
        theta, state = client.theta, client.state
        if not state.is_at_work[0]:
            state.gradient, state.is_at_work[0] = client.gradient(), True
        for theirs in peers.exchange(dict.fromkeys(client.neighbours, theta)).values():
            theta[:] = (theta + theirs) / 2
        if not peers.left_out():  # its own local work is done
            theta -= client.alpha * state.gradient
            state.is_at_work[0] = False
