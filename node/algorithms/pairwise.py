"""Pairwise gossip (Boyd et al. 2006): in each round a client averages with one neighbour at most.

    theta_i <- (theta_i + theta_j) / 2 - alpha grad f_i(theta_i)    for the pairs {i, j} of the round's matching
    theta_i <- theta_i - alpha grad f_i(theta_i)                    for the others

The graph's edges are dealt to matchings before the run, in each of which a client has one partner or none, as in MATCHA
(Wang et al. 2019); a round takes one of them. Every client draws the same number for it, so nobody has to ask. With
more local work than one step, its whole change takes the gradient step's place. The run's mixing weights W are unused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from ...topology.randomness import generator
from ...transport.peers import Peers
from ..client import Client
from .base import Algorithm, same_size


@dataclass(frozen=True)
class PairwiseSettings:
    name: Literal["pairwise"] = "pairwise"
    order: Annotated[
        Literal["random", "cyclic"],
        "random: each round draws one of the matchings; cyclic: they follow each other, so that a client meets every "
        "neighbour in as many rounds as there are matchings.",
    ] = "random"


class Pairwise(Algorithm):
    Settings = PairwiseSettings
    with_everyone = False

    @classmethod
    def mixes(cls, settings: PairwiseSettings) -> bool:
        return False

    @classmethod
    def vectors(cls, settings: PairwiseSettings, d_i: int, d_j: int, common: int = 0) -> tuple[int, ...]:
        return (d_i,)

    @classmethod
    def check(cls, settings: PairwiseSettings, sizes: Sequence[int], edges: Sequence[tuple[int, int]]) -> None:
        same_size("algorithm.name = 'pairwise'", sizes, edges)

    def round(self, client: Client, peers: Peers) -> None:
        theta, turn = client.theta, self._matching(client, peers.round)
        partner = [j for j, peer in client.neighbours.items() if peer.matching == turn]
        theirs = peers.exchange(dict.fromkeys(partner, theta))
        pull = sum(((theirs[j] - theta) / 2 for j in theirs), start=0 * theta)
        client.learn()
        theta += pull

    def _matching(self, client: Client, round: int) -> int:
        if self.settings.order == "cyclic":
            return (round - 1) % client.matchings
        return int(generator(client.seed, "pairwise", round).integers(client.matchings))
