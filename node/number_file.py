"""Tables of numbers that the user gives: CSV files, whose first line names the columns."""

import csv
import math
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from ..metrics.config_file import require_plain_file
from ..topology.errors import UserError, shown

_LARGEST = 64 << 20  # bytes
_MOST_ROWS = 5_000_000


class NumberFile:
    """Raises UserError that names ``key``, and the line where that is at fault. ``columns`` have to be there,
    ``others`` may be; of these a cell may be empty."""

    def __init__(self, path: Path, key: str, columns: Sequence[str], others: Sequence[str] = ()):
        self._path, self._key = path, key
        self._needed, self._known = columns, (*columns, *others)

    def error(self, what: str, line: int = 0) -> UserError:
        place = f"line {line}: " if line else ""
        return UserError(f"{self._key} = {shown(self._path)}: {place}{what}")

    def rows(self) -> Iterator[tuple[int, dict[str, float | None]]]:
        """Yields (line, {column: finite number, or None})."""
        try:
            require_plain_file(self._path)
            if self._path.stat().st_size > _LARGEST:
                raise self.error(f"is larger than {_LARGEST >> 20} MB, the most that is read")
            with self._path.open(newline="", encoding="utf-8-sig") as file:
                reader = csv.reader(file, strict=True)
                names = [name.strip() for name in next(reader, [])]
                self._check(names)
                lines = ((reader.line_num, row) for row in reader if row)
                for line, row in islice(lines, _MOST_ROWS):
                    if len(row) != len(names):
                        raise self.error(f"has {len(row)} cells, and the first line {len(names)}", line)
                    yield line, {name: self._number(name, cell, line) for name, cell in zip(names, row, strict=True)}
                if next(lines, None):
                    raise self.error(f"has more than {_MOST_ROWS:,} rows, the most that are read")
        except OSError as error:
            raise self.error(f"cannot be read: {error.strerror or error}") from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise self.error(f"is no CSV file: {' '.join(str(error).split())}") from None

    def whole(self, row: dict[str, float | None], name: str, line: int, below: int, least: int = 0) -> int:
        """Raises UserError unless it is a whole number from ``least``, and below ``below``."""
        value = row[name]
        if value is None or not value.is_integer() or not least <= value < below:
            given = "is empty" if value is None else f"= {value:g}"
            raise self.error(f"{name} {given}; allowed are whole numbers from {least} to {below - 1}", line)
        return int(value)

    def _check(self, names: Sequence[str]) -> None:
        allowed = f"the first line names the columns: {', '.join(self._known)}"
        if missing := [name for name in self._needed if name not in names]:
            raise self.error(f"column {missing[0]!r} is missing; {allowed}")
        if unknown := [name for name in names if name not in self._known]:
            raise self.error(f"unknown column {shown(unknown[0])}; {allowed}")
        if len(set(names)) < len(names):
            raise self.error(f"a column stands there twice: {', '.join(names)}")

    def _number(self, name: str, cell: str, line: int) -> float | None:
        if not cell.strip() and name not in self._needed:
            return None
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.error(f"{name} = {shown(cell.strip())}: must be a finite number", line)
        return value
