"""What GHN and SHN put between embeddings and hypernetwork: message passing on the relation graph. It loads torch."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ...client import Client
from .ghn import GHN
from .hypernetwork import Hypernetwork, tensor, values
from .shn import SHN


class Relations:
    """An undirected graph over n nodes as the message passing of GHN and SHN needs it."""

    def __init__(self, edges: np.ndarray, nodes: int, dtype: torch.dtype):
        """``edges`` (E, 2): pairs v < u, each once."""
        self.v, self.u = (tensor(end) for end in edges.T)
        self._degree = tensor(np.bincount(edges.ravel(), minlength=nodes)).to(dtype)

    def averaged(self, x: Tensor) -> Tensor:
        """D^-1/2 (A + I) D^-1/2 X of X (n, f), D the row sums of A + I: a graph convolution without its weights."""
        scale = (self._degree + 1).rsqrt().unsqueeze(1)
        scaled = scale * x
        passed = scaled.index_add(0, self.v, scaled[self.u]).index_add(0, self.u, scaled[self.v])
        return scale * passed

    def sheaf_laplacian(self, of_v: Tensor, of_u: Tensor, x: Tensor) -> Tensor:
        """Delta_F X of X (n, d, f): D^-1/2 delta^T delta D^-1/2 X with (delta X)_e = F_v X_v - F_u X_u.

        ``of_v`` and ``of_u`` (E, d, d) are the orthogonal restriction maps F_v and F_u of each edge (v, u), so that the
        block diagonal D of delta^T delta is a node's degree times I; a node without edges is left out.
        """
        scale = self._degree.clamp(min=1).rsqrt()[:, None, None]
        scaled = scale * x
        disagreement = of_v @ scaled[self.v] - of_u @ scaled[self.u]
        pulled = torch.zeros_like(x).index_add(0, self.v, of_v.mT @ disagreement)
        return scale * pulled.index_add(0, self.u, -(of_u.mT @ disagreement))


class GraphHypernetwork(Hypernetwork):
    """The server's half of GHN."""

    algorithm: GHN

    def __init__(self, algorithm: GHN, server: Client):
        super().__init__(algorithm, server)
        self._rounds = 0
        self._given = server.facts
        self.relations: Relations | None = None
        """The relation graph, once it is there."""

    def fit(self, uploads: Mapping[int, np.ndarray]) -> None:
        super().fit(uploads)
        self._rounds += 1
        if self._rounds == self.algorithm.embedding_rounds:
            X = values(self.psi["X"])
            given = self.algorithm.graph == "topology"
            self._relate(X, np.array(self._given) if given else relation_graph(X, self.algorithm))
            hypernetwork = {name: values(block) for name, block in self.psi.items() if name != "X"}
            self.learn_anew(self.diffusion() | hypernetwork)

    def _relate(self, X: np.ndarray, edges: np.ndarray) -> None:
        self.X, self.edges = tensor(X), edges.reshape(-1, 2)
        self.relations = Relations(self.edges, len(X), self.X.dtype)

    def features(self) -> Tensor:
        return self.psi["X"] if self.relations is None else self.diffuse(self.relations, self.X)

    def diffuse(self, graph: Relations, X: Tensor) -> Tensor:
        """Z (M, f) of X (M, f)."""
        for t in range(self.algorithm.layers):
            X = self.s(graph.averaged(X) @ self.psi[f"W{t}"])
        return X

    def diffusion(self) -> dict[str, np.ndarray]:
        """Weights W^t (f, f), orthogonal at first: they neither shrink nor stretch."""
        return {f"W{t}": self.orthogonal(f"W{t}", self.algorithm.embedding) for t in range(self.algorithm.layers)}

    def s(self, x: Tensor) -> Tensor:
        return x.tanh() if self.algorithm.activation == "tanh" else torch.nn.functional.elu(x)

    def orthogonal(self, name: str, size: int) -> np.ndarray:
        return np.linalg.qr(self.rng(name).standard_normal((size, size)))[0]

    def _graph(self) -> dict[str, np.ndarray]:
        return {} if self.relations is None else {"X": values(self.X), "relations": self.edges}

    def arrays(self) -> dict[str, np.ndarray]:
        return super().arrays() | self._graph() | {"rounds": np.array([self._rounds])}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._rounds = int(arrays["rounds"][0])
        if "relations" in arrays:
            self._relate(arrays["X"], arrays["relations"])
            self.learn_anew(self.diffusion() | self.hypernetwork())
        super().load(arrays)

    def nbytes(self) -> int:
        return super().nbytes() + sum(array.nbytes for array in self._graph().values())


