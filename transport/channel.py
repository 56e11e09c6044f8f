"""What may travel on the edges of a client, and what becomes of a vector on its way: with a codec, what takes fewer
bytes in its place, and the vector that a receiver makes of it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import ClassVar, Literal

import numpy as np

from ..topology.randomness import generator
from .wire import Layout, Rejected, layout_of

CodecName = Literal["none", "float16", "bfloat16", "int8", "top-k"]
Tensors = tuple[np.ndarray, ...]
Draws = Callable[[], np.random.Generator]  # makes the generator of one message

_LARGEST = float(np.finfo("f4").max)
_LARGEST_SCALE = _LARGEST / 128


class CannotEncode(ValueError):
    """A vector has numbers that its codec cannot send: where a run diverges."""


class _Codec:
    """``dtype`` is that of the vectors. ``encode`` is given finite numbers, and raises CannotEncode where one is out of
    range. What ``decode`` is given has the announced ``layout``, and may still be hostile: it raises Rejected."""

    name: ClassVar[CodecName]
    owes: ClassVar[bool] = False  # whether it leaves out entries, which the sender adds to the next vector then
    wire: ClassVar[str] = ""  # the type of the numbers that travel, where there is one for each

    def __init__(self, dtype: np.dtype):
        self.dtype = np.dtype(dtype)

    def layout(self, length: int) -> Layout:
        return ((np.dtype(self.wire), (length,)),)

    def _cast(self, numbers: np.ndarray, dtype: str) -> np.ndarray:
        with np.errstate(over="ignore", under="ignore"):
            converted = numbers.astype(dtype, copy=False)
        if not np.isfinite(converted).all():
            raise self._too_large(float(np.finfo(dtype).max))
        return converted

    def _too_large(self, largest: float) -> CannotEncode:
        what = f"a number is above {largest:.3g}, too large for {self.name}"
        return CannotEncode(f"{what}; choose another transport.codec")


class Float16(_Codec):
    """IEEE 754 half precision: 11 significant bits, numbers up to 65504, to the nearest."""

    name = "float16"
    wire = "f2"

    def encode(self, vector: np.ndarray, draws: Draws) -> Tensors:
        return (self._cast(vector, "f2"),)

    def decode(self, tensors: Tensors, length: int) -> np.ndarray:
        return finite(tensors[0].astype(self.dtype))


class BFloat16(_Codec):
    """The upper half of a float32: 8 significant bits and its whole range, to the nearest, ties to even."""

    name = "bfloat16"
    wire = "u2"

    def encode(self, vector: np.ndarray, draws: Draws) -> Tensors:
        bits = self._cast(vector, "f4").view("u4")
        rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("u2")
        if ((rounded & 0x7F80) == 0x7F80).any():  # rounded up to infinity
            raise self._too_large(_LARGEST)
        return (rounded,)

    def decode(self, tensors: Tensors, length: int) -> np.ndarray:
        return finite((tensors[0].astype("u4") << 16).view("f4").astype(self.dtype, copy=False))


class Int8(_Codec):
    """q_m = floor(v_m / s + u_m) with u_m uniform in [0, 1), s = max |v| / 127: E s q_m = v_m, |s q_m - v_m| < s."""

    name = "int8"

    def layout(self, length: int) -> Layout:
        return (np.dtype("f4"), (1,)), (np.dtype("i1"), (length,))

    def encode(self, vector: np.ndarray, draws: Draws) -> Tensors:
        largest = float(np.abs(vector).max())
        scale = self._cast(np.array([largest / 127]), "f4")
        if 127 * float(scale[0]) < largest:  # no quotient may be above 127
            scale = np.nextafter(scale, np.float32(np.inf))
        if float(scale[0]) > _LARGEST_SCALE:
            raise self._too_large(127 * _LARGEST_SCALE)
        if not largest:
            return scale, np.zeros(len(vector), "i1")
        quotients = vector / scale[0]
        below = np.floor(quotients)
        up = draws().random(len(vector), dtype="f4") < quotients - below
        return scale, (below + up).astype("i1")

    def decode(self, tensors: Tensors, length: int) -> np.ndarray:
        scale, numbers = tensors
        if not 0 <= float(scale[0]) <= _LARGEST_SCALE:
            raise Rejected("illegal numbers", f"a scale of {scale[0]}")
        return numbers.astype(self.dtype) * scale.astype(self.dtype)


class TopK(_Codec):
    """The ``keep`` of the entries that are largest in magnitude, and where they are; 0 in the place of the others."""

    name = "top-k"
    owes = True

    def __init__(self, dtype: np.dtype, keep: float):
        super().__init__(dtype)
        self.keep = keep

    def count(self, length: int) -> int:
        return min(length, max(1, math.ceil(self.keep * length - 1e-9)))  # 0.1 * 30 is 3.0000000000000004

    def layout(self, length: int) -> Layout:
        k = self.count(length)
        return (np.dtype("i4"), (k,)), (self.dtype, (k,))

    def encode(self, vector: np.ndarray, draws: Draws) -> Tensors:
        k, sizes = self.count(len(vector)), np.abs(vector)
        least = np.partition(sizes, len(vector) - k)[len(vector) - k]
        above = np.flatnonzero(sizes > least)
        ties = np.flatnonzero(sizes == least)[: k - len(above)]  # the first of them, on every machine
        chosen = np.sort(np.concatenate([above, ties])).astype("i4")
        return chosen, vector[chosen]

    def decode(self, tensors: Tensors, length: int) -> np.ndarray:
        places, values = tensors
        if places[0] < 0 or places[-1] >= length or not (places[1:] > places[:-1]).all():
            raise Rejected("illegal numbers", "indices that are not ascending, or not of the vector")
        vector = np.zeros(length, self.dtype)
        vector[places] = finite(values)
        return vector


Codec = Float16 | BFloat16 | Int8 | TopK


def codec(name: CodecName, dtype: np.dtype, keep: float) -> Codec | None:
    """None: vectors travel as they are."""
    if name == "top-k":
        return TopK(dtype, keep)
    return {"none": lambda _: None, "float16": Float16, "bfloat16": BFloat16, "int8": Int8}[name](dtype)


def finite(numbers: np.ndarray) -> np.ndarray:
    if not np.isfinite(numbers).all():
        raise Rejected("illegal numbers", "not finite")
    return numbers


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
    is_shown: bool = False  # whether one message more may come in a round: a server's answer to be evaluated only

    def sent_in(self, round: int) -> tuple[int, ...]:
        return self.opens + self.sends if round == 1 else self.sends

    def received_in(self, round: int) -> tuple[int, ...]:
        return self.opened + self.receives if round == 1 else self.receives

    def sent_as(self, round: int, dtype: np.dtype) -> tuple[Format, ...]:
        return _formats(self.codec, dtype, self.opens if round == 1 else (), self.sends, self.exact)

    def received_as(self, round: int, dtype: np.dtype) -> tuple[Format, ...]:
        return _formats(self.codec, dtype, self.opened if round == 1 else (), self.receives, self.exact)


@lru_cache(maxsize=256)
def _formats(
    codec: Codec | None, dtype: np.dtype, before: tuple[int, ...], lengths: tuple[int, ...], exact: tuple[int, ...]
) -> tuple[Format, ...]:
    sizes = zip(before + lengths, before + (exact or (0,) * len(lengths)), strict=True)
    return tuple(Format(codec, dtype, *size) for size in sizes)


class Channels:
    """Makes messages of vectors to each neighbour, and vectors of theirs; codecs draw by the ``seed`` of the run."""

    def __init__(self, node: int, channels: Mapping[int, Channel], dtype: np.dtype | str, seed: int = 0):
        self.neighbours = tuple(sorted(channels))
        self.dtype = np.dtype(dtype)
        self._node = node
        self._channels = channels
        self._seed = seed
        self._sent = {j: (c.sent_as(2, self.dtype), c.sent_as(1, self.dtype)) for j, c in channels.items()}
        self._received = {j: (c.received_as(2, self.dtype), c.received_as(1, self.dtype)) for j, c in channels.items()}
        self._owed: dict[tuple[int, int], np.ndarray] = {}  # (neighbour, message of a round): what was left out of it

    def __getitem__(self, node: int) -> Channel:
        return self._channels[node]

    def encode(self, node: int, round: int, phase: int, vector: np.ndarray) -> Tensors:
        """What travels of a vector: with what earlier ones have left out; what this one leaves out is noted in turn.
        Raises ValueError where it is not as announced, and CannotEncode."""
        formats = self._sent[node][round == 1]
        if phase >= len(formats) or vector.shape != (formats[phase].length,) or vector.dtype != self.dtype:
            raise ValueError(
                f"message {phase} of a round to client {node} was announced with the lengths "
                f"{self[node].sent_in(round)} ({self.dtype}), not as {vector.dtype} {vector.shape}"
            )
        format = formats[phase]
        draws = partial(generator, self._seed, "rounding", self._node, node, round, phase)
        if format.codec is None or not format.codec.owes or format.exact == format.length:
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
