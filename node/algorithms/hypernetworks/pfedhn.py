"""pFedHN (Shamsian et al. 2021): a hypernetwork at the server makes each client's model from the client's embedding.

    server:    theta_m <- HN(z_m; psi_H)             for each client of the round, with z_m = x_m; sends it theta_m
    client m:  theta~_m <- local work from theta_m   sends theta~_m
    server:    psi <- Adam step on L_H = 1/|S| sum_m ||theta_m - theta~_m||^2     over the clients S of the round

psi are the embeddings X = E(M; psi_E), x_m in R^f of the clients m = 1 .. M, and HN's psi_H. HN starts with
HN(z) = theta^0, the start that all clients know, so the first model is not sent. This is also the shell of GHN and SHN
(Nguyen et al. 2024, Algorithm 1), which put message passing between X and z.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt

from ...assignment import Assignment
from ...client import Client
from ..base import Cost, State
from ..server import ServerAlgorithm, Uploads

Width = Annotated[int, Ge(1)]


@dataclass(frozen=True)
class PFedHN(ServerAlgorithm):
    """The client's half; the server's is ``server.state``, a Hypernetwork."""

    name: Literal["pfedhn"] = "pfedhn"
    eta: Annotated[float, Gt(0), "Step size of Adam, with which the server fits psi."] = 0.001
    weight_decay: Annotated[float, Ge(0), "Weight of psi itself in the gradient that Adam is given."] = 0.00005
    embedding: Annotated[Width, "Length f of a client's embedding."] = 16
    hidden: Annotated[Width, "Width of the hypernetwork's hidden layers."] = 64
    depth: Annotated[Width, "Hidden layers of the hypernetwork."] = 2

    theta_is = "own"

    def cost(self, own: Assignment) -> Cost:
        if own.role == "client":
            return Cost()
        d = own.architecture.size  # psi, Adam's moments and what it makes on the way
        return Cost(7 * d * (self.hidden + 1) + 2 * d * own.run.clients)

    def begin(self, client: Client) -> State:
        return self.hypernetwork(client) if client.role == "server" else State()

    def hypernetwork(self, server: Client) -> State:
        from .hypernetwork import Hypernetwork  # loads torch

        return Hypernetwork(self, server)

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        server.state.fit(uploads)

    def reply(self, server: Client, client: int) -> np.ndarray:
        return server.state.model_of(client)
