"""Restriction maps: how a client's model is seen from each of its edges.

``Maps`` is what algorithms use. ``start`` holds what the maps begin as, ``dense`` and ``factored`` are two ways to
store what they become, ``identity`` and ``selection`` are maps that stay as they are.
"""

from .base import Maps
from .dense import DenseMaps
from .factored import FactoredMaps
from .identity import IdentityMaps
from .selection import SelectionMaps
from .start import START_KINDS, StartingMaps, StartKind, starting_maps
from .storage import Storage, store

__all__ = [
    "START_KINDS",
    "DenseMaps",
    "FactoredMaps",
    "IdentityMaps",
    "Maps",
    "SelectionMaps",
    "StartKind",
    "StartingMaps",
    "Storage",
    "starting_maps",
    "store",
]
