"""FedAvg-c and FedSAK: models of which clients share some layers, and keep the others to themselves. A
model is a feature extractor phi_i, its body, and a prediction head v_i: theta_i = (phi_i, v_i). What is shared, w_i, is
all of it where only the data differ; the head where extractors differ; the extractor where tasks do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import MinLen

from ...topology.section import NotNegative, Positive, Read
from ..model.architecture import Architecture, Block, Parameter
from .base import Client, Edge, RunFacts, SettingsError, State, Vector, weighted_mean
from .secure import SecureSum
from .server import NEEDS_NEW_UPLOADS, ServerAlgorithm, Uploads

_BLOCKS: dict[str, Block] = {"extractor": "body", "head": "head"}


def _weights(value: Any) -> Any:
    return (value,) if type(value) in (int, float) else tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class SharedLayers(ServerAlgorithm):
    """A subclass says which layers w_i clients share, whose shapes must be the same for all; the others may differ. The
    server takes their mean, where the subclass does not say otherwise."""

    theta_is = "own"
    traits = replace(NEEDS_NEW_UPLOADS, same_size=False)

    def shared(self, model: Architecture) -> Sequence[Parameter]:
        """Returns the blocks of theta that make up w."""
        raise NotImplementedError

    def places(self, client: Client) -> slice | np.ndarray:
        """Returns where w_i is in theta_i."""
        return client.model.places_of(self.shared(client.model))

    def w(self, client: Client) -> np.ndarray:
        """Returns w_i (d_w,), a part of theta_i."""
        return client.theta[self.places(client)]

    def messages(self, edge: Edge) -> list[Vector]:
        return [Vector(sum(block.size for block in self.shared(edge.model)))]  # alike at both ends

    def check(self, run: RunFacts) -> None:
        require_alike(run, f"algorithm.name = {self.name!r}", self.shared)

    def upload(self, client: Client) -> np.ndarray:
        client.learn()
        return self.w(client)

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        server.theta[self.places(server)] = weighted_mean(server, uploads)

    def reply(self, server: Client, client: int) -> np.ndarray:
        return self.w(server)

    def download(self, client: Client, vector: np.ndarray) -> None:
        client.theta[self.places(client)] = vector


def require_alike(run: RunFacts, key: str, shared: Callable[[Architecture], Sequence[Parameter]]) -> None:
    """Raises SettingsError where clients differ in the layers that they are to share."""
    shapes = [[block.shape for block in shared(model)] for model in run.models]
    for client, other in enumerate(shapes):
        if other != shapes[0]:
            first, second = (" + ".join("x".join(map(str, block)) for block in each) for each in (shapes[0], other))
            raise SettingsError(
                key,
                f"clients 0 and {client} differ in the layers that are to be shared, {first} and {second}; choose "
                "layers that are alike, or give all clients one model and one task",
            )


@dataclass(frozen=True)
class ChosenLayers(SharedLayers):
    share: Literal["model", "extractor", "head"] = "model"
    """Layers w_i that clients share: the whole model, its body, or its head (``model.head``). Their shapes must be the
    same for all clients; other layers may differ."""

    def shared(self, model: Architecture) -> Sequence[Parameter]:
        return model.parameters() if self.share == "model" else model.parameters_of(_BLOCKS[self.share])

    def check(self, run: RunFacts) -> None:
        key, model = f"algorithm.share = {self.share!r}", run.models[0]
        if not self.shared(model):
            raise SettingsError(key, f"a {model.kind} model is a head only; allowed are 'model' and 'head'")
        require_alike(run, key, self.shared)


@dataclass(frozen=True)
class FedAvgC(SecureSum, ChosenLayers):
    """FedAvg-c (Liao et al. 2024, their baseline): FedAvg over the layers w_i that clients have in common.

    client i:  (w_i, rest_i) <- local work from (w, rest_i)
    server:    w <- sum_i n_i/n w_i                  over the clients of the round, n_i their training samples"""

    name: Literal["fedavg-c"] = "fedavg-c"

    weighted = True


@dataclass(frozen=True)
class FedSAK(ChosenLayers):
    """FedSAK (Liao et al. 2024): the server couples the layers that clients share by the trace norm of their tensor.

    client i:  theta_i <- local work from theta_i, with w_i in its place                                     (8)
               sends w_i, its shared layers w_i^1 .. w_i^L
    server:    W^l = stack(w_1^l, .., w_M^l) in R^{d_1 x .. x d_{p-1} x M}      for each layer l             (4)
               L_r = sum_l sum_k alpha_k ||W^l_(k)||_*  W^l_(k): W^l unfolded along its mode k, d_k x the rest (2), (5)
               w_i <- w_i - eta lam (d L_r / d W)_i     d||A||_* = U V^T for A = U S V^T                  (6), (7)
               sends each client its own w_i back, in the same round

    M are the clients of the round; of the others the server keeps the last w_i. U and V hold the singular vectors of
    the singular values that are not zero."""

    name: Literal["fedsak"] = "fedsak"
    lam: Annotated[NotNegative, "Weight lambda of the trace norm: how closely clients are coupled."] = 0.01
    eta: Annotated[Positive, "Step size eta_w of the server along the trace norm's subgradient."] = 0.1

    mode_weights: Annotated[tuple[NotNegative, ...], MinLen(1), Read(_weights)] = (1.0,)
    """Weights alpha_k of the modes: a number for all, or a list with one for each mode of the shared layer that has the
    most, the clients' mode last; a layer with fewer modes has the first ones and the last."""

    answers = "same"

    def check(self, run: RunFacts) -> None:
        super().check(run)
        modes = 1 + max(len(block.shape) for block in self.shared(run.models[0]))
        if len(self.mode_weights) not in (1, modes):
            key = f"algorithm.mode_weights = {list(self.mode_weights)}"
            raise SettingsError(
                key,
                f"allowed are a number, or {modes} of them: the shared layers have {modes - 1} modes at most, and the "
                "clients' is the last",
            )

    def begin(self, client: Client) -> State:
        """The server keeps {client: its w_i}."""
        return State(w=dict.fromkeys(client.neighbours, self.w(client)) if client.role == "server" else {})

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        w = np.stack(list(uploads.values()))  # (M, d_w)
        shapes = [block.shape for block in self.shared(server.model)]
        moved = w - self.eta * self.lam * trace_norm_subgradient(w, shapes, self.mode_weights)  # (7)
        server.state.w |= zip(uploads, moved.astype(w.dtype), strict=True)

    def reply(self, server: Client, client: int) -> np.ndarray:
        return server.state.w[client]


