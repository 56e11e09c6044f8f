"""All samples of a run before they are split, and the checks of the files that they come from."""

import math
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil
from numpy.lib.npyio import NpzFile

from ..config.data import DataSection, Task
from ..config.sections import ConfigError

_DAMAGED = (ValueError, OSError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error)
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class DataError(ConfigError):
    """The user's data is wrong: the key or the file, its value, and what is allowed, in one line."""


@dataclass(frozen=True)
class Pool:
    """Samples in the number type of their files: 70,000 images as bytes take 55 MB, as floats 220 MB."""

    x: np.ndarray  # images (n, channels, height, width), features (n, features) or series (n, steps, features)
    y: np.ndarray  # classification: class numbers 0 .. outputs - 1, int64 (n,); regression: float32 (n, outputs)
    task: Task
    outputs: int  # classes, or regression targets
    scale: float = 1.0  # a model sees x / scale as float32
    client: np.ndarray | None = None  # owner 0, 1, ... of each sample, int64 (n,), where the data set says who that is
    owners: tuple[str, ...] | None = None  # the names of owners 0, 1, ..., where they have any
    groups: np.ndarray | None = None  # of each owner, int64 (owners,), where it is known whose data are similar
    in_time_order: bool = False  # whether samples are: then the latest of a client's are its test samples
    told: tuple[str, ...] = ()  # what there is to tell of how the samples were read

    def __len__(self) -> int:
        return len(self.x)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.x.shape[1:]

    def owner(self, rows: np.ndarray) -> str:
        assert self.client is not None
        number = int(self.client[rows[0]])
        name = f"{number}" if self.owners is None else self.owners[number]
        return name if len(name) <= 80 else f"{name[:80]}…"

    def inputs(self, rows: np.ndarray) -> np.ndarray:
        return np.divide(self.x[rows], np.float32(self.scale), dtype=np.float32)


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def some(names: Sequence[str], most: int = 10) -> str:
    """Lists all, or the first of them and how many there are more."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


@dataclass(frozen=True)
class Source:
    """A file, or a folder of them, that samples are read from. Each check raises a DataError that names it."""

    path: Path

    @classmethod
    def of(cls, section: DataSection, wanted: str) -> Self:
        if section.root is None:
            raise DataError(f'data.root is missing: data.dataset = "{section.dataset}" needs it to name {wanted}')
        return cls(section.root)

    def wrong(self, what: str) -> DataError:
        return DataError(f'data.root = "{self.path}": {what}')

    def require_file(self) -> None:
        if not self.path.is_file():
            raise self.wrong("there is no such file")

    def npz(self) -> NpzFile:
        self.require_file()
        try:
            file = np.load(self.path, allow_pickle=False)
        except _DAMAGED as error:
            raise self.wrong("this is not an .npz file") from error
        if isinstance(file, NpzFile):
            return file
        raise self.wrong("this is a file of one array, not an .npz file")

    def array(self, file: NpzFile, name: str) -> np.ndarray:
        """NumPy takes the memory that a header announces, and then looks what is there; here it is the reverse."""
        assert file.zip is not None  # it is open
        try:
            part = next((part for part in (f"{name}.npy", name) if part in file.zip.namelist()), name)
            with file.zip.open(part) as member:
                shape, _, dtype = _HEADERS[np.lib.format.read_magic(member)](member)
            size = math.prod(shape) * dtype.itemsize
            if min(shape, default=0) < 0 or size > file.zip.getinfo(part).file_size:
                raise ValueError("its header announces more than the file holds")
            if size > psutil.virtual_memory().available:
                raise self.wrong(f"{name} takes {size / 1e9:,.1f} GB, more than the memory that is free")
            array = file[name]
        except (*_DAMAGED, RuntimeError, MemoryError) as error:
            # NumPy's own words here advise to allow pickles, which can run any code.
            raise self.wrong(f"{name} is damaged or holds Python objects; allowed are plain arrays") from error
        if np.ndim(array) == 0:
            raise self.wrong(f"{name} is a single value; its first axis must run over the samples")
        return array

    def finite(self, name: str, values: np.ndarray) -> np.ndarray:
        if values.dtype.kind not in "biuf":
            raise self.wrong(f"{name} has type {values.dtype}; allowed are whole and real numbers")
        with np.errstate(over="ignore"):  # too large for float32 becomes inf, which is refused just below
            numbers = values.astype(np.float32)
        if len(bad := np.argwhere(~np.isfinite(numbers))):
            raise self.wrong(f"{name} holds NaN, an infinity or a number beyond float32 in row {bad[0, 0]}")
        return numbers

    def codes(self, name: str, labels: np.ndarray, or_else: str = "") -> tuple[np.ndarray, np.ndarray]:
        """Returns the distinct labels, sorted, and each label's place among them, int64 (n,); ``or_else``: what else
        helps with fractions."""
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        if labels.ndim != 1 or labels.dtype.kind not in "biufUS":
            found = f"{name} has shape {labels.shape} and type {labels.dtype}"
            raise self.wrong(f"{found}; allowed is (n,) of whole numbers or text")
        if labels.dtype.kind == "f" and len(rows := np.flatnonzero(labels != np.floor(labels))):  # NaN differs, too
            raise self.wrong(f"{name} holds {labels[rows[0]]} in row {rows[0]}; allowed are whole numbers{or_else}")
        distinct, numbers = np.unique(labels, return_inverse=True)
        return distinct, numbers.astype(np.int64)

    def targets(self, name: str, y: np.ndarray, task: Task) -> tuple[np.ndarray, int]:
        if task == "classification":
            classes, numbers = self.codes(name, y, ', or data.task = "regression"')
            if len(classes) < 2:
                raise self.wrong(f'{name} holds one class only; data.task = "classification" needs at least two')
            return numbers, len(classes)
        if y.ndim > 2 or y.size == 0:
            raise self.wrong(f"{name} has shape {y.shape}; regression allows (n,) and (n, targets)")
        if y.dtype.kind in "US":
            raise self.wrong(f'{name} is text (such as "{y[0]}"); write data.task = "classification"')
        values = self.finite(name, y).reshape(len(y), -1)
        return values, values.shape[1]

    def owners(self, name: str, labels: np.ndarray) -> dict[str, Any]:
        distinct, numbers = self.codes(name, labels)
        return {"client": numbers, "owners": tuple(map(str, distinct))}
