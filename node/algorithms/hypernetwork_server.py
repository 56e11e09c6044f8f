"""The server's half of pFedHN, GHN and SHN: psi, as it is learned, and the models that it makes. Imports torch."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ...topology.randomness import generator
from ..model.networks import Adam
from .base import Client, State
from .hypernetworks import GHN, SHN, PFedHN, load_embeddings
from .server import Uploads
from .sfmtl_graph import unit


class Hypernetwork(State):
    """The server's half of pFedHN. ``psi`` are named blocks of one flat vector, which Adam changes. A subclass puts
    something between X and HN (``features``)."""

    def __init__(self, algorithm: PFedHN, server: Client):
        self.algorithm = algorithm
        self._seed, self._theta = server.seed, server.theta
        # embeddings are small at first, so that what is learned tells clients apart, not how they were drawn
        X = 0.1 * self.rng("X").standard_normal((server.clients, algorithm.embedding))
        self.learn_anew({"X": X} | self.hypernetwork())

    def learn_anew(self, start: Mapping[str, np.ndarray]) -> None:
        """Starts from these blocks, with an Adam that has done no step."""
        self._flat = tensor(np.concatenate([np.ravel(block) for block in start.values()]).astype(self._theta.dtype))
        self._adam = Adam(self._flat, (1 - 0.9, 1 - 0.999))
        self._models: np.ndarray | None = None
        parts = zip(start.items(), self._flat.split([block.size for block in start.values()]), strict=True)
        self.psi = {name: part.view(block.shape).requires_grad_() for (name, block), part in parts}

    def fit(self, uploads: Uploads) -> None:
        """Does one step of Adam on 1/|S| sum_m ||theta_m - theta~_m||^2 + weight_decay/2 ||psi||^2."""
        S, theta_tilde = list(uploads), tensor(np.stack(list(uploads.values())))
        loss = (self.generate(self.features()[S]) - theta_tilde).square().sum() / len(S)
        slopes = torch.autograd.grad(loss, list(self.psi.values()))
        gradient = torch.cat([slope.ravel() for slope in slopes])
        self._adam.step(gradient.add_(self._flat, alpha=self.algorithm.weight_decay), self.algorithm.eta)
        self._models = None

    def model_of(self, client: int) -> np.ndarray:
        """Returns theta_m (d,)."""
        if self._models is None:  # of all clients at once
            self._models = self.generate(self.features()).detach().numpy()
        return self._models[client]

    def features(self) -> Tensor:
        """Returns Z (M, f)."""
        return self.psi["X"]

    def generate(self, z: Tensor) -> Tensor:
        """Returns HN(z; psi_H) (.., d) of z (.., f), an MLP whose last layer has a part for each block of theta."""
        for layer in range(self.algorithm.depth):
            z = (z @ self.psi[f"HN{layer}.weight"].T + self.psi[f"HN{layer}.bias"]).relu()
        return z @ self.psi["HN.weight"].T + self.psi["HN.bias"]

    def hypernetwork(self) -> dict[str, np.ndarray]:
        width, blocks = self.algorithm.embedding, dict[str, np.ndarray]()
        for layer in range(self.algorithm.depth):
            blocks |= self.linear(f"HN{layer}", width, self.algorithm.hidden)
            width = self.algorithm.hidden
        return blocks | {"HN.weight": np.zeros((self._theta.size, width)), "HN.bias": self._theta}

    def linear(self, name: str, inputs: int, outputs: int) -> dict[str, np.ndarray]:
        """Returns weights uniform in +-1/sqrt(inputs), torch's own bounds."""
        bound, rng = 1 / math.sqrt(inputs), self.rng(name)
        weight = rng.uniform(-bound, bound, (outputs, inputs))
        return {f"{name}.weight": weight, f"{name}.bias": rng.uniform(-bound, bound, outputs)}

    def rng(self, name: str) -> np.random.Generator:
        return generator(self._seed, f"start of psi: {name}")

    def arrays(self) -> dict[str, np.ndarray]:
        """Z is kept for those who look at it; nothing starts from it."""
        return {"psi": self._flat.numpy(), "Z": self.features().detach().numpy()} | self._adam.arrays()

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._flat.numpy()[:] = arrays["psi"]
        self._adam.load(arrays)
        self._models = None

    def nbytes(self) -> int:
        return sum(array.nbytes for array in [*self.arrays().values(), self._flat.numpy()])  # and a gradient


