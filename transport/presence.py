"""Who of a client's neighbours is there, in which incarnation, and who has left or died."""

import re
import time
from collections.abc import Iterable

from .control import NeighbourCame, NeighbourDied, NeighbourFinished, NeighbourLeft
from .envelope import Rejected

_IDENTITY = re.compile(rb"node-(\d{4,9})(?:\.(\d{1,3}))?")


def identity_of(node: int, incarnation: int = 1) -> bytes:
    """The routing id of a node's socket; it travels in READY, so its length is part of the wire bytes."""
    return b"node-%04d" % node if incarnation == 1 else b"node-%04d.%d" % (node, incarnation)


class Presence:
    """As the launcher tells it, and the neighbours that link up. Moments are time.monotonic() seconds."""

    def __init__(self, node: int) -> None:
        """``node`` is the client's own number."""
        self._node = node
        self.linked: dict[int, int] = {}  # {neighbour: the incarnation of it that this client is linked up with}
        self.died: dict[int, float] = {}  # unexpectedly, and when that was heard
        self.left: dict[int, int] = {}  # ended, as planned or not, and in which incarnation
        self.finished: dict[int, float] = {}  # have sent their last message, and when that was heard
        self.first_rounds: dict[int, int] = {}  # of neighbours that have come later than the others
        self.latecomers: frozenset[int] = frozenset()  # may connect after the others have met

    def is_there(self, node: int) -> bool:
        return node in self.linked and node not in self.died and node not in self.left

    def expected(self, nodes: Iterable[int]) -> set[int]:
        """Those of the nodes that have not ended."""
        return set(nodes) - self.died.keys() - self.left.keys()

    def latecomer(self, identity: bytes) -> tuple[int, int]:
        """The neighbour that connects to this client after having been away, and its incarnation. Raises Rejected."""
        match = _IDENTITY.fullmatch(identity)
        if match is None or int(match[1]) not in self.latecomers or int(match[1]) >= self._node:
            raise Rejected("unknown peer")
        return int(match[1]), int(match[2] or 1)

    def note(self, message: object) -> bool:
        """Notes what the launcher tells of a neighbour; False: it is something else."""
        match message:
            case NeighbourDied(node, incarnation):
                self.died.setdefault(node, time.monotonic())
                self.left[node] = incarnation
            case NeighbourLeft(node, incarnation):
                self.left[node] = incarnation
            case NeighbourFinished(node):
                self.finished.setdefault(node, time.monotonic())
            case NeighbourCame(place, first_round):
                self.first_rounds[place.node] = first_round
                self._is_back(place.node)
            case _:
                return False
        return True

    def welcome(self, node: int, incarnation: int) -> bool:
        """Links up with a neighbour that has come later than the others; False: it is known, or has ended again."""
        if incarnation <= max(self.linked.get(node, 0), self.left.get(node, 0)):
            return False  # the greeting of a short incarnation may be read when it is over
        self.linked[node] = incarnation
        self._is_back(node)
        return True

    def _is_back(self, node: int) -> None:
        self.died.pop(node, None)
        self.left.pop(node, None)
