"""How maps that change are stored: as asked for, or in whichever way makes the coming round cheaper."""

from collections.abc import Mapping
from typing import Literal, Self

import numpy as np

from ..model.flops import product_flops
from .base import Maps, Stacking, Vectors
from .factored import FactoredMaps, block_rows
from .start import StartingMaps, time_of_a_number

Storage = Literal["auto", "dense", "factored"]

# What a round takes, in nanoseconds, fitted to benchmarks/maps.py on one core of a 2.8 GHz server. Only the ratio of
# the two storages matters, and that hardly depends on the machine. Both read matrices, at time_of_a_number each;
# factored maps make more calls, which is what small models are about.
_SUBTRACTION = 1.5  # an outer product is subtracted in place: more than a product that only reads
_HISTORY = 2.2  # it is read twice, block by block, and the blocks' products are added up
_CALLS = 30_000.0  # of a factored round beyond those of a dense one
_CALLS_OF_AN_EDGE = 1_000.0
_CALLS_OF_A_BLOCK = 10_000.0  # of the history


class DenseMaps(Maps):
    """Plain matrices, as the paper writes them.

    Memory: sum_j d_ij x d_i numbers, all of them read or written five times a round.
    """

    def __init__(self, matrix: np.ndarray, stacking: Stacking, squared_norms: Mapping[int, float]):
        """``matrix`` is all maps stacked, (sum_j d_ij, d_i), row by row in memory; it is changed in place."""
        super().__init__(stacking, squared_norms)
        self._matrix = np.ascontiguousarray(matrix)

    @classmethod
    def start(cls, start: StartingMaps) -> Self:
        matrix = np.empty((start.stacking.height, start.size), start.dtype)
        for part in start.stacking.parts.values():
            matrix[part] = start.matrix(part)
        return cls(matrix, start.stacking, start.squared_norms())

    def project(self, theta: np.ndarray) -> dict[int, np.ndarray]:
        self._flops += product_flops(self._matrix.size)
        return self.stacking.split(self._matrix @ theta)

    def pull_back(self, vectors: Vectors) -> np.ndarray:
        if not self.neighbours:
            return np.zeros_like(self._matrix, shape=self._matrix.shape[1])
        self._flops += product_flops(self._matrix.size)
        return self.stacking.join(vectors) @ self._matrix

    def _subtract(self, mine: Vectors, r: Vectors, theta: np.ndarray, step: float) -> None:
        from scipy.linalg.blas import get_blas_funcs

        # numpy would write the outer product out before subtracting it: two to four times slower
        subtract_outer = get_blas_funcs("ger", dtype=self._matrix.dtype)
        self._flops += product_flops(self._matrix.size)
        subtract_outer(-step, theta, self.stacking.join(r), a=self._matrix.T, overwrite_a=True)

    def dense(self, neighbour: int) -> np.ndarray:
        return self._matrix[self.stacking.parts[neighbour]]

    def state_bytes(self) -> int:
        return self._matrix.nbytes

    def state(self) -> dict[str, np.ndarray]:
        return {"maps": self._matrix, "map_squared_norms": np.array(list(self._squared_norms.values()))}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self._matrix[:] = state["maps"]
        self._squared_norms = dict(zip(self.neighbours, state["map_squared_norms"].tolist(), strict=True))


class AutoMaps(Maps):
    """Factored maps that turn into dense ones, exactly, once their history makes them the dearer.

    The choice follows from sizes alone, never from a measured time: the same run chooses the same everywhere.
    """

    def __init__(self, start: StartingMaps):
        super().__init__(start.stacking, {})
        self._maps: Maps = FactoredMaps(start)
        self._limit = dense_cost(start)
        self._reconsider()

    def _reconsider(self) -> None:
        maps = self._maps
        if isinstance(maps, FactoredMaps) and factored_cost(maps.start, maps.history.rows) > self._limit:
            matrix = np.empty((self.stacking.height, maps.start.size), maps.start.dtype)
            for j, part in self.stacking.parts.items():
                matrix[part] = maps.dense(j)
            self._flops += maps.flops + product_flops(maps.history.rows * matrix.size)
            self._maps = DenseMaps(matrix, self.stacking, maps._squared_norms)

    @property
    def flops(self) -> int:
        return self._flops + self._maps.flops

    def project(self, theta: np.ndarray) -> dict[int, np.ndarray]:
        return self._maps.project(theta)

    def pull_back(self, vectors: Vectors) -> np.ndarray:
        return self._maps.pull_back(vectors)

    def update(self, mine: Vectors, r: Vectors, theta: np.ndarray, step: float) -> None:
        self._maps.update(mine, r, theta, step)
        self._reconsider()

    def _subtract(self, mine: Vectors, r: Vectors, theta: np.ndarray, step: float) -> None:
        raise NotImplementedError("update() is passed on whole")

    def norms(self) -> dict[int, float]:
        return self._maps.norms()

    def dense(self, neighbour: int) -> np.ndarray:
        return self._maps.dense(neighbour)

    def state_bytes(self) -> int:
        return self._maps.state_bytes()

    def history_bytes(self) -> int:
        return self._maps.history_bytes()

    def state(self) -> dict[str, np.ndarray]:
        return self._maps.state()

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        if "maps" in state and isinstance(self._maps, FactoredMaps):
            self._maps = DenseMaps.start(self._maps.start)
        self._maps.load(state)


def store(start: StartingMaps, storage: Storage, rank_cap: int | None = None) -> Maps:
    if storage == "dense":
        return DenseMaps.start(start)
    if storage == "factored" or rank_cap is not None:
        return FactoredMaps(start, rank_cap)
    return AutoMaps(start)


def dense_cost(start: StartingMaps) -> float:
    """Nanoseconds of a round on dense maps: two projections, a pull-back, a subtraction in place."""
    numbers = start.stacking.height * start.size
    return (3 + _SUBTRACTION) * numbers * time_of_a_number(numbers * start.dtype.itemsize)


def factored_cost(start: StartingMaps, rows: int) -> float:
    """The same on factored maps with a history of ``rows``: one projection, one pull-back."""
    numbers = rows * (start.size + start.stacking.height)
    calls = (
        _CALLS + _CALLS_OF_AN_EDGE * len(start.stacking.neighbours) + _CALLS_OF_A_BLOCK * rows / block_rows(start.size)
    )
    return calls + start.cost() + _HISTORY * numbers * time_of_a_number(numbers * start.dtype.itemsize)
