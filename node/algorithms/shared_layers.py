"""Models of which clients share some layers, and keep the others to themselves; and the simplest algorithm for them.

A model is a feature extractor phi_i and a prediction head v_i, its last linear layer: theta_i = (phi_i, v_i). What is
shared, w_i, is all of it where only the data differ; the head where extractors differ; the extractor where tasks do.
Clients may differ in everything else.

FedAvg-c (Liao et al. 2024, their baseline), FedAvg over w_i:

client i:  (w_i, rest_i) <- local work from (w, rest_i)
server:    w <- sum_i n_i/n w_i                  over the clients of the round, n_i their training samples
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from ..model.architecture import Architecture, Parameter
from .base import Client, Edge, RunFacts, SettingsError, Vector
from .server import NEEDS_NEW_UPLOADS, ServerAlgorithm, Uploads, weighted_mean


@dataclass(frozen=True)
class SharedLayers(ServerAlgorithm):
    """A subclass writes ``aggregate`` and, where it is not as here, ``reply``."""

    share: Annotated[
        Literal["model", "extractor", "head"],
        "Layers w_i that clients share: the whole model, all layers but the last, or the last one. Their shapes must "
        "be the same for all clients; other layers may differ.",
    ] = "model"

    theta_is = "own"
    traits = replace(NEEDS_NEW_UPLOADS, same_size=False)

    def shared(self, model: Architecture) -> Sequence[Parameter]:
        """Those of the blocks of theta that make up w."""
        *extractor, weight, bias = model.parameters()
        return {"model": (*extractor, weight, bias), "extractor": extractor, "head": (weight, bias)}[self.share]

    def w(self, client: Client) -> np.ndarray:
        """w_i (d_w,), a part of theta_i."""
        size = sum(block.size for block in self.shared(client.model))
        start = client.theta.size - size if self.share == "head" else 0
        return client.theta[start : start + size]

    def messages(self, edge: Edge) -> list[Vector]:
        return [Vector(sum(block.size for block in self.shared(edge.model)))]  # alike at both ends

    def check(self, run: RunFacts) -> None:
        key = f"algorithm.share = {self.share!r}"
        shapes = [[block.shape for block in self.shared(model)] for model in run.models]
        if not shapes[0]:
            raise SettingsError(key, f"a {run.models[0].kind} model is a head only; allowed are 'model' and 'head'")
        for client, other in enumerate(shapes):
            if other != shapes[0]:
                first, second = (" + ".join("x".join(map(str, block)) for block in each) for each in (shapes[0], other))
                raise SettingsError(
                    key,
                    f"clients 0 and {client} differ in the layers that are to be shared, {first} and {second}; choose "
                    "layers that are alike, or give all clients one model and one task",
                )

    def upload(self, client: Client) -> np.ndarray:
        client.learn()
        return self.w(client)

    def download(self, client: Client, vector: np.ndarray) -> None:
        self.w(client)[:] = vector


@dataclass(frozen=True)
class FedAvgC(SharedLayers):
    """FedAvg-c (Liao et al. 2024, their baseline): FedAvg over the layers w_i that clients have in common."""

    name: Literal["fedavg-c"] = "fedavg-c"

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        self.w(server)[:] = weighted_mean(server, uploads)

    def reply(self, server: Client, client: int) -> np.ndarray:
        return self.w(server)
