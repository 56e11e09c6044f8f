"""Hypernetworks at a server (Nguyen et al. 2024, Algorithm 1), which makes clients' models from their embeddings.

    server:    X = E(M; psi_E)                       embeddings x_m in R^f of the clients m = 1 .. M, a learned table
               theta_m <- HN(z_m; psi_H)             for each client of the round; sends it theta_m
    client m:  theta~_m <- local work from theta_m   sends theta~_m
    server:    psi <- Adam step on L_H = 1/|S| sum_m ||theta_m - theta~_m||^2     over the clients S of the round

pfedhn  (Shamsian et al. 2021)   z_m = x_m
ghn     Z = H_L,  H_0 = X,  H_{t+1} = s(A^ H_t W^t)                     A^ = D^-1/2 (A + I) D^-1/2
shn     Z = P vec(X_L),  X_0 = reshape(X W_in) in R^{(M d) x f},
        X_{t+1} = X_t - s(Delta_F(t) (I x W_1^t) X_t W_2^t)             (4)
        F_{v of e = (v, u)} = orthogonal(tanh(Phi^t [vec(X_t)_v || vec(X_t)_u])) in R^{d x d}

ghn and shn have three stages: pfedhn for some rounds; the clients' relation graph A from its embeddings; then they
themselves, with X as it is and the hypernetwork HN as far as it has come. HN starts with HN(z) = theta^0, the start
that all clients know, so the first model is not sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt, Le

from ...topology.seeds import generator
from ..client import Client
from .server import Fraction, ServerAlgorithm, Uploads

if TYPE_CHECKING:
    from torch import Tensor

Width = Annotated[int, Ge(1)]


@dataclass(frozen=True)
class PFedHNSettings:
    name: Literal["pfedhn"] = "pfedhn"
    fraction: Fraction = 1.0
    eta: Annotated[float, Gt(0), "Step size of Adam, with which the server fits psi."] = 0.001
    weight_decay: Annotated[float, Ge(0), "Weight of psi itself in the gradient that Adam is given."] = 0.00005
    embedding: Annotated[Width, "Length f of a client's embedding."] = 16
    hidden: Annotated[Width, "Width of the hypernetwork's hidden layers."] = 64
    depth: Annotated[Width, "Hidden layers of the hypernetwork."] = 2


@dataclass(frozen=True)
class GHNSettings(PFedHNSettings):
    name: Literal["ghn"] = "ghn"  # type: ignore[assignment]
    embedding_rounds: Annotated[int, Ge(1), "Rounds of stage 1: pFedHN, whose embeddings give the relation graph."] = 50
    graph: Annotated[
        Literal["knn", "cosine", "topology"],
        "Relation graph: each client and its k most similar ones, all pairs at least as similar as tau, or [topology]. "
        "Similar is the cosine of two embeddings.",
    ] = "knn"
    k: Annotated[int, Ge(1), "knn: how many most similar clients each is linked with."] = 3
    tau: Annotated[float, Ge(-1), Le(1), "cosine: least cosine of two linked clients."] = 0.9
    layers: Annotated[Width, "Layers of message passing."] = 2
    activation: Annotated[Literal["tanh", "elu"], "s, after each of these layers."] = "tanh"


@dataclass(frozen=True)
class SHNSettings(GHNSettings):
    name: Literal["shn"] = "shn"  # type: ignore[assignment]
    stalk: Annotated[Width, "Dimension d of the stalks, and of the d x d restriction maps."] = 3
    orthogonal: Annotated[
        Literal["householder", "cayley"], "How a restriction map is made orthogonal: by reflections, or as a rotation."
    ] = "householder"


class PFedHN(ServerAlgorithm):
    """The client's half, and of the server's all but what comes between X and HN (``features``)."""

    Settings: ClassVar[type[Any]] = PFedHNSettings
    has_common_model = False

    def __init__(self, settings: Any, client: Client):
        super().__init__(settings, client)
        self._is_server = client.role == "server"
        if self._is_server:
            from .. import hypernetwork  # loads torch

            self._net = hypernetwork
            self._draws = client
            self._learn_anew(self.embeddings() | self.hypernetwork())

    def upload(self, client: Client) -> np.ndarray:
        client.learn()
        return client.theta

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        S, theta_tilde = list(uploads), self._net.tensor(np.stack(list(uploads.values())))

        def loss() -> Tensor:
            return (self.generate(self.features()[S]) - theta_tilde).square().sum() / len(S)

        self.learned.fit(loss, eta=self.settings.eta, weight_decay=self.settings.weight_decay)
        self.end_round(server)
        self._theta = self._net.values(self.generate(self.features()))

    def reply(self, server: Client, client: int) -> np.ndarray:
        return self._theta[client]

    def end_round(self, server: Client) -> None:
        """psi has been fitted."""

    # -- the model of models -------------------------------------------------------------------------------------------

    def features(self) -> Tensor:
        """Z (M, f)."""
        return self.psi["X"]

    def generate(self, z: Tensor) -> Tensor:
        """HN(z; psi_H) (.., d) of z (.., f): an MLP whose last layer has a part for each block of theta."""
        for layer in range(self.settings.depth):
            z = (z @ self.psi[f"HN{layer}.weight"].T + self.psi[f"HN{layer}.bias"]).relu()
        return z @ self.psi["HN.weight"].T + self.psi["HN.bias"]

    @property
    def psi(self) -> dict[str, Tensor]:
        return self.learned.blocks

    def embeddings(self) -> dict[str, np.ndarray]:
        """Small at first, so that what is learned tells clients apart, not how they were drawn."""
        return {"X": 0.1 * self._rng("X").standard_normal((self._draws.clients, self.settings.embedding))}

    def hypernetwork(self) -> dict[str, np.ndarray]:
        width, blocks = self.settings.embedding, dict[str, np.ndarray]()
        for layer in range(self.settings.depth):
            blocks |= self._linear(f"HN{layer}", width, self.settings.hidden)
            width = self.settings.hidden
        theta = self._draws.theta
        return blocks | {"HN.weight": np.zeros((theta.size, width)), "HN.bias": theta}

    def _linear(self, name: str, inputs: int, outputs: int) -> dict[str, np.ndarray]:
        """Uniform in +-1/sqrt(inputs), torch's own bounds."""
        bound, rng = 1 / math.sqrt(inputs), self._rng(name)
        return {
            f"{name}.weight": rng.uniform(-bound, bound, (outputs, inputs)),
            f"{name}.bias": rng.uniform(-bound, bound, outputs),
        }

    def _rng(self, name: str) -> np.random.Generator:
        return generator(self._draws.seed, f"start of psi: {name}")

    def _learn_anew(self, blocks: Mapping[str, np.ndarray]) -> None:
        self.learned = self._net.Learned(blocks, self._draws.theta.dtype)

    # ------------------------------------------------------------------------------------------------------------------

    def state_bytes(self) -> int:
        return self.learned.nbytes() if self._is_server else 0

    def state(self) -> dict[str, np.ndarray]:
        return self.learned.state() if self._is_server else {}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        if self._is_server:
            self.learned.load(state)