def trace_norm_subgradient(
    w: np.ndarray, shapes: Sequence[tuple[int, ...]], alpha: Sequence[float] = (1.0,)
) -> np.ndarray:
    """Returns dL_r/dW (M, d_w) float64 at w (M, d_w): M clients, whose vectors are the layers of these shapes, and
    ``alpha`` the weights of their modes, the clients' the last, or one for all."""
    subgradient, end = np.zeros(w.shape), 0
    for shape in shapes:
        start, end = end, end + int(np.prod(shape))
        layer = w[:, start:end].astype(np.float64).reshape(-1, *shape)  # W^l, clients first
        weights = [alpha[-1], *(alpha[: len(shape)] if len(alpha) > 1 else [*alpha] * len(shape))]
        for k, weight in enumerate(weights):  # a mode each, in any order
            if weight:
                unfolded = np.moveaxis(layer, k, 0)
                slope = orthogonal_factor(unfolded.reshape(len(unfolded), -1), np.finfo(w.dtype).eps)  # U V^T
                folded = np.moveaxis(slope.reshape(unfolded.shape), 0, k)
                subgradient[:, start:end] += weight * folded.reshape(len(w), -1)
    return subgradient


def orthogonal_factor(matrix: np.ndarray, rounding: float) -> np.ndarray:
    """Returns U V^T of the compact singular value decomposition: a subgradient of the trace norm (6). Singular values
    that the relative ``rounding`` of the matrix's numbers explains count as zero. It moves none by more than about
    ``rounding`` s_0, whatever the shape; the decomposition's own is far smaller, but grows with the shape."""
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    rank = int((s > s[0] * max(8 * rounding, max(matrix.shape) * np.finfo(s.dtype).eps)).sum())
    return u[:, :rank] @ vt[:rank]
