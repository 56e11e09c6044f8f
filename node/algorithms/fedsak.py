"""FedSAK (Liao et al. 2024): the server couples the layers that clients share by the trace norm of their tensor.

    client i:  theta_i <- local work from theta_i, with w_i in its place                                     (8)
               sends w_i, its shared layers w_i^1 .. w_i^L
    server:    W^l = stack(w_1^l, .., w_M^l) in R^{d_1 x .. x d_{p-1} x M}      for each layer l             (4)
               L_r = sum_l sum_k ||W^l_(k)||_*          W^l_(k): W^l unfolded along its mode k, d_k x the rest (5)
               w_i <- w_i - eta lam (d L_r / d W)_i     d||A||_* = U V^T for A = U S V^T                  (6), (7)
               sends each client its own w_i back, in the same round

M are the clients of the round; of the others the server keeps the last w_i. U and V hold the singular vectors of the
singular values that are not zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt

from .base import Client, State
from .server import Uploads
from .shared_layers import SharedLayers


@dataclass(frozen=True)
class FedSAK(SharedLayers):
    name: Literal["fedsak"] = "fedsak"
    lam: Annotated[float, Ge(0), "Weight lambda of the trace norm: how closely clients are coupled."] = 0.01
    eta: Annotated[float, Gt(0), "Step size eta_w of the server along the trace norm's subgradient."] = 0.1

    answers = "same"

    def begin(self, client: Client) -> State:
        """The server keeps {client: its w_i}."""
        return State(w=dict.fromkeys(client.neighbours, self.w(client)) if client.role == "server" else {})

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        w = np.stack(list(uploads.values()))  # (M, d_w)
        shapes = [block.shape for block in self.shared(server.model)]
        moved = w - self.eta * self.lam * trace_norm_subgradient(w, shapes)  # (7)
        server.state.w |= zip(uploads, moved.astype(w.dtype), strict=True)

    def reply(self, server: Client, client: int) -> np.ndarray:
        return server.state.w[client]


def trace_norm_subgradient(w: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    """dL_r/dW (M, d_w) float64 at w (M, d_w): M clients, whose vectors are the layers of these shapes in a row."""
    subgradient = np.zeros(w.shape)
    end = 0
    for shape in shapes:
        start, end = end, end + int(np.prod(shape))
        layer = w[:, start:end].astype(np.float64).reshape(-1, *shape)  # W^l, clients first
        for k in range(layer.ndim):  # a mode each, in any order
            unfolded = np.moveaxis(layer, k, 0)
            slope = orthogonal_factor(unfolded.reshape(len(unfolded), -1), np.finfo(w.dtype).eps)  # U V^T
            subgradient[:, start:end] += np.moveaxis(slope.reshape(unfolded.shape), 0, k).reshape(len(w), -1)
    return subgradient


def orthogonal_factor(matrix: np.ndarray, rounding: float) -> np.ndarray:
    """U V^T of the compact singular value decomposition: a subgradient of the trace norm (6).

    Singular values that the relative ``rounding`` of the matrix's numbers explains count as zero. It moves none by more
    than about ``rounding`` s_0, whatever the shape; the decomposition's own is far smaller, but grows with the shape.
    """
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    rank = int((s > s[0] * max(8 * rounding, max(matrix.shape) * np.finfo(s.dtype).eps)).sum())
    return u[:, :rank] @ vt[:rank]
