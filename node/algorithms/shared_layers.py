"""Models of which clients share some layers, and keep the others to themselves.

A model is a feature extractor phi_i and a prediction head v_i, its last linear layer: theta_i = (phi_i, v_i). What is
shared, w_i, is all of it where only the data differ; the head where extractors differ; the extractor where tasks do.
Clients may differ in everything else.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np

from ..client import Client
from ..model.architecture import Architecture, Parameter
from .base import SettingsError, Way
from .server import ServerAlgorithm

Share = Annotated[
    Literal["model", "extractor", "head"],
    "Layers w_i that clients share: the whole model, all layers but the last, or the last one. Their shapes must be "
    "the same for all clients; other layers may differ.",
]


class SharedLayers(ServerAlgorithm):
    """A subclass writes ``aggregate`` and, where it is not as here, ``reply``. Settings need a ``share``."""

    has_common_model = False

    def __init__(self, settings: Any, client: Client):
        super().__init__(settings, client)
        self.layers = self.shared(settings, client.model.parameters())
        start = 0 if settings.share != "head" else client.theta.size - sum(block.size for block in self.layers)
        self.w = client.theta[start : start + sum(block.size for block in self.layers)]
        """w_i (d_w,), a part of theta_i."""

    @classmethod
    def shared(cls, settings: Any, blocks: Sequence[Parameter]) -> Sequence[Parameter]:
        """Those of the blocks of a theta that make up w."""
        *extractor, weight, bias = blocks
        return {"model": blocks, "extractor": extractor, "head": (weight, bias)}[settings.share]

    @classmethod
    def lengths(cls, settings: Any, way: Way) -> tuple[int, ...]:
        return (sum(block.size for block in cls.shared(settings, way.model.parameters())),)  # alike at both ends

    @classmethod
    def check(cls, settings: Any, sizes: Sequence[int], edges: Sequence[tuple[int, int]]) -> None:
        """What is shared is compared in check_models, shape by shape."""

    @classmethod
    def check_models(cls, settings: Any, models: Sequence[Architecture], task: str, same_start: bool) -> None:
        key = f"algorithm.share = {settings.share!r}"
        shapes = [[block.shape for block in cls.shared(settings, model.parameters())] for model in models]
        if not shapes[0]:
            raise SettingsError(key, f"a {models[0].kind} model is a head only; allowed are 'model' and 'head'")
        for client, other in enumerate(shapes):
            if other != shapes[0]:
                raise SettingsError(
                    key,
                    f"clients 0 and {client} differ in the layers that are to be shared, {_told(shapes[0])} and "
                    f"{_told(other)}; choose layers that are alike, or give all clients one model and one task",
                )

    def upload(self, client: Client) -> np.ndarray:
        client.learn()
        return self.w

    def download(self, client: Client, vector: np.ndarray) -> None:
        self.w[:] = vector


def _told(shapes: Sequence[tuple[int, ...]]) -> str:
    return " + ".join("x".join(map(str, shape)) for shape in shapes)
