"""What every kind of restriction maps can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np


class Maps(ABC):
    """The maps P_ij (d_ij, d_i) of one client i, one for each neighbour j, all at once."""

    neighbours: tuple[int, ...]

    @abstractmethod
    def project(self, theta: np.ndarray) -> dict[int, np.ndarray]:
        """{j: P_ij theta}, vectors of length d_ij."""

    @abstractmethod
    def pull_back(self, vectors: Mapping[int, np.ndarray]) -> np.ndarray:
        """sum_j P_ij^T v_j, (d_i,)."""

    @abstractmethod
    def update(self, r: Mapping[int, np.ndarray], theta: np.ndarray, step: float) -> None:
        """P_ij <- P_ij - step r_j theta^T for every j."""

    @abstractmethod
    def dense(self, neighbour: int) -> np.ndarray:
        """P_ij as a matrix."""

    @abstractmethod
    def state_bytes(self) -> int: ...

    @abstractmethod
    def state(self) -> dict[str, np.ndarray]:
        """What rebuilds the maps, for a checkpoint."""
