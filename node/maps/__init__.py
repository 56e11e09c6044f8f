"""Restriction maps: how a client's model is seen from each of its edges.

``Maps`` is what algorithms use. ``start`` holds what the maps begin as, ``storage`` and ``factored`` two ways to store
what they become, ``fixed`` maps that stay as they are.
"""

from .base import Maps
from .factored import FactoredMaps
from .fixed import FixedMaps, IdentityMaps, SelectionMaps
from .start import START_KINDS, StartingMaps, StartKind, starting_maps
from .storage import DenseMaps, Storage, store

__all__ = ["START_KINDS", "DenseMaps", "FactoredMaps", "FixedMaps", "IdentityMaps", "Maps", "SelectionMaps"]
__all__ += ["StartKind", "StartingMaps", "Storage", "starting_maps", "store"]
