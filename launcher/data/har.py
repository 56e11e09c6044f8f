"""UCI HAR: which of six activities a smartphone feels, for 30 people; official training and test samples together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from .arrays import finite, first_line, root_of, wrong
from .errors import DataError
from .pool import Pool

if TYPE_CHECKING:
    from ..config.sections import DataSection

PARTS = ("train", "test")
ACTIVITIES = 6
FILES = tuple(f"{part}/{kind}_{part}.txt" for part in PARTS for kind in ("X", "y", "subject"))


def load_har(section: DataSection) -> Pool:
    """561 features between -1 and 1; a client is a person. Raises DataError."""
    root = root_of(section, "the folder of the unpacked archive")
    folder = next((at for at in (root, root / "UCI HAR Dataset") if (at / FILES[0]).is_file()), root)
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise wrong(root, f"it lacks {', '.join(missing)}")
    parts = [_read(folder / part, part) for part in PARTS]
    (train, *_), (test, *_) = parts
    if train.shape[1] != test.shape[1]:
        raise wrong(root, f"training samples have {train.shape[1]} features, test samples {test.shape[1]}")
    x, y, subject = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    people, owner = np.unique(subject, return_inverse=True)
    return Pool(x, y, "classification", outputs=ACTIVITIES, client=owner, owners=tuple(map(str, people)))


def _read(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x float32 (n, features); activities 0 to 5 and subjects, int64 (n,)."""
    x_file, y_file, subject_file = (folder / f"{kind}_{part}.txt" for kind in ("X", "y", "subject"))
    x = finite(x_file, "X", _numbers(x_file, np.float32, dimensions=2))
    y, subject = (_numbers(file, np.int64, dimensions=1) for file in (y_file, subject_file))
    for file, values in ((y_file, y), (subject_file, subject)):
        if len(values) != len(x):
            raise DataError(f"{x_file} has {len(x)} lines, {file} has {len(values)}")
    if wrong_ones := sorted(set(y.tolist()) - set(range(1, ACTIVITIES + 1))):
        raise DataError(f"{y_file} holds activity {wrong_ones[0]}: activities are 1 to {ACTIVITIES}")
    return x, y - 1, subject


def _numbers(path: Path, kind: type[np.generic], dimensions: Literal[1, 2]) -> np.ndarray:
    try:
        return np.loadtxt(path, dtype=kind, ndmin=dimensions)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise DataError(f"{path} can't be read: {first_line(error)}") from error
