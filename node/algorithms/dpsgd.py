"""D-PSGD (Lian et al. 2017): average the neighbours' models, then step along one's own gradient.

    theta_i <- sum_j W_ij theta_j - alpha grad f_i(theta_i)

W is the run's mixing matrix, doubly stochastic; where the graph changes, that of the round. With more local work than
one step, its whole change takes the gradient step's place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...transport.peers import Peers
from ..client import Client
from .base import Algorithm, mixing_pull, same_size


@dataclass(frozen=True)
class DPSGDSettings:
    name: Literal["d-psgd"] = "d-psgd"


class DPSGD(Algorithm):
    Settings = DPSGDSettings
    changing_graphs = True
    directed_graphs = "regular"

    @classmethod
    def vectors(cls, settings: DPSGDSettings, d_i: int, d_j: int, common: int = 0) -> tuple[int, ...]:
        return (d_i,)

    @classmethod
    def check(cls, settings: DPSGDSettings, sizes: Sequence[int], edges: Sequence[tuple[int, int]]) -> None:
        same_size("algorithm.name = 'd-psgd'", sizes, edges)

    def round(self, client: Client, peers: Peers) -> None:
        theta = client.theta
        theirs = peers.exchange(dict.fromkeys(client.successors, theta), client.predecessors)
        pull = mixing_pull(client, theta, theirs)
        client.learn()
        theta += pull
