"""Restriction maps that the user gives: a safetensors file with P.I.J, the matrix (d_ij, d_i) of client I for its edge
to client J, of every edge in both directions."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..metrics.config_file import require_plain_file
from ..topology.errors import UserError, shown

_TYPES = ("F64", "F32", "F16")

Pair = tuple[int, int]
Places = slice | np.ndarray


class GivenMaps:
    """Of a file only the header is read, until matrices are asked for, one at a time. Raises UserError in one line."""

    def __init__(self, path: Path, key: str = "algorithm.maps_from"):
        self._path, self._key = path, key

    def _error(self, what: str) -> UserError:
        return UserError(f"{self._key} = {shown(self._path)}: {what}")

    def rows(self, edges: Collection[Pair], sizes: Sequence[int], seen: Sequence[int]) -> dict[Pair, int]:
        """Returns {(i, j): d_ij}; ``sizes`` are the d_i, and ``seen`` how many of these parameters maps see."""
        with self._opened() as file:
            there, found = set(file.keys()), dict[Pair, int]()
            for edge in edges:
                heights = [self._rows(file, there, ends, sizes, seen) for ends in (edge, edge[::-1])]
                if heights[0] != heights[1]:
                    i, j = edge
                    raise self._error(
                        f"P.{i}.{j} has {heights[0]} rows, and P.{j}.{i} {heights[1]}: they must be alike"
                    )
                found[edge] = heights[0]
        return found

    def _rows(self, file: Any, there: Collection[str], ends: Pair, sizes: Sequence[int], seen: Sequence[int]) -> int:
        i, j = ends
        name = f"P.{i}.{j}"
        if name not in there:
            raise self._error(f"has no {name}; every edge of the graph needs both its maps")
        about = file.get_slice(name)
        shape, kind = about.get_shape(), about.get_dtype()
        if len(shape) != 2 or shape[1] != sizes[i] or not 1 <= shape[0] <= min(seen[i], seen[j]):
            wanted = f"(d_ij, {sizes[i]}), d_ij from 1 to {min(seen[i], seen[j])}"
            raise self._error(f"{name} is of shape {tuple(shape)}; it must be {wanted}")
        if kind not in _TYPES:
            raise self._error(f"{name} holds {kind}; allowed are {', '.join(_TYPES)}")
        return shape[0]

    def check(self, edges: Collection[Pair], seen: Sequence[Places], *, learns: bool, diagonal: bool) -> None:
        """Reads all of it, a matrix at a time: numbers have to be finite, maps that learn not all zero, and those that
        are to be ``diagonal`` have one entry a row. ``seen`` are the columns of each client that count."""
        with self._opened() as file:
            for edge in edges:
                names = [(i, f"P.{i}.{j}") for i, j in (edge, edge[::-1])]
                has_entries = [self._has_entries(file, name, seen[i], diagonal) for i, name in names]
                if learns and not any(has_entries):
                    both = " and ".join(name for _, name in names)
                    raise self._error(f"{both} are zero: maps that start so never learn (Remark 3 of the paper)")

    def _has_entries(self, file: Any, name: str, seen: Places, diagonal: bool) -> bool:
        matrix = file.get_tensor(name)
        if not np.isfinite(matrix).all():
            raise self._error(f"{name} holds numbers that are not finite")
        entries = np.count_nonzero(matrix[:, seen], axis=1)
        if diagonal and not (entries == 1).all():
            row = int((entries != 1).argmax())
            wanted = "algorithm.constraint = 'diagonal' needs one in each row"
            raise self._error(f"row {row} of {name} has {entries[row]} entries that are not 0; {wanted}")
        return bool(entries.any())

    def matrices(self, node: int, neighbours: Collection[int]) -> Iterator[tuple[int, np.ndarray]]:
        with self._opened() as file:
            for j in neighbours:
                yield j, file.get_tensor(f"P.{node}.{j}")

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        from safetensors import SafetensorError, safe_open

        try:
            require_plain_file(self._path)
            with safe_open(self._path, framework="numpy") as file:
                yield file
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror or error}") from None
        except SafetensorError as error:
            raise self._error(f"is no safetensors file that can be read ({error})") from None
