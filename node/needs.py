"""What a key of the configuration needs in order to have an effect, declared beside its bounds."""

from __future__ import annotations

from typing import Any


class Needs:
    """The key has an effect only where another has one of ``values``; without values, where that is set and not 0.

    ``key`` is one of the same table, or one with dots from the top; of "a or b" one suffices.
    """

    def __init__(self, key: str, *values: Any):
        self.keys, self.values = tuple(key.split(" or ")), values

    def met(self, found: Any) -> bool:
        return found in self.values if self.values else bool(found)
