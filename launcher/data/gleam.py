"""GLEAM: whether the wearer of a Google Glass is eating, told by its motion sensors, for 38 wearers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .cells import load_two_classes
from .pool import Pool

if TYPE_CHECKING:
    from ..config.sections import DataSection


def load_gleam(section: DataSection) -> Pool:
    """gleam.mat: 180 statistics of the accelerometer, gyroscope and magnetometer a minute."""
    return load_two_classes(section, "gleam.mat")
