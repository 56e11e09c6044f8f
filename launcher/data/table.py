"""The user's own table: one row a sample, with columns for features, the target and the client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .arrays import codes, finite, root_of, targets, wrong
from .columns import read_columns
from .pool import Pool

if TYPE_CHECKING:
    from ..config import DataSection


def load_table(section: DataSection) -> Pool:
    """Columns data.target and, unless it is "", data.client; every other column is a feature. Raises DataError."""
    path = root_of(section, "the .csv, .npz or .parquet file")
    columns = read_columns(path)
    taken = {"data.target": section.target} | ({"data.client": section.client} if section.client else {})
    for key, name in taken.items():
        if name not in columns:
            raise wrong(path, f'there is no column "{name}" ({key}); its columns are {", ".join(columns)}')
    if section.target == section.client:
        raise wrong(path, f'data.target and data.client are both "{section.target}"; they must be two columns')
    features = {name: column for name, column in columns.items() if name not in taken.values()}
    if not features:
        raise wrong(path, "it has no column of features")
    x = np.stack([finite(path, name, column) for name, column in features.items()], axis=1)
    y, outputs = targets(path, section.target, columns[section.target], section.task)
    client = codes(path, section.client, columns[section.client])[1] if section.client else None
    return Pool(x, y, section.task, outputs, client=client)
