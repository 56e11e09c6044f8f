"""The forward pass and the loss of an architecture, over views of one flat vector."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from .architecture import Architecture


class TorchModel:
    """An architecture over one flat vector theta (d,), with its gradient in another."""

    def __init__(self, architecture: Architecture, task: str, theta: np.ndarray, gradient: np.ndarray):
        """Both (d,), of which the model keeps views."""
        self._architecture = architecture
        self._task = task
        self._parameters = _views(architecture, torch.from_numpy(theta))
        for parameter, slope in zip(self._parameters, _views(architecture, torch.from_numpy(gradient)), strict=True):
            parameter.requires_grad_().grad = slope  # backward() adds into the flat buffer

    def read(self, shard: Path, names: Sequence[str]) -> list[Tensor]:
        """Samples or targets as the other methods take them, mapped from the file; only another type makes copies."""
        dtype = self._parameters[0].dtype
        with safe_open(shard, framework="pt") as file:
            tensors = map(file.get_tensor, names)
            return [each.to(dtype) if each.is_floating_point() else each for each in tensors]

    def rows(self, x: Tensor, chosen: np.ndarray) -> Tensor:
        return x[torch.from_numpy(chosen)]

    def add_gradient(self, x: Tensor, y: Tensor, samples: int, pull: tuple[np.ndarray, float] | None = None) -> float:
        """Adds the gradient of loss / samples to the gradient's vector; returns loss / samples.

        ``pull``, (anchors, weight), adds weight * ||features - anchor of its class||^2 to the loss of each sample.
        """
        seen = self._features(x)
        summed, _ = self._loss(seen, y)
        if pull is not None:
            anchors, weight = torch.from_numpy(pull[0]), pull[1]
            summed = summed + weight * ((seen - anchors[y]) ** 2).sum()
        mean = summed / samples
        mean.backward()
        return float(mean.detach())

    @torch.no_grad()
    def evaluate(self, x: Tensor, y: Tensor) -> tuple[float, float]:
        """The loss, and the number of correct classifications or the squared error."""
        loss, z = self._loss(self._features(x), y)
        summed = float(loss)
        return summed, float((z.argmax(1) == y).sum()) if self._task == "classification" else summed

    @torch.no_grad()
    def features(self, x: Tensor) -> np.ndarray:
        """(samples, features): what the last layer, the head, gets to see."""
        return self._features(x).numpy()

    @staticmethod
    def add(vector: np.ndarray, other: np.ndarray, factor: float) -> None:
        """vector += factor * other."""
        torch.from_numpy(vector).add_(torch.from_numpy(other), alpha=factor)

    def _features(self, x: Tensor) -> Tensor:
        model, blocks = self._architecture, iter(self._parameters)
        if model.kind == "cnn":
            if x.shape[1] > 1:  # torch is quicker with the channels last, but not where there is one alone
                x = x.contiguous(memory_format=torch.channels_last)
            for _ in model.filters:
                x = F.conv2d(x, next(blocks), next(blocks), padding="same" if model.padding else 0)
                x = x.contiguous(memory_format=torch.channels_last)
                if model.norm_groups:
                    x = F.group_norm(x, model.norm_groups, next(blocks), next(blocks))
                x = F.relu(F.max_pool2d(x, 2))  # the two commute; fewer ReLUs this way
        if model.kind == "gru":
            gates = [next(blocks) for _ in range(4)]
            x = x.view(len(x), *model.series)
            start = x.new_zeros(1, len(x), *model.hidden)
            # has_biases, num_layers, dropout, train, bidirectional, batch_first
            _, state = torch.gru(x, start, gates, True, 1, 0.0, True, False, True)
            x = state[0]
        x = x.flatten(1)
        for _ in model.hidden if model.kind in ("cnn", "mlp") else ():
            x = F.relu(F.linear(x, next(blocks), next(blocks)))
        return x

    def _loss(self, features: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy, or squared error over all targets, summed over samples; and the predictions."""
        z = F.linear(features, *self._parameters[-2:])
        loss = F.cross_entropy if self._task == "classification" else F.mse_loss
        return loss(z, y, reduction="sum"), z


def _views(architecture: Architecture, vector: Tensor) -> list[Tensor]:
    """The blocks of a flat vector (d,), sharing its memory."""
    blocks = architecture.parameters()
    parts = torch.split(vector, [block.size for block in blocks])
    return [part.view(block.shape) for part, block in zip(parts, blocks, strict=True)]
