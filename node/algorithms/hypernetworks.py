"""Hypernetworks: a network at the server makes each client's model; what needs torch is in hypernetwork_server.py."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from ...metrics.config_file import require_plain_file
from ...topology.section import Count, Index, Needs, NotNegative, Positive
from ..assignment import Assignment
from .base import Client, Cost, Facts, RunFacts, SettingsError, State, Traits
from .server import NEEDS_NEW_UPLOADS, ServerAlgorithm, Uploads


@dataclass(frozen=True)
class PFedHN(ServerAlgorithm):
    """pFedHN (Shamsian et al. 2021): a hypernetwork at the server makes each client's model from the client's
    embedding.

    server:    theta_m <- HN(z_m; psi_H)             for each client of the round, with z_m = x_m; sends it theta_m
    client m:  theta~_m <- local work from theta_m   sends theta~_m
    server:    psi <- Adam step on L_H = 1/|S| sum_m ||theta_m - theta~_m||^2     over the clients S of the round

    psi are the embeddings X = E(M; psi_E), x_m in R^f of the clients m = 1 .. M, and HN's psi_H. HN starts with
    HN(z) = theta^0, the start that all clients know, so the first model is not sent. The server's half is
    ``server.state``, in hypernetwork_server.py."""

    name: Literal["pfedhn"] = "pfedhn"
    eta: Annotated[Positive, "Step size of Adam, with which the server fits psi."] = 0.001
    weight_decay: Annotated[NotNegative, "Weight of psi itself in the gradient that Adam is given."] = 0.00005
    embedding: Annotated[Count, "Length f of a client's embedding."] = 16
    hidden: Annotated[Count, "Width of the hypernetwork's hidden layers."] = 64
    depth: Annotated[Count, "Hidden layers of the hypernetwork."] = 2

    theta_is = "own"

    def cost(self, own: Assignment) -> Cost:
        if own.role == "client":
            return Cost()
        d = own.architecture.size  # psi, Adam's moments and what it makes on the way
        return Cost(7 * d * (self.hidden + 1) + 2 * d * own.run.clients)

    def begin(self, client: Client) -> State:
        if client.role == "client":
            return State()
        from .hypernetwork_server import SERVERS  # loads torch

        return SERVERS[self.name](self, client)

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        server.state.fit(uploads)

    def reply(self, server: Client, client: int) -> np.ndarray:
        return server.state.model_of(client)


@dataclass(frozen=True)
class GHN(PFedHN):
    """GHN (as in Nguyen et al. 2024): pFedHN whose features come from graph convolutions over the clients' relation
    graph.

    Algorithm 1 puts message passing over the relation graph between X and z:

    stage 1:  pFedHN for embedding_rounds rounds: embeddings X of the clients
    stage 2:  relation graph A: each client and those with the most similar embeddings
    stage 3:  pFedHN with z_m of X, which stays as it is; psi are the weights of the message passing and psi_H, which
              goes on from stage 1

    z_m = (H_L)_m,    H_0 = X,    H_{t+1} = s(D^-1/2 (A + I) D^-1/2 H_t W^t),    D the row sums of A + I"""

    name: Literal["ghn"] = "ghn"  # type: ignore[assignment]
    embeddings: str = ""
    """File of the clients' features X where they are known: safetensors with a tensor "X" (clients, ``embedding``),
    relative to the folder of the configuration. Stage 3 then begins with the first round; "" learns X in stage 1."""
    embedding_rounds: Annotated[Count, Needs("embeddings", "")] = 50
    """Rounds of stage 1: pFedHN, whose embeddings give the relation graph."""
    adopt: Annotated[bool, Needs("embeddings", "")] = True
    """Stage 3 goes on with stage 1's hypernetwork; false starts it anew."""
    graph: Literal["knn", "cosine", "topology"] = "knn"
    """Relation graph: each client and its k most similar ones, all pairs at least as similar as tau, or [topology].
    Similar is the cosine of two embeddings."""
    k: Annotated[Index, Needs("graph", "knn"), "knn: how many most similar clients each is linked with; 0: none."] = 3
    tau: Annotated[float, Ge(-1), Le(1), Needs("graph", "cosine"), "cosine: least cosine of two linked clients."] = 0.9
    layers: Annotated[Count, "Layers of message passing."] = 2
    activation: Annotated[Literal["tanh", "elu"], "s, after each of these layers."] = "tanh"

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        return replace(NEEDS_NEW_UPLOADS, reads_topology=self.graph == "topology")

    def check(self, run: RunFacts) -> None:
        if self.embeddings:
            load_embeddings(self.embeddings, len(run.models) - 1, self.embedding)

    def facts(self, run: RunFacts) -> Facts:
        """The server is told the edges of [topology], over which nothing is sent, where they are the relations."""
        return relations(run, "algorithm.graph = 'topology'") if self.graph == "topology" else Facts()


@dataclass(frozen=True)
class SHN(GHN):
    """Sheaf HyperNetwork (Nguyen et al. 2024): GHN with sheaf diffusion in the place of graph convolutions.

    X_0 = reshape(X W_in) in R^{(M d) x f}           a stalk R^d for each client, f times over
    F_{v of e = (v, u)} = orthogonal(tanh(Phi^t [vec(X_t)_v || vec(X_t)_u])) in R^{d x d}       restriction maps
    X_{t+1} = X_t - s(Delta_F(t) (I x W_1^t) X_t W_2^t)                                         (4)
    z_m = P vec(X_L)_m                               back to R^f

    Delta_F = D^-1/2 delta^T delta D^-1/2 is the normalised sheaf Laplacian, (delta X)_e = F_{v of e} X_v - F_{u of e}
    X_u."""

    name: Literal["shn"] = "shn"  # type: ignore[assignment]
    stalk: Annotated[Count, "Dimension d of the stalks, and of the d x d restriction maps."] = 3
    orthogonal: Literal["householder", "cayley"] = "householder"
    """How a restriction map is made orthogonal: by reflections, or as a rotation."""


def load_embeddings(path: str, clients: int, length: int) -> np.ndarray:
    """Returns X (clients, length). Raises SettingsError."""
    from safetensors import SafetensorError, safe_open

    key, needed = f"algorithm.embeddings = {path!r}", f"needed is a tensor X of shape [{clients}, {length}]"
    try:
        require_plain_file(Path(path))
        with safe_open(path, framework="numpy") as file:
            shapes = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            if shapes.get("X") != [clients, length]:
                found = f"has X of shape {shapes['X']}" if "X" in shapes else "has no tensor X"
                raise SettingsError(key, f"{found}; {needed} (clients, algorithm.embedding)")
            X = file.get_tensor("X")
    except OSError as error:
        raise SettingsError(key, f"cannot be read: {error.strerror or error}") from None
    except (SafetensorError, TypeError, ValueError) as error:
        raise SettingsError(key, f"is no safetensors file that can be read ({error}); {needed}") from None
    if X.dtype.kind != "f" or not np.isfinite(X).all():
        raise SettingsError(key, "X holds something else than finite floating-point numbers")
    return X


def relations(run: RunFacts, key: str) -> Facts:
    """Tells the server the edges of [topology], over which nothing is sent. Raises SettingsError."""
    graphs = run.topology()
    if graphs.changes or graphs.directed:
        why = "relations are mutual and stay the same; use an undirected topology and topology.redraw_every = 0"
        raise SettingsError(key, why)
    return Facts({len(run.models) - 1: graphs.union.edges})
