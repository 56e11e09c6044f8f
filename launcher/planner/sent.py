"""The messages of a plan, as columns: there may be millions."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, overload

import numpy as np


class SentMessage(NamedTuple):
    src: int
    dst: int
    round: int
    phase: int
    sent_s: float  # when it was given to the sender's uplink
    left_s: float  # when it had left that
    arrived_s: float
    copies: int  # 0: lost on the way


class Messages(Sequence[SentMessage]):
    """In the order in which they are sent; ``columns`` are arrays by the name of a field."""

    def __init__(self, columns: Iterable[np.ndarray]):
        self.columns = dict(zip(SentMessage._fields, columns, strict=True))

    def __len__(self) -> int:
        return len(self.columns["copies"])

    def __iter__(self) -> Iterator[SentMessage]:
        return map(SentMessage._make, zip(*(column.tolist() for column in self.columns.values()), strict=True))

    @overload
    def __getitem__(self, at: int) -> SentMessage: ...
    @overload
    def __getitem__(self, at: slice) -> "Messages": ...
    def __getitem__(self, at: int | slice) -> "SentMessage | Messages":
        found = [column[at] for column in self.columns.values()]
        return Messages(found) if isinstance(at, slice) else SentMessage(*(each.item() for each in found))


class Sent:
    """Takes the messages down while a plan is played."""

    def __init__(self) -> None:
        self.edge, self.left_s, self.arrived_s, self.copies = array("i"), array("d"), array("d"), array("B")
        self._exchange, self._sent_s, self._count = array("q"), array("d"), array("q")  # of those sent together

    def add(self, edge: int, left_s: float, arrived_s: float, copies: int) -> None:
        self.edge.append(edge)
        self.left_s.append(left_s)
        self.arrived_s.append(arrived_s)
        self.copies.append(copies)

    def close(self, exchange: int, sent_s: float, count: int) -> None:
        """The last ``count`` were sent together, in the ``exchange``: (round - 1) * phases + phase."""
        self._exchange.append(exchange)
        self._sent_s.append(sent_s)
        self._count.append(count)

    def messages(self, src: np.ndarray, dst: np.ndarray, phases: int) -> Messages:
        """``src`` and ``dst`` are those of the edges."""
        edge, exchange = np.array(self.edge), np.array(self._exchange)
        round, phase = (exchange // max(1, phases) + 1).astype(np.int32), (exchange % max(1, phases)).astype(np.uint8)
        of_sends = (np.repeat(each, self._count) for each in (round, phase, np.array(self._sent_s)))
        of_messages = (np.array(each) for each in (self.left_s, self.arrived_s, self.copies))
        return Messages([src[edge], dst[edge], *of_sends, *of_messages])
