"""Restriction maps: how a client's model is seen from each of its edges."""

from .base import Maps
from .dense import DenseMaps
from .identity import IdentityMaps

__all__ = ["DenseMaps", "IdentityMaps", "Maps"]
