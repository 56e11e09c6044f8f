"""Vehicle: which of two vehicles passed, told by the microphone and geophone of each of 23 road-side sensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .cells import load_two_classes
from .pool import Pool

if TYPE_CHECKING:
    from ..config.sections import DataSection


def load_vehicle(section: DataSection) -> Pool:
    """vehicle.mat: 100 features, 50 of sound and 50 of vibration."""
    return load_two_classes(section, "vehicle.mat")
