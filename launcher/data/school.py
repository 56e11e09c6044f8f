"""School: examination results of 15,362 students in 139 schools of London, a regression task a school."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .arrays import finite
from .cells import load_cells
from .pool import Pool

if TYPE_CHECKING:
    from ..config.sections import DataSection


def load_school(section: DataSection) -> Pool:
    """school.mat as distributed with MALSAR: 28 features, the last one constant; scores from 1 to 70, as they are."""
    path, x, y, owners = load_cells(section, "school.mat")
    return Pool(finite(path, "X", x), finite(path, "Y", y)[:, None], "regression", outputs=1, client=owners)
