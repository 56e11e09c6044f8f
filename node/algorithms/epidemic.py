"""Epidemic learning: in each round everyone sends its model to a few others, drawn at random of all clients."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...topology import Graph, GraphSequence
from ...topology.randomness import generator
from ...topology.section import Count
from .base import Algorithm, Client, Peers, SettingsError, Setup, Traits


@dataclass(frozen=True)
class Epidemic(Algorithm):
    """Epidemic learning (de Vos et al. 2023). [topology] has no effect.

    theta_i <- theta_i - alpha grad f_i(theta_i)
    theta_i <- (theta_i + sum_{j in S_i} theta_j) / (1 + |S_i|)         S_i are those who send to i in the round"""

    name: Literal["epidemic"] = "epidemic"
    k: Count = 3
    """How many clients each sends to in a round."""
    sampling: Literal["oracle", "local"] = "oracle"
    """oracle: a random graph in which all have k neighbours (EL-Oracle); local: each draws k by itself (EL-Local)."""

    traits = Traits(same_size=True, learns_first=True, mixes=False)

    def pattern(self, run: Setup) -> GraphSequence:
        if self.k >= run.clients:
            allowed = (
                f"allowed are 1 to {run.clients - 1}, all other clients" if run.clients > 1 else "there is one client"
            )
            raise SettingsError("algorithm.k", f"is {self.k}; {allowed}")
        if self.sampling == "oracle" and self.k * run.clients % 2:
            raise SettingsError("algorithm.k", f"is {self.k}; with an odd number of clients it must be even")
        return GraphSequence(tuple(self._graph(run, round) for round in range(1, run.rounds + 1)))

    def _graph(self, run: Setup, round: int) -> Graph:
        rng, n = generator(run.seed, "epidemic", round), run.clients
        if self.sampling == "oracle":
            import networkx

            return Graph.of(n, networkx.random_regular_graph(self.k, n, seed=int(rng.integers(2**63))).edges)
        lots = rng.random((n, n))
        np.fill_diagonal(lots, 2)
        drawn = np.argpartition(lots, self.k - 1)[:, : self.k]
        return Graph.of(n, ((i, j) for i, row in enumerate(drawn.tolist()) for j in row), directed=True)

    def round(self, client: Client, peers: Peers) -> None:
        client.learn()
        theirs = peers.exchange(dict.fromkeys(client.successors, client.theta), client.predecessors)
        client.theta[:] = sum(theirs.values(), start=client.theta) / (1 + len(theirs))
