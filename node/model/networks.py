"""Models and Adam in torch, over views of one flat vector."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from .architecture import Architecture, Convolution, Given
from .dropout import Dropout
from .pull import Pull


class TorchModel:
    """An architecture over one flat vector theta (d,), with its gradient in another: it keeps views of both."""

    _own_loss: Callable[[Tensor, Tensor], Tensor] | None = None  # of each sample, in place of the task's

    def __init__(self, given: Given):
        architecture, task, theta, gradient, key = given
        self._dropout = Dropout(architecture.dropout, key)
        self._architecture, self._classifies = architecture, task == "classification"
        self._parameters = views(architecture, theta)
        for parameter, slope in zip(self._parameters, views(architecture, gradient), strict=True):
            parameter.requires_grad_().grad = slope  # backward() adds into the flat buffer

    def use_parameters(self, parameters: Sequence[Tensor]) -> None:
        """Takes these, of the same shapes, in place of its views of theta."""
        self._parameters = list(parameters)

    def predict(self, x: Tensor) -> Tensor:
        """Returns the scores, or predictions, (samples, outputs)."""
        return self._forward(x)[1]

    def read(self, shard: Path, names: Sequence[str]) -> list[Tensor]:
        """Samples or targets as the other methods take them, mapped from the file; only another type makes copies."""
        dtype = self._parameters[0].dtype
        with safe_open(shard, framework="pt") as file:
            tensors = map(file.get_tensor, names)
            return [each.to(dtype) if each.is_floating_point() else each for each in tensors]

    def rows(self, x: Tensor, chosen: np.ndarray) -> Tensor:
        return x[torch.from_numpy(chosen)]

    def add_gradient(self, x: Tensor, y: Tensor, samples: int, pull: Pull | None = None) -> float:
        """Adds the gradient of loss / samples to the gradient's vector; returns loss / samples."""
        self._dropout.begin_pass()
        seen, z = self._forward(x)
        summed = self._loss(z, y)
        if callable(pull):
            added, slope = pull(seen.detach().numpy())
            linear = (seen * torch.from_numpy(slope)).sum()
            summed = summed + linear + (added - linear.detach())
        elif pull is not None:
            anchors, weight = torch.from_numpy(pull[0]), pull[1]
            summed = summed + weight * ((seen - anchors[y]) ** 2).sum()
        mean = summed / samples
        mean.backward()
        return float(mean.detach())

    @torch.no_grad()
    def evaluate(self, x: Tensor, y: Tensor) -> tuple[float, float]:
        """The loss, and the number of correct classifications or the squared error."""
        _, z = self._forward(x)
        loss = self._loss(z, y)
        return float(loss), float((z.argmax(1) == y).sum() if self._classifies else F.mse_loss(z, y, reduction="sum"))

    def learn_with(self, loss: Callable[..., Tensor], options: Mapping[str, Any]) -> None:
        """``loss`` is the user's own."""
        self._own_loss = lambda z, y: loss(z, y, **options)

    @torch.no_grad()
    def outputs(self, x: Tensor) -> np.ndarray:
        """(samples, outputs): the scores, or predictions."""
        return self.predict(x).numpy()

    @torch.no_grad()
    def features(self, x: Tensor) -> np.ndarray:
        """(samples, features): the inputs of the last layer, the head."""
        return self._forward(x)[0].numpy()

    @staticmethod
    def add(vector: np.ndarray, other: np.ndarray, factor: float) -> None:
        torch.from_numpy(vector).add_(torch.from_numpy(other), alpha=factor)

    def _forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what the last layer sees, and the predictions."""
        features = self._features(x)
        return features, F.linear(features, *self._parameters[-2:])

    def _features(self, x: Tensor) -> Tensor:
        model, blocks = self._architecture, iter(self._parameters)
        if model.kind == "cnn":
            for layer in model.convolutions:
                weight, bias = next(blocks), next(blocks)
                x = _convolved(x, weight, bias if model.norm_groups else None, layer)
                if model.norm_groups:
                    x = F.group_norm(x, model.norm_groups, next(blocks), next(blocks))
                # ReLU and a bias commute with the maximum, which leaves them fewer numbers
                x = F.max_pool2d(x, layer.pool) if layer.pool > 1 else x
                x = F.relu(x if model.norm_groups else x + bias.view(-1, 1, 1))
        if model.kind == "gru":
            gates = [next(blocks) for _ in range(4)]
            x = x.view(len(x), *model.series)
            start = x.new_zeros(1, len(x), *model.hidden)
            # has_biases, num_layers, dropout, train, bidirectional, batch_first
            _, state = torch.gru(x, start, gates, True, 1, 0.0, True, False, True)
            return self._thinned(state[0])
        x = x.flatten(1)
        for _ in () if model.is_linear else model.hidden:
            x = self._thinned(F.relu(F.linear(x, next(blocks), next(blocks))))
        return x

    def _thinned(self, x: Tensor) -> Tensor:
        """Dropout, in training."""
        if not self._dropout.p or not torch.is_grad_enabled():
            return x
        return x * torch.from_numpy(self._dropout.factors(tuple(x.shape), x.detach().numpy().dtype))

    def _loss(self, z: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy, or squared error over all targets, or the user's own, summed over samples."""
        if self._own_loss is not None:
            return self._own_loss(z, y).sum()
        return (F.cross_entropy if self._classifies else F.mse_loss)(z, y, reduction="sum")

    def state(self) -> dict[str, np.ndarray]:
        """Returns what the model keeps beside theta."""
        return self._dropout.state()

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self._dropout.load(state)


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None, layer: Convolution) -> Tensor:
    """Returns the convolution of (n, channels, height, width), with the channels last. Torch's own is slow where there
    is one alone: that is a product with all patches of an image."""
    if x.shape[1] > 1:
        x = x.contiguous(memory_format=torch.channels_last)
        z = F.conv2d(x, weight, bias, layer.stride, layer.padding)
        return z.contiguous(memory_format=torch.channels_last)
    size, stride = layer.kernel, layer.stride
    patches = F.pad(x[:, 0], (layer.padding,) * 4).unfold(1, size, stride).unfold(2, size, stride)
    return F.linear(patches.flatten(3), weight.flatten(1), bias).permute(0, 3, 1, 2)


