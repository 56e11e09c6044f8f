"""The 8x8 digits that scikit-learn brings along."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .errors import DataError
from .pool import Pool

if TYPE_CHECKING:
    from ..config.sections import DataSection


def load_digits(section: DataSection) -> Pool:
    """1,797 images of 1x8x8 pixels from 0 to 16."""
    # Its table is read without importing it: sklearn.datasets takes longer than everything else before a run.
    sklearn = importlib.util.find_spec("sklearn")
    if sklearn is None or sklearn.origin is None:
        raise DataError('data.dataset = "digits" comes with scikit-learn, which is not installed')
    path = Path(sklearn.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():
        raise DataError(f'data.dataset = "digits": this scikit-learn has no {path}')
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    return Pool(
        x=table[:, :-1].reshape(-1, 1, 8, 8),
        y=table[:, -1].astype(np.int64),
        task="classification",
        outputs=10,
        scale=16.0,
    )
