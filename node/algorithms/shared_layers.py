"""Models of which clients share some layers, and keep the others to themselves.

A model is a feature extractor phi_i and a prediction head v_i, its last linear layer: theta_i = (phi_i, v_i). What is
shared, w_i, is all of it where only the data differ; the head where extractors differ; the extractor where tasks do.
Clients may differ in everything else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from ..client import Client
from ..model.architecture import Architecture, Parameter
from .base import Edge, RunFacts, SettingsError, Vector
from .server import NEEDS_NEW_UPLOADS, ServerAlgorithm

Share = Annotated[
    Literal["model", "extractor", "head"],
    "Layers w_i that clients share: the whole model, all layers but the last, or the last one. Their shapes must be "
    "the same for all clients; other layers may differ.",
]


@dataclass(frozen=True)
class SharedLayers(ServerAlgorithm):
    """A subclass writes ``aggregate`` and, where it is not as here, ``reply``."""

    share: Share = "model"

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
                raise SettingsError(
                    key,
                    f"clients 0 and {client} differ in the layers that are to be shared, {_told(shapes[0])} and "
                    f"{_told(other)}; choose layers that are alike, or give all clients one model and one task",
                )

    def upload(self, client: Client) -> np.ndarray:
        client.learn()
        return self.w(client)

    def download(self, client: Client, vector: np.ndarray) -> None:
        self.w(client)[:] = vector


def _told(shapes: Sequence[tuple[int, ...]]) -> str:
    return " + ".join("x".join(map(str, shape)) for shape in shapes)
