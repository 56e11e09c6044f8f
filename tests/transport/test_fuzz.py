"""What is not legal, in great number and variety, over real sockets to a client that takes part in a run.

``make fuzz`` feeds 100,000 messages; SHEAFGOSSIP_FUZZ is their number.
"""

import gc
import os
import random
import socket
import time

import msgpack
import numpy as np
import psutil
import pytest

from sheafgossip.transport.channel import Channel

RUN = 77
"""As in conftest.py."""

MESSAGES = int(os.environ.get("SHEAFGOSSIP_FUZZ", "3000"))
AT_ONCE = 100
GROWTH = 3 << 20
"""Bytes of memory that may come and go."""

LENGTH = 10
VECTOR = np.arange(LENGTH, dtype=np.float32)


def is_legal(frames: list[bytes]) -> bool:
    """By the page that describes the wire, for the two messages that may come now: of this round and of the next."""
    if len(frames) != 2 or len(frames[0]) > 255 or len(frames[1]) != 4 * LENGTH:
        return False
    try:
        header = msgpack.unpackb(frames[0])
    except ValueError:
        return False
    return any(repr(header) == repr([1, RUN, 0, 1, round, 0, [[0, LENGTH]]]) for round in (1, 2))


class Mutator:
    """Makes messages out of legal ones; the same seed makes the same."""

    def __init__(self, seed: int):
        self._draw = random.Random(seed)
        self._ways = [
            *(self._flip, self._cut, self._append, self._number, self._shape, self._frames, self._noise, self._nest),
            *(self._replay, self._types),
        ]

    def message(self) -> list[bytes]:
        while True:
            frames = self._legal()
            for _ in range(self._draw.randint(1, 3)):
                frames = self._draw.choice(self._ways)(frames)
            if not is_legal(frames):
                return frames

    def noise(self, length: int) -> bytes:
        return self._draw.randbytes(length)

    def _legal(self, **changed) -> list[bytes]:
        header = {"version": 1, "run": RUN, "src": 0, "dst": 1, "round": self._draw.choice((1, 2)), "phase": 0}
        shapes = changed.pop("shapes", [[0, LENGTH]])
        return [msgpack.packb([*(header | changed).values(), shapes]), VECTOR.tobytes()]

    def _any(self, frames: list[bytes]) -> int:
        return self._draw.randrange(len(frames))

    def _changed(self, frames: list[bytes], place: int, frame: bytes) -> list[bytes]:
        return [*frames[:place], frame, *frames[place + 1 :]]

    def _flip(self, frames):
        place = self._any(frames)
        frame = bytearray(frames[place] or b"\0")
        for _ in range(self._draw.randint(1, 8)):
            frame[self._draw.randrange(len(frame))] ^= 1 << self._draw.randrange(8)
        return self._changed(frames, place, bytes(frame))

    def _cut(self, frames):
        place = self._any(frames)
        return self._changed(frames, place, frames[place][: self._draw.randint(0, len(frames[place]))])

    def _append(self, frames):
        place = self._any(frames)
        return self._changed(frames, place, frames[place] + self.noise(self._draw.choice((1, 4, 300, 5000))))

    def _number(self, frames):
        field = self._draw.choice(("version", "run", "src", "dst", "round", "phase"))
        return self._legal(**{field: self._draw.choice((-1, 0, 2, 3, 7, 255, 2**31, 2**63, 2**64 - 1, -(2**63)))})

    def _shape(self, frames):
        lengths = [
            self._draw.choice((0, 1, 9, 10, 11, 2**32, 2**63, 2**64 - 1)) for _ in range(self._draw.randint(0, 40))
        ]
        return self._legal(shapes=[[self._draw.choice((0, 1, 2, 5, 6, 255)), *lengths]])

    def _frames(self, frames):
        more = [self.noise(self._draw.choice((0, 1, 40, 300))) for _ in range(self._draw.choice((1, 2, 50)))]
        return self._draw.choice(([], frames)) + more

    def _noise(self, frames):
        return self._changed(frames, 0, self.noise(self._draw.choice((0, 1, 21, 255, 256, 3000))))

    def _nest(self, frames):
        opening = self._draw.choice((b"\x91", b"\x81\x01", b"\xdd\x00\x00\x00\x01", b"\xdf\xff\xff\xff\xff"))
        return self._changed(frames, 0, opening * self._draw.choice((5, 60, 250)))

    def _replay(self, frames):
        return self._legal(round=0, shapes=[])[:1] if self._draw.random() < 0.5 else self._legal(round=0)

    def _types(self, frames):
        odd = self._draw.choice(
            (None, True, 1.0, "1", b"1", [1], {1: 1}, msgpack.Timestamp(1), msgpack.ExtType(5, b"x"))
        )
        return self._legal(**{self._draw.choice(("version", "run", "src", "round", "phase", "shapes")): odd})


@pytest.mark.parametrize("keys", [False, True])
def test_nothing_illegal_is_taken_in_or_left_uncounted_or_kept(network, keys):
    client, [neighbour] = network.client_of_puppets(1, keys=keys)
    stranger = None if keys else network.puppet(client)
    endpoint, process = client.endpoint, psutil.Process()
    host, port = client.address.removeprefix("tcp://").split(":")
    peers = client.peers({0: Channel(sends=(LENGTH,), receives=(LENGTH,))})
    mutator, fed, memory = Mutator(seed=7), 0, []
    while fed < MESSAGES:
        for _ in range(AT_ONCE):
            neighbour.send_multipart(mutator.message())
        fed += AT_ONCE
        if stranger is None:
            with socket.create_connection((host, int(port))) as raw:
                raw.sendall(mutator.noise(64) if fed % 200 else b"\xff" + mutator.noise(600))
        else:
            stranger.send_multipart(mutator.message())
        fed += 1
        end = time.monotonic() + 10
        while endpoint.rejected.total() < fed and time.monotonic() < end:
            peers.clock.idle()
        assert endpoint.rejected.total() == fed, endpoint.rejected
        assert peers.memory_bytes() == 0
        gc.collect(0)
        memory.append(process.memory_info().rss)
    assert max(memory) < memory[len(memory) // 4] + GROWTH
    assert len(endpoint.rejected) < 15, endpoint.rejected  # a few fixed phrases, whatever comes
    vector = np.random.default_rng(1).standard_normal(LENGTH).astype(np.float32)
    for round in (1, 2):
        neighbour.send_multipart([network.header(src=0, dst=1, round=round, shapes=[[0, LENGTH]]), vector.tobytes()])
    np.testing.assert_array_equal(peers.receive()[0], vector)
    assert endpoint.rejected.total() == fed