def views(architecture: Architecture, vector: np.ndarray) -> list[Tensor]:
    blocks = architecture.parameters()
    parts = torch.split(torch.from_numpy(vector), [block.size for block in blocks])
    return [part.view(block.shape) for part, block in zip(parts, blocks, strict=True)]


class Adam:
    """Adam (Kingma and Ba 2015), on one flat vector:

    m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2,   x <- x - eta (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + e)

    with b1 = 0.9, b2 = 0.999 and e = 1e-8, as in torch.optim.Adam, whose constructor takes a second and 100 MB."""

    def __init__(self, x: Tensor, shares: tuple[float, float] = (0.1, 0.001)):
        """``x`` is changed in place; ``shares`` are 1 - b1 and 1 - b2, to the last digit."""
        self._x, self._shares = x, shares
        self._m, self._v = (torch.zeros_like(x, requires_grad=False) for _ in range(2))
        self._steps = 0

    @torch.no_grad()
    def step(self, g: Tensor, eta: float) -> None:
        of_g, of_square = self._shares
        b1, b2 = 1 - of_g, 1 - of_square
        self._steps += 1
        self._m.mul_(b1).add_(g, alpha=of_g)
        self._v.mul_(b2).addcmul_(g, g, value=of_square)
        scale = (self._v / (1 - b2**self._steps)).sqrt_().add_(1e-8)
        self._x.addcdiv_(self._m, scale, value=-eta / (1 - b1**self._steps))

    def arrays(self) -> dict[str, np.ndarray]:
        return {"adam.m": self._m.numpy(), "adam.v": self._v.numpy(), "adam.steps": np.array([self._steps])}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._m.numpy()[:], self._v.numpy()[:] = arrays["adam.m"], arrays["adam.v"]
        self._steps = int(arrays["adam.steps"][0])