class GraphHypernetwork(Hypernetwork):
    algorithm: GHN

    def __init__(self, algorithm: GHN, server: Client):
        super().__init__(algorithm, server)
        self._rounds, self._given = 0, server.facts
        self.X: Tensor | None = None  # until embedding_rounds have passed
        if algorithm.embeddings:
            X = load_embeddings(algorithm.embeddings, server.clients, algorithm.embedding)
            self._begin_stage_3(X.astype(self._theta.dtype), self.hypernetwork())
        elif algorithm.embedding_rounds >= server.rounds:
            server.report.warnings.append(
                f"algorithm.embedding_rounds = {algorithm.embedding_rounds} leaves no round for {algorithm.name}: all "
                f"{server.rounds} rounds of the run are those of pfedhn"
            )

    def fit(self, uploads: Uploads) -> None:
        super().fit(uploads)
        self._rounds += 1
        if self.X is None and self._rounds == self.algorithm.embedding_rounds:
            blocks = {name: block.detach().numpy() for name, block in self.psi.items()}
            X = blocks.pop("X")
            self._begin_stage_3(X, blocks if self.algorithm.adopt else self.hypernetwork())

    def _begin_stage_3(self, X: np.ndarray, hypernetwork: Mapping[str, np.ndarray]) -> None:
        given = self.algorithm.graph == "topology"
        self._relate(X, np.array(self._given) if given else relation_graph(X, self.algorithm))
        self.learn_anew(self.diffusion() | dict(hypernetwork))

    def _relate(self, X: np.ndarray, edges: np.ndarray) -> None:
        """Takes the relations of the clients from ``edges`` (E, 2): pairs v < u, each once."""
        self.X, self.edges = tensor(X), edges.reshape(-1, 2)
        self.v, self.u = (tensor(end) for end in self.edges.T)
        self.degree = tensor(np.bincount(self.edges.ravel(), minlength=len(X))).to(self.X.dtype)

    def features(self) -> Tensor:
        return self.psi["X"] if self.X is None else self.diffuse(self.X)

    def diffuse(self, X: Tensor) -> Tensor:
        """Returns Z (M, f) of X (M, f), by graph convolutions."""
        scale = (self.degree + 1).rsqrt().unsqueeze(1)
        for t in range(self.algorithm.layers):
            scaled = scale * X
            passed = scaled.index_add(0, self.v, scaled[self.u]).index_add(0, self.u, scaled[self.v])
            X = self.s((scale * passed) @ self.psi[f"W{t}"])
        return X

    def diffusion(self) -> dict[str, np.ndarray]:
        """The weights W^t (f, f) start orthogonal: they neither shrink nor stretch."""
        return {f"W{t}": self.orthogonal(f"W{t}", self.algorithm.embedding) for t in range(self.algorithm.layers)}

    def s(self, x: Tensor) -> Tensor:
        return x.tanh() if self.algorithm.activation == "tanh" else torch.nn.functional.elu(x)

    def orthogonal(self, name: str, size: int) -> np.ndarray:
        return np.linalg.qr(self.rng(name).standard_normal((size, size)))[0]

    def arrays(self) -> dict[str, np.ndarray]:
        graph = {} if self.X is None else {"X": self.X.numpy(), "relations": self.edges}
        return super().arrays() | graph | {"rounds": np.array([self._rounds])}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._rounds = int(arrays["rounds"][0])
        if "relations" in arrays:
            self._relate(arrays["X"], arrays["relations"])
            self.learn_anew(self.diffusion() | self.hypernetwork())
        super().load(arrays)


