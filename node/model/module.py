"""A client's model after a run, as a torch.nn.Module."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .architecture import Architecture, ArchitectureError, Given
from .networks import TorchModel, views
from .own import made


class Layers(nn.Module):
    """An architecture whose parameters have the names of its blocks; it computes what a client does."""

    def __init__(self, architecture: Architecture, theta: np.ndarray):
        super().__init__()
        self._model = TorchModel(Given(architecture, "classification", theta, np.zeros_like(theta)))
        for block, view in zip(architecture.parameters(), views(architecture, theta), strict=True):
            layer, _, name = block.name.partition(".")
            if layer not in self._modules:
                self.add_module(layer, nn.Module())
            self.get_submodule(layer).register_parameter(name, nn.Parameter(view))
        self._model.use_parameters(list(self.parameters()))

    def forward(self, x: Tensor) -> Tensor:
        return self._model.predict(x)


def module_of(
    architecture: Architecture,
    state: Mapping[str, np.ndarray],
    make: Callable[..., Any] | None,
    seed: int,
    *client: int,
) -> nn.Module:
    """Returns the module with the parameters and buffers of a client's state, to be evaluated. ``make`` makes one of
    the user's own, which draws as it did for the client. Raises ArchitectureError where they do not fit."""
    theta = state["theta"]
    if len(theta) != architecture.size:
        raise ArchitectureError(f"theta has {len(theta)} numbers, and {architecture.label} {architecture.size}")
    if make is None:
        return Layers(architecture, theta).eval()
    module = made(make, architecture, theta.dtype, seed, *client)
    trained = {name: each for name, each in module.named_parameters() if each.requires_grad}
    buffers = {f"buffer.{name}": each for name, each in module.named_buffers()}
    found = tuple((name, tuple(each.shape)) for name, each in trained.items())
    if architecture.own is None or found != architecture.own.blocks or not buffers.keys() <= state.keys():
        raise ArchitectureError(f"{architecture.label}: makes another module now than it made for the run's clients")
    with torch.no_grad():
        for parameter, view in zip(trained.values(), views(architecture, theta), strict=True):
            parameter.copy_(view)
        for name, each in buffers.items():
            each.copy_(torch.from_numpy(state[name]).reshape(each.shape))
    return module.eval()
