"""DFedAvgM and DFedSAM: several local steps of another kind, and then an average with the neighbours."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Lt

from ...topology.section import Count, NotNegative, Positive
from ..assignment import Assignment
from .base import Client, Edge, Peers, Traits, Vector, Work
from .robust import RobustMixing

_TRAITS = Traits(same_size=True, changing_graphs=True, directed_graphs="regular", learns_first=True, momentum=False)


@dataclass(frozen=True)
class _Averaging(RobustMixing):
    traits = _TRAITS

    def average(self, client: Client, peers: Peers) -> None:
        """theta_i <- sum_j W_ij theta_j"""
        theirs = peers.exchange(dict.fromkeys(client.successors, client.theta), client.predecessors)
        client.theta += self.pull(client, client.theta, theirs)


@dataclass(frozen=True)
class DFedAvgM(_Averaging):
    """DFedAvgM (Sun, Li, Wang 2023): local steps with momentum, which begins anew in each round.

    y^{k+1} = y^k - alpha grad f_i(y^k) + beta (y^k - y^{k-1})     from y^0 = y^{-1} = theta_i, for each mini-batch
    theta_i <- sum_j W_ij y_j                                      of the last y of the local work"""

    name: Literal["dfedavgm"] = "dfedavgm"
    beta: Annotated[NotNegative, Lt(1), "Momentum of the local steps."] = 0.9

    def round(self, client: Client, peers: Peers) -> None:
        y, change = client.theta, np.zeros_like(client.theta)
        for batch in client.batches():
            change = self.beta * change - client.alpha * client.gradient_on(batch)
            y += change
        self.average(client, peers)


@dataclass(frozen=True)
class DFedSAM(_Averaging):
    """DFedSAM (Shi et al. 2023): local steps by sharpness-aware minimisation, which looks for flat minima.

    g = grad f_i(y),    y <- y - alpha grad f_i(y + rho g/||g||)     both gradients on one mini-batch, from y = theta_i
    theta_i <- sum_j (W^Q)_ij y_j                                    by Q exchanges; more than one is DFedSAM-MGS"""

    name: Literal["dfedsam"] = "dfedsam"
    rho: Annotated[Positive, "How far from a model its local steps look at the gradient."] = 0.05
    gossip_steps: Annotated[Count, "Q: how many times clients average in a round."] = 1

    def messages(self, edge: Edge) -> list[Vector]:
        return [Vector(edge.d_i)] * self.gossip_steps

    def work(self, own: Assignment, round: int) -> Work:
        return Work(gradients=2, on_one_batch=2)

    def round(self, client: Client, peers: Peers) -> None:
        y = client.theta
        for batch in client.batches():
            g, here = client.gradient_on(batch), y.copy()
            y += self.rho / max(float(np.sqrt(g @ g)), 1e-12) * g
            y[:] = here - client.alpha * client.gradient_on(batch)
        for _ in range(self.gossip_steps):
            self.average(client, peers)
