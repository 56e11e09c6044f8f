"""GHN (as in Nguyen et al. 2024): pFedHN whose features come from graph convolutions over the clients' relation graph.

    stage 1:  pFedHN for embedding_rounds rounds: embeddings X of the clients
    stage 2:  relation graph A: each client and those with the most similar embeddings
    stage 3:  pFedHN with z_m = (H_L)_m, H_0 = X,  H_{t+1} = s(D^-1/2 (A + I) D^-1/2 H_t W^t),  D the row sums of A + I

In stage 3, X stays as it is and psi are the W^t and psi_H, which goes on from stage 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Le

from ..client import Client
from ..needs import Needs
from .pfedhn import PFedHN, PFedHNSettings, Width

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class GHNSettings(PFedHNSettings):
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
