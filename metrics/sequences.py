"""Which numbered batches of a sender have come in."""

from __future__ import annotations


class Sequences:
    """Batches come nearly in order, so the memory needed is that of the gaps."""

    def __init__(self) -> None:
        self._next = 0  # every number below has been accepted
        self._ahead: set[int] = set()

    def accept(self, sequence: int) -> bool:
        """False if this number came before."""
        if sequence < self._next or sequence in self._ahead:
            return False
        self._ahead.add(sequence)
        while self._next in self._ahead:
            self._ahead.remove(self._next)
            self._next += 1
        return True

    def missing(self, count: int) -> int:
        """How many of the numbers 0 to ``count`` - 1 have not come."""
        return max(0, count - self._next) - sum(sequence < count for sequence in self._ahead)
