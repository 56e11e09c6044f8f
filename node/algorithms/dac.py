"""DAC: clients ask others for their models, those more often whose models suit their own data."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...topology.section import Count, NotNegative
from ..assignment import Assignment
from .asking import Asking
from .base import Client, Edge, Facts, Peers, RunFacts, State, Vector, Work

_SMALLEST = 1e-6  # loss


@dataclass(frozen=True)
class DAC(Asking):
    """DAC, decentralized adaptive clustering (Listo Zec et al. 2022).

    theta_i <- local work from theta_i
    M_i     <- ``sample`` neighbours, drawn one after the other with probabilities proportional to exp(tau s_ij)
    s_ij    <- 1 / f_i(theta_j)        for j in M_i, on all training samples
    s_ik    <- s_jk                    for k never asked, of the j in M_i with s_jk > 0 that with the largest s_ij
    theta_i <- (n_i theta_i + sum_j n_j theta_j) / (n_i + sum_j n_j)        over M_i

    s_ij = 0 before anything is known, so all are drawn alike at first. The similarities s_j travel with theta_j."""

    name: Literal["dac"] = "dac"
    sample: Count = 3
    """How many neighbours a client asks for their models in a round."""
    tau: NotNegative = 30.0
    """How much more often those are asked that are more similar; 0: all alike."""

    def messages(self, edge: Edge) -> list[Vector]:
        request, model = super().messages(edge)
        return [request, Vector(model.length + edge.facts, exact=edge.facts)]

    def facts(self, run: RunFacts) -> Facts:
        """How many clients there are."""
        return Facts(edges={ends: run.graph.clients for i, j in run.graph.edges for ends in ((i, j), (j, i))})

    def work(self, own: Assignment, round: int) -> Work:
        return Work(full_passes=min(self.sample, len(own.neighbours)))

    def begin(self, client: Client) -> State:
        return State(similarity=np.zeros(client.clients, client.theta.dtype), asked=np.zeros(client.clients, bool))

    def round(self, client: Client, peers: Peers) -> None:
        client.learn()
        s, asked, neighbours = client.state.similarity, client.state.asked, np.array(sorted(client.neighbours), int)
        noise = client.generator("asked", peers.round).gumbel(size=len(neighbours))  # its largest sums are such draws
        drawn = neighbours[np.argsort(-(self.tau * s[neighbours] + noise), kind="stable")[: self.sample]]
        heard = self.ask(client, peers, drawn.tolist(), np.append(client.theta, s))
        theirs = {j: vector[: client.theta.size] for j, vector in heard.items()}
        for j, model in theirs.items():
            s[j], asked[j] = 1 / max(client.loss_of(model), _SMALLEST), True
        nearest = sorted(theirs, key=lambda j: -s[j])
        for k in neighbours[~asked[neighbours]]:
            known = [s_jk for j in nearest if (s_jk := heard[j][client.theta.size + k]) > 0]
            s[k] = known[0] if known else s[k]
        self.average(client, theirs)
