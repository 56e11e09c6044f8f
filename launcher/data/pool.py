"""All samples of a run, before they are spread over the clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ...topology.errors import UserError

Task = Literal["classification", "regression"]

_LONGEST_NAME = 80


class DataError(UserError):
    """What is wrong with the user's data: the key or the file, its value, and what is allowed, in one line."""


@dataclass(frozen=True)
class Pool:
    """Samples in the number type of their files: 70,000 images as bytes take 55 MB, as floats 220 MB."""

    x: np.ndarray
    """Images (n, channels, height, width), rows of features (n, features) or series (n, steps, features); a model sees
    x / scale as float32."""
    y: np.ndarray
    """classification: class numbers 0 .. outputs - 1, int64 (n,); regression: float32 (n, outputs)."""
    task: Task
    outputs: int
    """Number of classes, or of regression targets."""
    scale: float = 1.0
    client: np.ndarray | None = None
    """Owner 0, 1, ... of each sample, int64 (n,), where the data set says who that is."""
    owners: tuple[str, ...] | None = None
    """The names of owners 0, 1, ..., where they have any."""
    groups: np.ndarray | None = None
    """Group of each owner, int64 (owners,), where the data set knows which owners have similar data."""
    in_time_order: bool = False
    """Whether samples come in the order of time: then the latest of a client's are its test samples."""
    told: tuple[str, ...] = ()
    """What there is to tell of how the samples were read."""

    def __len__(self) -> int:
        return len(self.x)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.x.shape[1:]

    @property
    def holds_images(self) -> bool:
        return self.x.ndim == 4

    def owner(self, rows: np.ndarray) -> str:
        """What the owner of these samples is called; "" where nobody owns them."""
        if self.client is None or not len(rows):
            return ""
        number = int(self.client[rows[0]])
        name = f"{number}" if self.owners is None else self.owners[number]
        return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"

    def take(self, rows: np.ndarray) -> Pool:
        client = None if self.client is None else self.client[rows]
        return replace(self, x=self.x[rows], y=self.y[rows], client=client)

    def inputs(self, rows: np.ndarray) -> np.ndarray:
        """x / scale of the given rows, float32."""
        return np.divide(self.x[rows], np.float32(self.scale), dtype=np.float32)
