"""A convolutional autoencoder of images as one flat vector, of which the first part is the encoder."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...topology.errors import UserError

if TYPE_CHECKING:  # the launcher knows shapes, and must not load torch for it
    from torch import Tensor

_DEEP, _FLAT = 16, 4  # channels of the two convolutions


class EncoderError(UserError):
    """An encoder that does not fit; the message is one line for the user."""


@dataclass(frozen=True)
class Autoencoder:
    """Of images (channels, height, width), the last rows and columns left out where 4 does not divide their number.

    Encoder: convolution to 16 channels, ReLU, 2x2 max-pool, convolution to 4 channels, ReLU, 2x2 max-pool (3x3 filters
    with padding 1), one linear layer to the embedding. Decoder: a linear layer, ReLU, transposed convolutions to 16
    channels, ReLU, and to the image, sigmoid (2x2 filters with stride 2).
    """

    image: tuple[int, ...]
    embedding: int

    def __post_init__(self) -> None:
        if len(self.image) != 3 or min(self.image[1:]) < 4:
            raise EncoderError(f"encodes images of at least 4x4 pixels, the data has samples of shape {self.image}")

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width behind the encoder's last pooling."""
        return self.image[1] // 4, self.image[2] // 4

    def _layers(self) -> list[tuple[str, tuple[int, ...], int]]:
        """(name, shape of the weights, number of biases) of each, those of the encoder first."""
        channels, flat = self.image[0], _FLAT * math.prod(self.sides)
        return [
            ("encoder.conv0", (_DEEP, channels, 3, 3), _DEEP),
            ("encoder.conv1", (_FLAT, _DEEP, 3, 3), _FLAT),
            ("encoder.linear", (self.embedding, flat), self.embedding),
            ("decoder.linear", (flat, self.embedding), flat),
            ("decoder.conv0", (_FLAT, _DEEP, 2, 2), _DEEP),
            ("decoder.conv1", (_DEEP, channels, 2, 2), channels),
        ]

    def blocks(self) -> dict[str, tuple[int, ...]]:
        """{name: shape} of the parameters in their order."""
        parts = [{f"{name}.weight": shape, f"{name}.bias": (biases,)} for name, shape, biases in self._layers()]
        return {name: shape for layer in parts for name, shape in layer.items()}

    @property
    def size(self) -> int:
        return sum(math.prod(shape) + biases for _, shape, biases in self._layers())

    @property
    def encoder_size(self) -> int:
        return sum(math.prod(shape) + biases for _, shape, biases in self._layers()[:3])

    @property
    def encoding_flops(self) -> int:
        """Of one image on its way through the encoder."""
        places = 16 * math.prod(self.sides)  # pixels of the image, and a quarter of them behind the first pooling
        convolutions = 9 * (self.image[0] * _DEEP * places + _DEEP * _FLAT * places // 4)
        return 2 * (convolutions + _FLAT * math.prod(self.sides) * self.embedding)

    def start(self, rng: np.random.Generator) -> np.ndarray:
        """(size,): uniform in +-1/sqrt(fan-in) of each layer."""
        parts = []
        for _, shape, biases in self._layers():
            bound = 1 / math.sqrt(math.prod(shape) / biases)
            parts += [rng.uniform(-bound, bound, count) for count in (math.prod(shape), biases)]
        return np.concatenate(parts)

    # -- with torch ----------------------------------------------------------------------------------------------------

    def embed(self, vector: np.ndarray, images: np.ndarray) -> np.ndarray:
        """(n, embedding) of images (n, channels, height, width); the encoder's part of the vector is enough."""
        import torch

        parts = self._views(torch.from_numpy(vector))
        with torch.no_grad():
            chunks = torch.from_numpy(images).split(512)
            return torch.cat([self._encode(parts, chunk.to(parts[0].dtype)) for chunk in chunks]).numpy()

    def train(
        self,
        vector: np.ndarray,
        images: np.ndarray,
        epochs: int,
        rng: np.random.Generator,
        alpha: float = 1e-3,
        batch_size: int = 64,
    ) -> Iterator[float]:
        """Epochs of Adam on the mean squared error of the images that come out; changes ``vector`` (size,) in place.

        Yields the mean of the errors met in each epoch.
        """
        import torch
        import torch.nn.functional as F

        from ..model.adam import Adam

        theta = torch.from_numpy(vector).requires_grad_()
        x = self._cropped(torch.from_numpy(images)).to(theta.dtype)
        adam = Adam(theta)
        for _ in range(epochs):
            errors = []
            for chosen in torch.from_numpy(rng.permutation(len(x))).split(batch_size):
                parts = self._views(theta)
                error = F.mse_loss(self._decode(parts, self._encode(parts, x[chosen])), x[chosen])
                (gradient,) = torch.autograd.grad(error, theta)
                adam.step(gradient, alpha)
                errors.append(float(error.detach()))
            yield sum(errors) / len(errors)

    def _views(self, vector: Any) -> list[Any]:
        """The blocks of a vector, an array or a tensor, that it has: all, or those of the encoder."""
        shapes = list(self.blocks().values())
        ends = np.cumsum([math.prod(shape) for shape in shapes]).tolist()
        blocks = zip([0, *ends], ends, shapes, strict=False)
        return [vector[start:end].reshape(shape) for start, end, shape in blocks if end <= len(vector)]

    def _cropped(self, x: Tensor) -> Tensor:
        height, width = self.sides
        return x[..., : 4 * height, : 4 * width]

    def _encode(self, parts: list[Tensor], x: Tensor) -> Tensor:
        import torch.nn.functional as F

        x = F.max_pool2d(F.relu(F.conv2d(self._cropped(x), parts[0], parts[1], padding=1)), 2)
        x = F.max_pool2d(F.relu(F.conv2d(x, parts[2], parts[3], padding=1)), 2)
        return F.linear(x.flatten(1), parts[4], parts[5])

    def _decode(self, parts: list[Tensor], embedded: Tensor) -> Tensor:
        import torch.nn.functional as F

        x = F.relu(F.linear(embedded, parts[6], parts[7])).view(-1, _FLAT, *self.sides)
        x = F.relu(F.conv_transpose2d(x, parts[8], parts[9], stride=2))
        return F.conv_transpose2d(x, parts[10], parts[11], stride=2).sigmoid()

    def save(self, vector: np.ndarray, path: Path) -> None:
        """A safetensors file with a tensor a block."""
        from safetensors.numpy import save_file

        views = map(np.ascontiguousarray, self._views(vector.astype(np.float32)))
        unfinished = path.with_name(f"{path.name}.part")
        about = {"image": json.dumps(self.image), "embedding": str(self.embedding)}
        save_file(dict(zip(self.blocks(), views, strict=True)), unfinished, about)
        unfinished.replace(path)

    def load(self, path: Path) -> np.ndarray:
        """(size,) float32. Raises EncoderError."""
        from safetensors import SafetensorError, safe_open

        try:
            if path.exists() and not path.is_file():
                raise OSError("is no plain file")  # opening a pipe may never end
            with safe_open(path, framework="numpy") as file:
                shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
                if shapes != self.blocks():
                    about = file.metadata() or {}
                    raise EncoderError(
                        f"is an encoder of images of shape {about.get('image', '?')} with an embedding of "
                        f"{about.get('embedding', '?')}; needed are {list(self.image)} and {self.embedding}"
                    )
                return np.concatenate([file.get_tensor(name).ravel() for name in self.blocks()])
        except OSError as error:
            told = f"cannot be read: {error.strerror or error} (`sheafgossip encoder train` makes one)"
        except SafetensorError as error:
            told = f"is no safetensors file ({error})"
        raise EncoderError(told)
