"""The forward pass and the loss of an architecture, over views of one flat vector."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .architecture import Architecture


def forward(architecture: Architecture, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
    """(batch, outputs) scores or predictions for x (batch, *input_shape); parameters in the architecture's order."""
    return F.linear(features(architecture, parameters, x), *parameters[-2:])


def features(architecture: Architecture, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
    """(batch, features): what the last layer, the head, gets to see."""
    blocks = iter(parameters)
    if architecture.kind == "cnn":
        for _ in architecture.filters:
            x = F.relu(
                F.max_pool2d(F.conv2d(x, next(blocks), next(blocks)), 2)
            )  # the two commute; fewer ReLUs this way
    if architecture.kind == "gru":
        gates = [next(blocks) for _ in range(4)]
        x = x.view(len(x), *architecture.series)
        start = x.new_zeros(1, len(x), *architecture.hidden)
        _, state = torch.gru(
            x,
            start,
            gates,
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=True,
            bidirectional=False,
            batch_first=True,
        )
        x = state[0]
    x = x.flatten(1)
    for _ in architecture.hidden if architecture.kind in ("cnn", "mlp") else ():
        x = F.relu(F.linear(x, next(blocks), next(blocks)))
    return x


def loss(task: str, predictions: Tensor, y: Tensor) -> Tensor:
    """Summed over samples: cross-entropy for classification, squared error over all targets for regression."""
    if task == "classification":
        return F.cross_entropy(predictions, y, reduction="sum")
    return F.mse_loss(predictions, y, reduction="sum")


def metric(task: str, predictions: Tensor, y: Tensor) -> float:
    """Summed over samples: correct classifications (accuracy times samples), or squared error (MSE times samples)."""
    if task == "classification":
        return float((predictions.argmax(1) == y).sum())
    return float(loss(task, predictions, y))


def views(architecture: Architecture, vector: Tensor) -> list[Tensor]:
    """The blocks of a flat vector (d,), sharing its memory."""
    blocks = architecture.parameters()
    parts = torch.split(vector, [block.size for block in blocks])
    return [part.view(block.shape) for part, block in zip(parts, blocks, strict=True)]