class SheafHypernetwork(GraphHypernetwork):
    algorithm: SHN

    def diffuse(self, X: Tensor) -> Tensor:
        d, f, how = self.algorithm.stalk, self.algorithm.embedding, self.algorithm.orthogonal
        X = (X @ self.psi["in.weight"].T + self.psi["in.bias"]).view(-1, d, f)
        for t in range(self.algorithm.layers):
            # Phi^t of two stalks side by side, part by part: a product a node instead of one an edge
            own, other = X.flatten(1) @ self.psi[f"Phi{t}.own"], X.flatten(1) @ self.psi[f"Phi{t}.other"]
            F_v = orthogonal_matrices((own[self.v] + other[self.u]).tanh(), d, how)
            F_u = orthogonal_matrices((own[self.u] + other[self.v]).tanh(), d, how)
            mixed = self.psi[f"W1.{t}"] @ X @ self.psi[f"W2.{t}"]  # (I x W_1) X W_2
            X = X - self.s(self.laplacian(F_v, F_u, mixed))  # (4)
        return X.flatten(1) @ self.psi["P.weight"].T + self.psi["P.bias"]

    def laplacian(self, F_v: Tensor, F_u: Tensor, x: Tensor) -> Tensor:
        """Returns Delta_F X of X (n, d, f), from the restriction maps (E, d, d) of edges (v, u). They are orthogonal,
        so the block diagonal D of delta^T delta is a node's degree times I; a node without edges is left out."""
        scale = self.degree.clamp(min=1).rsqrt()[:, None, None]
        scaled = scale * x
        disagreement = F_v @ scaled[self.v] - F_u @ scaled[self.u]
        pulled = torch.zeros_like(x).index_add(0, self.v, F_v.mT @ disagreement)
        return scale * pulled.index_add(0, self.u, -(F_u.mT @ disagreement))

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


def orthogonal_matrices(numbers: Tensor, d: int, how: str) -> Tensor:
    """Returns (.., d, d), of a strictly lower triangular matrix with ``numbers`` (.., d (d - 1) / 2).

    cayley: (I + S)^-1 (I - S), S skew-symmetric. householder: H_1 .. H_d with H_i = I - 2 v_i v_i^T / ||v_i||^2, v_i
    column i of the matrix plus I."""
    rows, columns = torch.tril_indices(d, d, -1)
    lower, one = numbers.new_zeros(*numbers.shape[:-1], d, d), torch.eye(d, dtype=numbers.dtype)
    lower[..., rows, columns] = numbers
    if how == "cayley":
        skew = lower - lower.mT
        return torch.linalg.solve(one + skew, one - skew)
    product = one.expand_as(lower)
    for v in (lower + one).split(1, dim=-1):
        product = product - (product @ v) @ v.mT * (2 / (v.mT @ v))
    return product


def relation_graph(X: np.ndarray, algorithm: GHN) -> np.ndarray:
    """Returns the edges (E, 2), v < u, of clients with similar embeddings X (M, f)."""
    cosine = unit(X).astype(np.float64)
    cosine = cosine @ cosine.T
    np.fill_diagonal(cosine, -np.inf)
    if algorithm.graph == "cosine":
        linked = cosine >= algorithm.tau
    else:
        nearest = np.argsort(-cosine, axis=1, kind="stable")[:, : min(algorithm.k, len(X) - 1)]
        linked = np.zeros(cosine.shape, bool)
        np.put_along_axis(linked, nearest, True, axis=1)
    return np.argwhere(np.triu(linked | linked.T))


SERVERS: dict[str, type[Hypernetwork]] = {"pfedhn": Hypernetwork, "ghn": GraphHypernetwork, "shn": SheafHypernetwork}


def tensor(array: np.ndarray) -> Tensor:
    """Returns a copy in a buffer of torch's own, which starts at a multiple of 64 bytes: the same kernels, hence the
    same bits, in every process."""
    return torch.from_numpy(np.ascontiguousarray(array)).clone()
