"""Restriction maps that stay within a set while they learn: after each update (19) they are replaced by the nearest
ones of that set, in the Frobenius norm. And maps that see only some layers, which is such a set, too."""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from .maps import Maps, Stacking, StartingMaps, Vectors
from .stored_maps import Storage, StoredMaps

Constraint = Literal["none", "orthonormal", "diagonal", "ball"]

_UNEVEN = 1e-2  # of the eigenvalues of P P^T: below, their square roots have too few digits


class BallMaps(StoredMaps):
    """||P_ij||_F <= radius. A map outside is scaled, its history with it: factored maps stay factored."""

    is_constrained = True

    def __init__(self, start: StartingMaps, storage: Storage, rank_cap: int | None, radius: float):
        super().__init__(start, storage, rank_cap)
        self._radius = radius
        self.constrain()

    def constrain(self) -> None:
        for j, norm in self.norms().items():
            if norm > self._radius:
                self.scale(j, self._radius / norm)


class OrthonormalMaps(StoredMaps):
    """P P^T = s^2 I, with s the ``length`` of the rows. The nearest such map to M is s (M M^T)^(-1/2) M, of the polar
    decomposition. That changes all of a map at once: they are dense. But an update M = P - c r theta^T of such a P has

        M M^T = s^2 I + [r m] [[c^2 ||theta||^2, -c], [-c, 0]] [r m]^T,    m = P theta

    whose eigenvalues are s^2 but for two, so that the nearest map costs no more than the update."""

    is_constrained = True

    def __init__(self, start: StartingMaps, length: float):
        super().__init__(start, "dense")
        self._length = length
        self._changed: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # {j: [r m] (d_ij, 2), and what is between}
        for j in self.neighbours:
            self.replace(j, length * nearest_orthonormal(self.dense(j)))

    def update(self, mine: Vectors, r: Vectors, theta: np.ndarray, step: float) -> None:
        between = np.array([[step**2 * float(theta @ theta), -step], [-step, 0.0]])
        self._changed = {j: (np.column_stack([r[j], mine[j]]).astype(np.float64), between) for j in r}
        super().update(mine, r, theta, step)

    def constrain(self) -> None:
        for j, (around, between) in self._changed.items():
            matrix = self.dense(j)
            if not np.isfinite(matrix).all() or not np.isfinite(between).all():
                continue  # of a run that diverges: it ends with the reason
            basis, factor = np.linalg.qr(around)
            values, vectors = np.linalg.eigh(factor @ between @ factor.T)
            squares = 1 + values / self._length**2  # the eigenvalues of M M^T / s^2 that are not 1
            if not squares.min() > _UNEVEN:
                self.replace(j, self._length * nearest_orthonormal(matrix))
                continue
            W = (basis @ vectors).astype(matrix.dtype)
            change = (1 / np.sqrt(squares) - 1).astype(matrix.dtype)
            self.replace(j, matrix + (W * change) @ (W.T @ matrix))
            self.flops += 8 * matrix.size
        self._changed = {}


def nearest_orthonormal(matrix: np.ndarray) -> np.ndarray:
    """Returns Q with Q Q^T = I that has the least ||Q - M||_F: (M M^T)^(-1/2) M. ``matrix`` M (m, n) has m <= n."""
    values, vectors = np.linalg.eigh((matrix @ matrix.T).astype(np.float64))
    if values[0] > _UNEVEN * values[-1]:
        inverse_root = (vectors / np.sqrt(values)) @ vectors.T
        return inverse_root.astype(matrix.dtype) @ matrix
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    return left @ right


