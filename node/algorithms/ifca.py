"""IFCA: the server has a model for each cluster of clients, and clients find out by their loss which is theirs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ...topology.section import Count
from ..assignment import Assignment
from .base import Client, Cost, Edge, RunFacts, SettingsError, State, Vector, Work
from .server import NEEDS_NEW_UPLOADS, ServerAlgorithm, Uploads


@dataclass(frozen=True)
class IFCA(ServerAlgorithm):
    """IFCA, the iterative federated clustering algorithm (Ghosh et al. 2020), with averages of models.

    client i:  c_i     <- argmin_c f_i(w_c)            on all of its training samples
               theta_i <- local work from w_c_i, which it sends with c_i
    server:    w_c     <- mean of theta_i over the clients i of the round with c_i = c, for each c that has any

    The k models w_c start at different places, all of which follow from the seed. Clients whose data differ may begin
    with the same one: then a model may stay without clients, and another seed or more models help."""

    name: Literal["ifca"] = "ifca"
    k: Count = 2
    """Models, as many as there are clusters, or more. A client downloads all of them."""

    theta_is = "own"
    traits = replace(NEEDS_NEW_UPLOADS, reads_samples=True)

    def messages(self, edge: Edge) -> list[Vector]:
        return [Vector(self.k * edge.d_i) if edge.from_server else Vector(edge.d_i + 1, exact=1)]

    def check(self, run: RunFacts) -> None:
        if not run.same_start:
            wrong = "= false: algorithm.name = 'ifca' has the first models of the server at its clients; set it to true"
            raise SettingsError("model.same_start", wrong)

    def cost(self, own: Assignment) -> Cost:
        return Cost(self.k * own.architecture.size)

    def work(self, own: Assignment, round: int) -> Work:
        return Work(full_passes=self.k)

    def begin(self, client: Client) -> State:
        """The server keeps w (k, d) and, of each client it has heard, c_i; a client c_i."""
        models = np.stack([client.start(number) for number in range(self.k)])
        if client.role == "server":
            return State(models=models, cluster=np.full(client.clients, -1))
        state = State(cluster=np.zeros(1, int))
        state.cluster[0], client.theta[:] = best(client, models)
        return state

    def upload(self, client: Client) -> np.ndarray:
        client.learn()
        return np.append(client.theta, client.state.cluster).astype(client.theta.dtype)

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        assign(server, {i: int(vector[-1]) for i, vector in uploads.items()})
        for c in range(self.k):
            if members := [vector[:-1] for vector in uploads.values() if vector[-1] == c]:
                server.state.models[c] = np.mean(members, axis=0)

    def reply(self, server: Client, client: int) -> np.ndarray:
        return server.state.models.ravel()

    def download(self, client: Client, vector: np.ndarray) -> None:
        client.state.cluster[0], client.theta[:] = best(client, vector.reshape(self.k, -1))


def best(client: Client, models: np.ndarray) -> tuple[int, np.ndarray]:
    """Returns which of the models (k, d) has the smallest loss at the client, the first of them, and that model."""
    number = int(np.argmin([client.loss_of(model) for model in models]))
    return number, models[number]


def assign(server: Client, numbers: Mapping[int, int]) -> None:
    """Puts these clients into clusters, and tells all clusters if that changes them."""
    cluster, before = server.state.cluster, server.state.cluster.copy()
    cluster[list(numbers)] = list(numbers.values())
    if (cluster != before).any():
        members = [np.flatnonzero(cluster == c) for c in range(len(server.state.models))]
        server.report.events.append(("clusters", " | ".join(" ".join(map(str, each)) for each in members)))
