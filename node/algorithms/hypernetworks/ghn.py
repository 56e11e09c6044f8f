"""GHN (as in Nguyen et al. 2024): pFedHN whose features come from graph convolutions over the clients' relation graph.

    stage 1:  pFedHN for embedding_rounds rounds: embeddings X of the clients
    stage 2:  relation graph A: each client and those with the most similar embeddings
    stage 3:  pFedHN with z_m = (H_L)_m, H_0 = X,  H_{t+1} = s(D^-1/2 (A + I) D^-1/2 H_t W^t),  D the row sums of A + I

In stage 3, X stays as it is and psi are the W^t and psi_H, which goes on from stage 1.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from annotated_types import Ge, Le

from ....topology.section import Needs
from ...client import Client
from ..base import Facts, RunFacts, SettingsError, State, Traits
from ..server import NEEDS_NEW_UPLOADS
from .pfedhn import PFedHN, Width


@dataclass(frozen=True)
class GHN(PFedHN):
    name: Literal["ghn"] = "ghn"  # type: ignore[assignment]
    embedding_rounds: Annotated[int, Ge(1), "Rounds of stage 1: pFedHN, whose embeddings give the relation graph."] = 50
    graph: Annotated[
        Literal["knn", "cosine", "topology"],
        "Relation graph: each client and its k most similar ones, all pairs at least as similar as tau, or [topology]. "
        "Similar is the cosine of two embeddings.",
    ] = "knn"
    k: Annotated[int, Ge(1), Needs("graph", "knn"), "knn: how many most similar clients each is linked with."] = 3
    tau: Annotated[float, Ge(-1), Le(1), Needs("graph", "cosine"), "cosine: least cosine of two linked clients."] = 0.9
    layers: Annotated[Width, "Layers of message passing."] = 2
    activation: Annotated[Literal["tanh", "elu"], "s, after each of these layers."] = "tanh"

    @property
    def traits(self) -> Traits:
        return replace(NEEDS_NEW_UPLOADS, reads_topology=self.graph == "topology")

    def facts(self, run: RunFacts) -> Facts:
        """The server is told the edges of [topology], over which nothing is sent, where they are the relations."""
        if self.graph != "topology":
            return Facts()
        graphs = run.topology()
        if graphs.changes or graphs.directed:
            raise SettingsError(
                "algorithm.graph = 'topology'",
                "relations are mutual and stay the same; use an undirected topology and topology.redraw_every = 0",
            )
        return Facts({len(run.models) - 1: graphs.union.edges})

    def begin(self, client: Client) -> State:
        if client.role == "server" and self.embedding_rounds >= client.rounds:
            client.report.warnings.append(
                f"algorithm.embedding_rounds = {self.embedding_rounds} leaves no round for {self.name}: all "
                f"{client.rounds} rounds of the run are those of pfedhn"
            )
        return super().begin(client)

    def hypernetwork(self, server: Client) -> State:
        from .diffusion import GraphHypernetwork  # loads torch

        return GraphHypernetwork(self, server)