class GHN(PFedHN):
    Settings: ClassVar[type[Any]] = GHNSettings

    def __init__(self, settings: Any, client: Client):
        super().__init__(settings, client)
        self._rounds = 0
        self.relations: Any = None
        """The relation graph, once it is there."""
        if self._is_server and settings.embedding_rounds >= client.rounds:
            self.report.warnings.append(
                f"algorithm.embedding_rounds = {settings.embedding_rounds} leaves no round for {settings.name}: all "
                f"{client.rounds} rounds of the run are those of pfedhn"
            )

    @classmethod
    def is_told_relations(cls, settings: Any) -> bool:
        return settings.graph == "topology"

    def features(self) -> Tensor:
        return self.psi["X"] if self.relations is None else self.diffuse(self.X)

    def diffuse(self, X: Tensor) -> Tensor:
        """Z (M, f) of X (M, f)."""
        for t in range(self.settings.layers):
            X = self._s(self.relations.averaged(X) @ self.psi[f"W{t}"])
        return X

    def diffusion(self) -> dict[str, np.ndarray]:
        """Weights W^t (f, f), orthogonal at first: they neither shrink nor stretch."""
        return {f"W{t}": self._orthogonal(f"W{t}", self.settings.embedding) for t in range(self.settings.layers)}

    def end_round(self, server: Client) -> None:
        self._rounds += 1
        if self._rounds == self.settings.embedding_rounds:
            X = self._net.values(self.psi["X"])
            given = self.settings.graph == "topology"
            self._relate(X, np.array(server.relations) if given else relation_graph(X, self.settings))
            hypernetwork = {name: self._net.values(block) for name, block in self.psi.items() if name != "X"}
            self._learn_anew(self.diffusion() | hypernetwork)

    def _relate(self, X: np.ndarray, edges: np.ndarray) -> None:
        self.X, self.edges = self._net.tensor(X), edges.reshape(-1, 2)
        self.relations = self._net.Relations(self.edges, len(X), self.X.dtype)

    def _s(self, x: Tensor) -> Tensor:
        return x.tanh() if self.settings.activation == "tanh" else self._net.elu(x)

    def _orthogonal(self, name: str, size: int) -> np.ndarray:
        return np.linalg.qr(self._rng(name).standard_normal((size, size)))[0]

    def state_bytes(self) -> int:
        return super().state_bytes() + sum(array.nbytes for array in self._graph().values())

    def state(self) -> dict[str, np.ndarray]:
        return super().state() | self._graph() | ({"rounds": np.array([self._rounds])} if self._is_server else {})

    def _graph(self) -> dict[str, np.ndarray]:
        return {} if self.relations is None else {"X": self._net.values(self.X), "relations": self.edges}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        if not self._is_server:
            return
        self._rounds = int(state["rounds"][0])
        if "relations" in state:
            self._relate(state["X"], state["relations"])
            self._learn_anew(self.diffusion() | self.hypernetwork())
        super().load(state)


