"""The hypernetwork at the server of pFedHN: psi, as it is learned, and the models that it makes. It loads torch."""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from ....topology.randomness import generator
from ...client import Client
from ...model.adam import Adam
from ..base import State
from ..server import Uploads
from .pfedhn import PFedHN


class Learned:
    """psi: named blocks of one flat vector, which Adam changes."""

    def __init__(self, start: Mapping[str, np.ndarray], dtype: np.dtype):
        self._names, self._shapes = list(start), [np.shape(block) for block in start.values()]
        values = np.concatenate([np.ravel(block) for block in start.values()]).astype(dtype)
        self._psi = tensor(values)
        self._gradient = torch.zeros_like(self._psi)
        self._adam = Adam(self._psi, (1 - 0.9, 1 - 0.999))
        self.blocks: dict[str, Tensor] = self._views(self._psi)
        for block, slope in zip(self.blocks.values(), self._views(self._gradient).values(), strict=True):
            block.requires_grad_().grad = slope  # backward() adds into the flat vector

    def _views(self, vector: Tensor) -> dict[str, Tensor]:
        parts = torch.split(vector, [int(np.prod(shape)) for shape in self._shapes])
        return {name: part.view(shape) for name, part, shape in zip(self._names, parts, self._shapes, strict=True)}

    def fit(self, loss: Callable[[], Tensor], *, eta: float, weight_decay: float) -> float:
        """One step of Adam on a loss of the blocks, plus weight_decay/2 ||psi||^2; returns the loss."""
        self._gradient.zero_()
        value = loss()
        value.backward()
        with torch.no_grad():
            self._adam.step(self._gradient.add_(self._psi, alpha=weight_decay), eta)
        return float(value.detach())

    def nbytes(self) -> int:
        return 4 * self._psi.numpy().nbytes

    def arrays(self) -> dict[str, np.ndarray]:
        return {"psi": self._psi.numpy()} | self._adam.arrays()

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._psi.numpy()[:] = arrays["psi"]
        self._adam.load(arrays)


class Hypernetwork(State):
    """The server's half of pFedHN. A subclass puts something between X and HN (``features``)."""

    def __init__(self, algorithm: PFedHN, server: Client):
        self.algorithm = algorithm
        self._seed, self._clients, self._theta = server.seed, server.clients, server.theta
        self._models: np.ndarray | None = None
        self.learn_anew(self.embeddings() | self.hypernetwork())

    def fit(self, uploads: Uploads) -> None:
        """One step on 1/|S| sum_m ||theta_m - theta~_m||^2."""
        S, theta_tilde = list(uploads), tensor(np.stack(list(uploads.values())))

        def loss() -> Tensor:
            return (self.generate(self.features()[S]) - theta_tilde).square().sum() / len(S)

        self.learned.fit(loss, eta=self.algorithm.eta, weight_decay=self.algorithm.weight_decay)
        self._models = None

    def model_of(self, client: int) -> np.ndarray:
        """theta_m (d,)"""
        if self._models is None:  # of all clients at once
            self._models = values(self.generate(self.features()))
        return self._models[client]

    def features(self) -> Tensor:
        """Z (M, f)."""
        return self.psi["X"]

    def generate(self, z: Tensor) -> Tensor:
        """HN(z; psi_H) (.., d) of z (.., f): an MLP whose last layer has a part for each block of theta."""
        for layer in range(self.algorithm.depth):
            z = (z @ self.psi[f"HN{layer}.weight"].T + self.psi[f"HN{layer}.bias"]).relu()
        return z @ self.psi["HN.weight"].T + self.psi["HN.bias"]

    @property
    def psi(self) -> dict[str, Tensor]:
        return self.learned.blocks

    def embeddings(self) -> dict[str, np.ndarray]:
        """Small at first, so that what is learned tells clients apart, not how they were drawn."""
        return {"X": 0.1 * self.rng("X").standard_normal((self._clients, self.algorithm.embedding))}

    def hypernetwork(self) -> dict[str, np.ndarray]:
        width, blocks = self.algorithm.embedding, dict[str, np.ndarray]()
        for layer in range(self.algorithm.depth):
            blocks |= self.linear(f"HN{layer}", width, self.algorithm.hidden)
            width = self.algorithm.hidden
        return blocks | {"HN.weight": np.zeros((self._theta.size, width)), "HN.bias": self._theta}

    def linear(self, name: str, inputs: int, outputs: int) -> dict[str, np.ndarray]:
        """Uniform in +-1/sqrt(inputs), torch's own bounds."""
        bound, rng = 1 / math.sqrt(inputs), self.rng(name)
        return {
            f"{name}.weight": rng.uniform(-bound, bound, (outputs, inputs)),
            f"{name}.bias": rng.uniform(-bound, bound, outputs),
        }

    def rng(self, name: str) -> np.random.Generator:
        return generator(self._seed, f"start of psi: {name}")

    def learn_anew(self, blocks: Mapping[str, np.ndarray]) -> None:
        self.learned = Learned(blocks, self._theta.dtype)

    def arrays(self) -> dict[str, np.ndarray]:
        return self.learned.arrays()

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.learned.load(arrays)
        self._models = None

    def nbytes(self) -> int:
        return self.learned.nbytes()


def values(tensor: Tensor) -> np.ndarray:
    """Without the way back to the blocks."""
    return tensor.detach().numpy()


def tensor(array: np.ndarray) -> Tensor:
    """A copy in a buffer of torch's own, which starts at a multiple of 64 bytes: the same kernels, hence the same bits,
    in every process."""
    return torch.from_numpy(np.ascontiguousarray(array)).clone()
