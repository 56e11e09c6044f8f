"""What may travel on the edges of a client, and how: as it is, or through a codec."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np

from ..topology.randomness import generator
from .codecs import CannotEncode, Codec, Draws, Tensors, finite
from .wire import Layout, Plain, Rejected, layout_of


@dataclass(frozen=True)
class Format:
    """How ``length`` numbers travel: the last ``exact`` ones, without a codec all, as they are in their own tensor."""

    codec: Codec | None
    dtype: np.dtype
    length: int
    exact: int

    @cached_property
    def layout(self) -> Layout:
        if self.codec is None or self.exact == self.length:
            return ((self.dtype, (self.length,)),)
        return self.codec.layout(self.length - self.exact) + (((self.dtype, (self.exact,)),) if self.exact else ())

    @cached_property
    def plain(self) -> Plain | None:
        """None: the vector does not travel as it is."""
        if self.codec is not None and self.exact < self.length:
            return None
        return Plain(self.layout, self.dtype, (self.length,), self.length * self.dtype.itemsize)

    def encode(self, vector: np.ndarray, draws: Draws) -> Tensors:
        """Raises CannotEncode where the numbers cannot be sent so."""
        if self.codec is None or self.exact == self.length:
            return (vector,)
        if not np.isfinite(vector).all():
            raise CannotEncode(f"it is not finite, and cannot be sent as {self.codec.name}; lower training.alpha")
        end = self.length - self.exact
        return self.codec.encode(vector[:end], draws) + ((vector[end:],) if self.exact else ())

    def decode(self, tensors: Tensors) -> np.ndarray:
        """A read-only vector of ``length`` numbers. Raises Rejected unless the tensors are as announced."""
        if self.codec is None and len(tensors) == 1 and (tensors[0].dtype, tensors[0].shape) == self.layout[0]:
            return tensors[0]  # most are so: the quickest way to see it
        if layout_of(tensors) != self.layout:
            fits = [tensor.shape for tensor in tensors] == [shape for _, shape in self.layout]
            raise Rejected("wrong dtype" if fits else "wrong shape")
        if self.codec is None or self.exact == self.length:
            return tensors[0]
        vector = self.codec.decode(tensors[:-1] if self.exact else tensors, self.length - self.exact)
        if self.exact:
            vector = np.concatenate([vector, finite(tensors[-1])])
        vector.flags.writeable = False
        return vector


@dataclass(frozen=True, slots=True)
class Channel:
    """What may travel on one edge in a round: the lengths of the vectors, message by message, in each direction. In the
    first round ``opens`` and ``opened`` come before them; those travel as they are, the others by the ``codec``."""

    sends: tuple[int, ...]
    receives: tuple[int, ...]
    opens: tuple[int, ...] = ()
    opened: tuple[int, ...] = ()
    may_be_quiet: bool = False  # whether an exchange may pass without a vector
    codec: Codec | None = None
    exact: tuple[int, ...] = ()  # message by message, numbers at the end that the codec leaves as they are; or none
    exact_received: tuple[int, ...] = ()  # the same of those that come
    integers: tuple[str, ...] = ()  # message by message, the dtype of those that carry integers, else ""; or none
    integers_received: tuple[str, ...] = ()
    is_shown: bool = False  # whether one message more may come in a round: a server's answer to be evaluated only

    def sent_in(self, round: int) -> tuple[int, ...]:
        return self.opens + self.sends if round == 1 else self.sends

    def received_in(self, round: int) -> tuple[int, ...]:
        return self.opened + self.receives if round == 1 else self.receives

    def sent_as(self, round: int, dtype: np.dtype) -> tuple[Format, ...]:
        return self._formats(dtype, self.opens if round == 1 else (), self.sends, self.exact, self.integers)

    def received_as(self, round: int, dtype: np.dtype) -> tuple[Format, ...]:
        before, told = self.opened if round == 1 else (), (self.exact_received, self.integers_received)
        return self._formats(dtype, before, self.receives, *told)

    def _formats(self, dtype: np.dtype, before: tuple[int, ...], lengths: tuple[int, ...], *told: Any) -> "Formats":
        exact, integers = told
        kinds = ("",) * len(before) + (integers or ("",) * len(lengths))
        return _formats(self.codec, dtype, before + lengths, before + (exact or (0,) * len(lengths)), kinds)

    def longest(self, dtype: np.dtype) -> int:
        """Returns how many numbers of ``dtype`` take the place of the longest vector that is sent."""
        sent = (format.dtype.itemsize * format.length for format in self.sent_as(1, dtype))
        return max((-(-size // dtype.itemsize) for size in sent), default=0)


Formats = tuple[Format, ...]


@lru_cache(maxsize=256)
def _formats(
    codec: Codec | None, dtype: np.dtype, lengths: tuple[int, ...], exact: tuple[int, ...], kinds: tuple[str, ...]
) -> Formats:
    sizes = zip(lengths, exact, kinds, strict=True)
    return tuple(
        Format(None, np.dtype(kind), n, 0) if kind else Format(codec, dtype, n, last) for n, last, kind in sizes
    )


class Channels:
    """Makes messages of vectors to each neighbour, and vectors of theirs; codecs draw by the ``seed`` of the run.
    ``plain_received`` has the form of what travels as it is: {(neighbour, phase, whether in round 1): form or None}."""

    def __init__(self, node: int, channels: Mapping[int, Channel], dtype: np.dtype | str, seed: int = 0):
        self.neighbours = tuple(sorted(channels))
        self.dtype = np.dtype(dtype)
        self._node = node
        self._channels = channels
        self._seed = seed
        self._sent = {j: (c.sent_as(2, self.dtype), c.sent_as(1, self.dtype)) for j, c in channels.items()}
        self._received = {j: (c.received_as(2, self.dtype), c.received_as(1, self.dtype)) for j, c in channels.items()}
        self.plain_received = {
            (j, phase, is_first): format.plain
            for j, by_round in self._received.items()
            for is_first, formats in enumerate(by_round)
            for phase, format in enumerate(formats)
        }
        self._owed: dict[tuple[int, int], np.ndarray] = {}  # (neighbour, message of a round): what was left out of it

    def __getitem__(self, node: int) -> Channel:
        return self._channels[node]

    def encode(self, node: int, round: int, phase: int, vector: np.ndarray) -> Tensors:
        """What travels of a vector: with what earlier ones have left out; what this one leaves out is noted in turn.
        Raises ValueError where it is not as announced, and CannotEncode."""
        formats = self._sent[node][round == 1]
        if phase >= len(formats):
            raise ValueError(f"vector {phase + 1} to client {node} in round {round} is one more than announced")
        format, is_array = formats[phase], isinstance(vector, np.ndarray)
        if not is_array or vector.shape != (format.length,) or vector.dtype != format.dtype:
            found = f"{vector.dtype} {vector.shape}" if is_array else type(vector).__name__
            wanted = f"{format.dtype} ({format.length},)"
            raise ValueError(
                f"vector {phase + 1} to client {node} in round {round} is announced as {wanted}, not {found}"
            )
        if format.codec is None or format.exact == format.length:
            return (vector,)
        draws = partial(generator, self._seed, "rounding", self._node, node, round, phase)
        if not format.codec.owes:
            return format.encode(vector, draws)
        key = node, phase - len(self[node].opens) * (round == 1)
        vector = vector + self._owed.get(key, 0)
        tensors = format.encode(vector, draws)
        self._owed[key] = vector - format.decode(tensors)
        return tensors

    def as_heard(self, node: int, round: int, phase: int, vector: np.ndarray) -> np.ndarray:
        return self.sent(node, round, phase, self.encode(node, round, phase, vector))

    def sent(self, node: int, round: int, phase: int, tensors: Tensors) -> np.ndarray:
        return self._sent[node][round == 1][phase].decode(tensors)

    def is_shown(self, node: int, round: int, phase: int) -> bool:
        return self._channels[node].is_shown and phase == len(self._received[node][round == 1])

    def decode(self, node: int, round: int, phase: int, tensors: Tensors) -> np.ndarray:
        """Raises Rejected unless the message is one that the channel announces."""
        formats = self._received[node][round == 1]
        if phase >= len(formats):
            if not self.is_shown(node, round, phase):
                raise Rejected("wrong shape")
            phase -= 1
        return formats[phase].decode(tensors)

    def state(self) -> dict[str, np.ndarray]:
        """{"owed.NEIGHBOUR.MESSAGE": what codecs have left out so far}"""
        return {f"owed.{node}.{place}": vector for (node, place), vector in self._owed.items()}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        for name, vector in state.items():
            if name.startswith("owed."):
                _, node, place = name.split(".")
                self._owed[int(node), int(place)] = vector

    def memory_bytes(self) -> int:
        return sum(vector.nbytes for vector in self._owed.values())
