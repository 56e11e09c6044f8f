"""Pairwise gossip (Boyd et al. 2006): in each round a client averages with one neighbour at most.

    theta_i <- (theta_i + theta_j) / 2 - alpha grad f_i(theta_i)    for the pairs {i, j} of the round's matching
    theta_i <- theta_i - alpha grad f_i(theta_i)                    for the others

The graph's edges are dealt to matchings before the run, in each of which a client has one partner or none, as in MATCHA
(Wang et al. 2019); a round takes one of them. Every client draws the same number for it, so nobody has to ask. With
more local work than one step, its whole change takes the gradient step's place. The run's mixing weights W are unused.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from ...topology.graph import matchings
from ...topology.randomness import generator
from .base import Algorithm, Client, Edge, Facts, Peers, RunFacts, Traits, Vector


@dataclass(frozen=True)
class Pairwise(Algorithm):
    name: Literal["pairwise"] = "pairwise"
    order: Annotated[
        Literal["random", "cyclic"],
        "random: each round draws one of the matchings; cyclic: they follow each other, so that a client meets every "
        "neighbour in as many rounds as there are matchings.",
    ] = "random"

    traits = Traits(
        same_size=True,
        partners="some",
        no_scenario="algorithm.name = 'pairwise' exchanges with some neighbours a round, and a scenario is planned for "
        "exchanges with all of them; use 'd-psgd', or leave the scenario out",
        mixes=False,
    )

    def messages(self, edge: Edge) -> list[Vector]:
        return [Vector(edge.d_i)]

    def facts(self, run: RunFacts) -> Facts:
        """Of each edge the number of its matching, and how many there are."""
        numbers = matchings(run.graph)
        count = dict.fromkeys(range(run.graph.clients), 1 + max(numbers.values(), default=0))
        return Facts(count, {ends: number for pair, number in numbers.items() for ends in (pair, pair[::-1])})

    def round(self, client: Client, peers: Peers) -> None:
        theta, matching = client.theta, (peers.round - 1) % client.facts
        if self.order == "random":
            matching = int(generator(client.seed, "pairwise", peers.round).integers(client.facts))
        partner = [j for j, peer in client.neighbours.items() if peer.facts == matching]
        theirs = peers.exchange(dict.fromkeys(partner, theta))
        pull = sum(((theirs[j] - theta) / 2 for j in theirs), start=0 * theta)
        client.learn()
        theta += pull
