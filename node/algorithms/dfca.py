"""DFCA: IFCA without a server. Every client has a copy of each cluster's model."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...topology.section import Count
from ..assignment import Assignment
from .base import Algorithm, Client, Cost, Edge, Peers, State, Traits, Vector, Work
from .ifca import best


@dataclass(frozen=True)
class Copies(Algorithm):
    """What DFCA and Facade have in common."""

    k: Count = 2
    """Models of each client, as many as there are clusters, or more."""

    traits = Traits(
        same_size=True,
        changing_graphs=True,
        directed_graphs="all",
        learns_first=True,
        mixes=False,
        reads_samples=True,
    )

    def messages(self, edge: Edge) -> list[Vector]:
        return [Vector(edge.d_i + 1, exact=1)]

    def cost(self, own: Assignment) -> Cost:
        return Cost(self.k * own.architecture.size)

    def work(self, own: Assignment, round: int) -> Work:
        return Work(full_passes=self.k)

    def starts(self, client: Client) -> np.ndarray:
        """Returns the first w_i (k, d)."""
        return np.stack([client.start(number) for number in range(self.k)])

    def begin(self, client: Client) -> State:
        models = self.starts(client)
        c, client.theta[:] = best(client, models)
        return State(models=models, cluster=np.array([c]))

    def round(self, client: Client, peers: Peers) -> None:
        theta, models, cluster = client.theta, client.state.models, client.state.cluster
        client.learn()
        models[cluster] = theta
        mine = np.append(theta, cluster).astype(theta.dtype)
        theirs = peers.exchange(dict.fromkeys(client.successors, mine), client.predecessors)
        self.average(client, theirs.values())
        c, theta[:] = best(client, models)
        if c != cluster:
            client.report.events.append(("cluster", str(c)))
        cluster[0] = c

    def average(self, client: Client, theirs: Collection[np.ndarray]) -> None:
        """Changes the client's models by what its neighbours have sent."""
        models = client.state.models
        for c in range(self.k):
            same = [vector[:-1] for vector in theirs if vector[-1] == c]
            models[c] = sum(same, start=models[c]) / (1 + len(same))


@dataclass(frozen=True)
class DFCA(Copies):
    """DFCA, the decentralized federated clustering algorithm (Kirch et al. 2025).

    c_i    <- argmin_c f_i(w_ic)                                       on all training samples
    w_ic   <- local work from w_ic                                     c = c_i; sent to the neighbours with c_i
    w_ic   <- (w_ic + sum_j w_jc) / (1 + number of these j)            for each c, over the neighbours j with c_j = c

    The k models w_ic start at different places, for all clients the same ones unless model.same_start = false. The
    average is that of the paper's running average, which takes in one model after the other. theta is w_ic_i."""

    name: Literal["dfca"] = "dfca"
