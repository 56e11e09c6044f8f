"""Restriction maps: how a client's model is seen from each of its edges.

``Maps`` is what algorithms use. ``base`` also holds maps that stay as they are, ``start`` what others begin as, and
``stored`` two ways to store what these become.
"""

from .base import FixedMaps, IdentityMaps, Maps, SelectionMaps
from .start import START_KINDS, StartingMaps, StartKind, starting_maps
from .stored import Storage, StoredMaps

__all__ = ["START_KINDS", "FixedMaps", "IdentityMaps", "Maps", "SelectionMaps", "StartKind", "StartingMaps"]
__all__ += ["Storage", "StoredMaps", "starting_maps"]