class DiagonalMaps(Maps):
    """P_ij = diag(p_ij) S_ij: each row sees one coordinate of theta. Of an update only what falls on these places is
    kept, which is the nearest such map; p alone is stored."""

    is_constrained = True

    def __init__(self, size: int, places: Mapping[int, np.ndarray], entries: Mapping[int, np.ndarray]):
        """``size`` is d_i; ``places`` are {j: coordinates (d_ij,)}, ``entries`` {j: p_ij (d_ij,)}."""
        super().__init__(Stacking({j: len(p) for j, p in entries.items()}), {})
        self._size = size
        self._places = np.concatenate([np.zeros(0, np.int64), *places.values()]).astype(np.int64)
        self._entries = np.concatenate([np.zeros(0, np.float32), *entries.values()])

    def project(self, theta: np.ndarray) -> dict[int, np.ndarray]:
        self.flops += len(self._entries)
        return self.stacking.split(self._entries * theta[self._places])

    def pull_back(self, vectors: Vectors) -> np.ndarray:
        self.flops += 2 * len(self._entries)
        weighed = self._entries * self.stacking.join(vectors)
        return np.bincount(self._places, weights=weighed, minlength=self._size).astype(self._entries.dtype)

    def update(self, mine: Vectors, r: Vectors, theta: np.ndarray, step: float) -> None:
        self.flops += 2 * len(self._entries)
        self._entries -= step * self.stacking.join(r) * theta[self._places]

    def curvature(self, theta: np.ndarray) -> float:
        return float((theta[self._places] ** 2).max(initial=0.0))

    def norms(self) -> dict[int, float]:
        return {j: float(np.linalg.norm(p)) for j, p in self.stacking.split(self._entries).items()}

    def dense(self, neighbour: int) -> np.ndarray:
        part = self.stacking.parts[neighbour]
        matrix = np.zeros((self.stacking.rows[neighbour], self._size), self._entries.dtype)
        matrix[np.arange(len(matrix)), self._places[part]] = self._entries[part]
        return matrix

    def state_bytes(self) -> int:
        return self._entries.nbytes + self._places.nbytes

    def state(self) -> dict[str, np.ndarray]:
        return {"maps": self._entries}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self._entries[:] = state["maps"]


class LayerMaps(Maps):
    """Maps that see only some coordinates of theta, those at ``places``: other maps of a shorter theta."""

    def __init__(self, inner: Maps, places: slice | np.ndarray, size: int):
        self._inner, self._places, self._size = inner, places, size
        self.stacking, self.neighbours = inner.stacking, inner.neighbours

    @property
    def flops(self) -> int:  # type: ignore[override]
        return self._inner.flops

    @property
    def error_bound(self) -> float:  # type: ignore[override]
        return self._inner.error_bound

    @property
    def is_constrained(self) -> bool:  # type: ignore[override]
        return self._inner.is_constrained

    @property
    def start(self) -> StartingMaps:
        assert isinstance(self._inner, StoredMaps)
        return self._inner.start

    def project(self, theta: np.ndarray) -> dict[int, np.ndarray]:
        return self._inner.project(theta[self._places])

    def pull_back(self, vectors: Vectors) -> np.ndarray:
        seen = self._inner.pull_back(vectors)
        pulled = np.zeros(self._size, seen.dtype)
        pulled[self._places] = seen
        return pulled

    def update(self, mine: Vectors, r: Vectors, theta: np.ndarray, step: float) -> None:
        self._inner.update(mine, r, theta[self._places], step)

    def constrain(self) -> None:
        self._inner.constrain()

    def curvature(self, theta: np.ndarray) -> float:
        return self._inner.curvature(theta[self._places])

    def norms(self) -> dict[int, float]:
        return self._inner.norms()

    def dense(self, neighbour: int) -> np.ndarray:
        seen = self._inner.dense(neighbour)
        matrix = np.zeros((len(seen), self._size), seen.dtype)
        matrix[:, self._places] = seen
        return matrix

    def state_bytes(self) -> int:
        return self._inner.state_bytes()

    def history_bytes(self) -> int:
        return self._inner.history_bytes()

    def state(self) -> dict[str, np.ndarray]:
        return self._inner.state()

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self._inner.load(state)
