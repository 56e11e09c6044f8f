"""D-PSGD (Lian et al. 2017): average the neighbours' models, then step along one's own gradient.

    theta_i <- sum_j W_ij theta_j - alpha grad f_i(theta_i)

W is the run's mixing matrix, doubly stochastic; where the graph changes, that of the round. With more local work than
one step, its whole change takes the gradient step's place.
"""

from dataclasses import dataclass
from typing import Literal

from .base import Algorithm, Client, Edge, Peers, Traits, Vector, mixing_pull


@dataclass(frozen=True)
class DPSGD(Algorithm):
    name: Literal["d-psgd"] = "d-psgd"

    traits = Traits(same_size=True, changing_graphs=True, directed_graphs="regular")

    def messages(self, edge: Edge) -> list[Vector]:
        return [Vector(edge.d_i)]

    def round(self, client: Client, peers: Peers) -> None:
        theta = client.theta
        theirs = peers.exchange(dict.fromkeys(client.successors, theta), client.predecessors)
        pull = mixing_pull(client, theta, theirs)
        client.learn()
        theta += pull