class SHN(GHN):
    Settings: ClassVar[type[Any]] = SHNSettings

    def diffuse(self, X: Tensor) -> Tensor:
        d, f, graph = self.settings.stalk, self.settings.embedding, self.relations
        orthogonal = getattr(self._net, self.settings.orthogonal)
        X = (X @ self.psi["in.weight"].T + self.psi["in.bias"]).view(-1, d, f)
        for t in range(self.settings.layers):
            # Phi^t of two stalks side by side, part by part: a product a node instead of one an edge
            own, other = X.flatten(1) @ self.psi[f"Phi{t}.own"], X.flatten(1) @ self.psi[f"Phi{t}.other"]
            F_v = orthogonal((own[graph.v] + other[graph.u]).tanh(), d)
            F_u = orthogonal((own[graph.u] + other[graph.v]).tanh(), d)
            mixed = self.psi[f"W1.{t}"] @ X @ self.psi[f"W2.{t}"]  # (I x W_1) X W_2
            X = X - self._s(graph.sheaf_laplacian(F_v, F_u, mixed))  # (4)
        return X.flatten(1) @ self.psi["P.weight"].T + self.psi["P.bias"]

    def diffusion(self) -> dict[str, np.ndarray]:
        """W_2^t start orthogonal over L: whatever the number of layers, they begin as a diffusion of one length."""
        d, f = self.settings.stalk, self.settings.embedding
        blocks = self._linear("in", f, d * f) | self._linear("P", d * f, f)
        for t in range(self.settings.layers):
            halves = self._linear(f"Phi{t}", 2 * d * f, d * (d - 1) // 2)[f"Phi{t}.weight"]
            blocks |= {
                f"Phi{t}.own": halves[:, : d * f].T,
                f"Phi{t}.other": halves[:, d * f :].T,
                f"W1.{t}": np.eye(d),
                f"W2.{t}": self._orthogonal(f"W2.{t}", f) / self.settings.layers,
            }
        return blocks


def relation_graph(X: np.ndarray, settings: GHNSettings) -> np.ndarray:
    """Edges (E, 2), v < u, of clients with similar embeddings X (M, f)."""
    lengths = np.linalg.norm(X, axis=1, keepdims=True)
    cosine = (X / np.where(lengths > 0, lengths, 1)).astype(np.float64)
    cosine = cosine @ cosine.T
    np.fill_diagonal(cosine, -np.inf)
    if settings.graph == "cosine":
        linked = cosine >= settings.tau
    else:
        nearest = np.argsort(-cosine, axis=1, kind="stable")[:, : min(settings.k, len(X) - 1)]
        linked = np.zeros(cosine.shape, bool)
        np.put_along_axis(linked, nearest, True, axis=1)
    return np.argwhere(np.triu(linked | linked.T))
