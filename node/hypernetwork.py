"""What the server of a hypernetwork computes with torch: learned blocks fitted by Adam, and message passing on a graph.

Only a server's process loads this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

_DECAYS = (0.9, 0.999)  # beta_1, beta_2
_EPSILON = 1e-8


class Learned:
    """psi: named blocks of one flat vector, and the moments with which Adam (Kingma and Ba 2015) changes it.

    m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2,   psi <- psi - eta (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + e)

    with b1 = 0.9, b2 = 0.999, e = 1e-8 and g the gradient plus ``weight_decay`` psi, as in torch.optim.Adam.
    """

    def __init__(self, start: Mapping[str, np.ndarray], dtype: np.dtype):
        self._names, self._shapes = list(start), [np.shape(block) for block in start.values()]
        values = np.concatenate([np.ravel(block) for block in start.values()]).astype(dtype)
        self._psi = tensor(values)
        self._gradient, self._m, self._v = (torch.zeros_like(self._psi) for _ in range(3))
        self._steps = 0
        self.blocks: dict[str, Tensor] = self._views(self._psi)
        for block, slope in zip(self.blocks.values(), self._views(self._gradient).values(), strict=True):
            block.requires_grad_().grad = slope  # backward() adds into the flat vector

    def _views(self, vector: Tensor) -> dict[str, Tensor]:
        parts = torch.split(vector, [int(np.prod(shape)) for shape in self._shapes])
        return {name: part.view(shape) for name, part, shape in zip(self._names, parts, self._shapes, strict=True)}

    def fit(self, loss: Callable[[], Tensor], *, eta: float, weight_decay: float) -> float:
        """One step of Adam on a loss of the blocks; returns the loss."""
        self._gradient.zero_()
        value = loss()
        value.backward()
        b1, b2 = _DECAYS
        self._steps += 1
        with torch.no_grad():
            g = self._gradient.add_(self._psi, alpha=weight_decay)
            self._m.mul_(b1).add_(g, alpha=1 - b1)
            self._v.mul_(b2).addcmul_(g, g, value=1 - b2)
            scale = (self._v / (1 - b2**self._steps)).sqrt_().add_(_EPSILON)
            self._psi.addcdiv_(self._m, scale, value=-eta / (1 - b1**self._steps))
        return float(value.detach())

    def nbytes(self) -> int:
        return 4 * self._psi.numpy().nbytes

    def state(self) -> dict[str, np.ndarray]:
        return {
            "psi": self._psi.numpy(),
            "adam.m": self._m.numpy(),
            "adam.v": self._v.numpy(),
            "adam.steps": np.array([self._steps]),
        }

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        for own, name in ((self._psi, "psi"), (self._m, "adam.m"), (self._v, "adam.v")):
            own.numpy()[:] = state[name]
        self._steps = int(state["adam.steps"][0])


def values(tensor: Tensor) -> np.ndarray:
    """Without the way back to the blocks."""
    return tensor.detach().numpy()


def elu(x: Tensor) -> Tensor:
    return torch.nn.functional.elu(x)


def tensor(array: np.ndarray) -> Tensor:
    """A copy in a buffer of torch's own, which starts at a multiple of 64 bytes: the same kernels, hence the same bits,
    in every process."""
    return torch.from_numpy(np.ascontiguousarray(array)).clone()


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
