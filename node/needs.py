"""What a key of the configuration needs in order to have an effect."""

from ..topology.section import Needs

__all__ = ["Needs"]