class SheafHypernetwork(GraphHypernetwork):
    """The server's half of SHN."""

    algorithm: SHN

    def diffuse(self, graph: Relations, X: Tensor) -> Tensor:
        d, f = self.algorithm.stalk, self.algorithm.embedding
        orthogonal = householder if self.algorithm.orthogonal == "householder" else cayley
        X = (X @ self.psi["in.weight"].T + self.psi["in.bias"]).view(-1, d, f)
        for t in range(self.algorithm.layers):
            # Phi^t of two stalks side by side, part by part: a product a node instead of one an edge
            own, other = X.flatten(1) @ self.psi[f"Phi{t}.own"], X.flatten(1) @ self.psi[f"Phi{t}.other"]
            F_v = orthogonal((own[graph.v] + other[graph.u]).tanh(), d)
            F_u = orthogonal((own[graph.u] + other[graph.v]).tanh(), d)
            mixed = self.psi[f"W1.{t}"] @ X @ self.psi[f"W2.{t}"]  # (I x W_1) X W_2
            X = X - self.s(graph.sheaf_laplacian(F_v, F_u, mixed))  # (4)
        return X.flatten(1) @ self.psi["P.weight"].T + self.psi["P.bias"]

    def diffusion(self) -> dict[str, np.ndarray]:
        """W_2^t start orthogonal over L: whatever the number of layers, they begin as a diffusion of one length."""
        d, f, layers = self.algorithm.stalk, self.algorithm.embedding, self.algorithm.layers
        blocks = self.linear("in", f, d * f) | self.linear("P", d * f, f)
        for t in range(layers):
            halves = self.linear(f"Phi{t}", 2 * d * f, d * (d - 1) // 2)[f"Phi{t}.weight"]
            blocks |= {
                f"Phi{t}.own": halves[:, : d * f].T,
                f"Phi{t}.other": halves[:, d * f :].T,
                f"W1.{t}": np.eye(d),
                f"W2.{t}": self.orthogonal(f"W2.{t}", f) / layers,
            }
        return blocks


def householder(numbers: Tensor, d: int) -> Tensor:
    """(.., d, d) orthogonal: H_1 .. H_d with H_i = I - 2 v_i v_i^T / ||v_i||^2, and v_i zero above its i-th entry.

    That entry is 1, those below it are taken from ``numbers`` (.., d (d - 1) / 2).
    """
    rows, columns = torch.tril_indices(d, d, -1)
    lower = torch.eye(d, dtype=numbers.dtype).expand(*numbers.shape[:-1], d, d).clone()
    lower[..., rows, columns] = numbers
    product = torch.eye(d, dtype=numbers.dtype).expand_as(lower)
    for i in range(d):
        v = lower[..., :, i : i + 1]
        product = product - (product @ v) @ v.mT * (2 / (v.mT @ v))
    return product


def cayley(numbers: Tensor, d: int) -> Tensor:
    """(.., d, d) orthogonal: (I + S)^-1 (I - S), S skew-symmetric with ``numbers`` (.., d (d - 1) / 2) below the
    diagonal."""
    rows, columns = torch.tril_indices(d, d, -1)
    lower = numbers.new_zeros(*numbers.shape[:-1], d, d)
    lower[..., rows, columns] = numbers
    skew, one = lower - lower.mT, torch.eye(d, dtype=numbers.dtype)
    return torch.linalg.solve(one + skew, one - skew)


def relation_graph(X: np.ndarray, algorithm: GHN) -> np.ndarray:
    """Edges (E, 2), v < u, of clients with similar embeddings X (M, f)."""
    lengths = np.linalg.norm(X, axis=1, keepdims=True)
    cosine = (X / np.where(lengths > 0, lengths, 1)).astype(np.float64)
    cosine = cosine @ cosine.T
    np.fill_diagonal(cosine, -np.inf)
    if algorithm.graph == "cosine":
        linked = cosine >= algorithm.tau
    else:
        nearest = np.argsort(-cosine, axis=1, kind="stable")[:, : min(algorithm.k, len(X) - 1)]
        linked = np.zeros(cosine.shape, bool)
        np.put_along_axis(linked, nearest, True, axis=1)
    return np.argwhere(np.triu(linked | linked.T))
