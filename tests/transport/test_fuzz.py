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


ODD = (None, True, 1.0, "1", b"1", [1], {1: 1}, msgpack.Timestamp(1), msgpack.ExtType(5, b"x"))
NUMBERS = (-1, 0, 2, 3, 7, 255, 2**31, 2**63, 2**64 - 1, -(2**63))
LENGTHS = (0, 1, 9, 10, 11, 2**32, 2**63, 2**64 - 1)
NESTS = (b"\x91", b"\x81\x01", b"\xdd\x00\x00\x00\x01", b"\xdf\xff\xff\xff\xff")


def legal(draw: random.Random, **changed) -> list[bytes]:
    header = {"version": 1, "run": RUN, "src": 0, "dst": 1, "round": draw.choice((1, 2)), "phase": 0}
    return [msgpack.packb([*(header | {"shapes": [[0, LENGTH]]} | changed).values()]), VECTOR.tobytes()]


def changed_once(draw: random.Random, frames: list[bytes]) -> list[bytes]:
    """A message in whose header something is wrong, or these frames with one that is damaged."""
    fields = ("version", "run", "src", "dst", "round", "phase")
    place = draw.randrange(len(frames))
    frame = frames[place]
    match draw.randrange(10):
        case 0:
            return legal(draw, **{draw.choice(fields): draw.choice(NUMBERS)})
        case 1:
            return legal(draw, **{draw.choice((*fields, "shapes")): draw.choice(ODD)})
        case 2:
            lengths = draw.choices(LENGTHS, k=draw.randint(0, 40))
            return legal(draw, shapes=[[draw.choice((0, 1, 2, 5, 6, 255)), *lengths]])
        case 3:
            return legal(draw, round=0, shapes=[])[:1] if draw.random() < 0.5 else legal(draw, round=0)
        case 4:
            more = [draw.randbytes(draw.choice((0, 1, 40, 300))) for _ in range(draw.choice((1, 2, 50)))]
            return draw.choice(([], frames)) + more
        case 5:
            flipped = bytearray(frame or b"\0")
            for _ in range(draw.randint(1, 8)):
                flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
            frame = bytes(flipped)
        case 6:
            frame = frame[: draw.randint(0, len(frame))]
        case 7:
            frame += draw.randbytes(draw.choice((1, 4, 300, 5000)))
        case 8:
            place, frame = 0, draw.randbytes(draw.choice((0, 1, 21, 255, 256, 3000)))
        case 9:
            place, frame = 0, draw.choice(NESTS) * draw.choice((5, 60, 250))
    return [*frames[:place], frame, *frames[place + 1 :]]


def illegal(draw: random.Random) -> list[bytes]:
    while True:
        frames = legal(draw)
        for _ in range(draw.randint(1, 3)):
            frames = changed_once(draw, frames)
        if not is_legal(frames):
            return frames


@pytest.mark.parametrize("keys", [False, True])
def test_nothing_illegal_is_taken_in_or_left_uncounted_or_kept(network, keys):
    client, [neighbour] = network.client_of_puppets(1, keys=keys)
    unknown = None if keys else network.puppet(client)
    endpoint, process = client.endpoint, psutil.Process()
    host, port = client.address.removeprefix("tcp://").split(":")
    peers = client.peers({0: Channel(sends=(LENGTH,), receives=(LENGTH,))})
    draw, fed, memory = random.Random(7), 0, []
    while fed < MESSAGES:
        for _ in range(AT_ONCE):
            neighbour.send_multipart(illegal(draw))
        fed += AT_ONCE
        if unknown is None:
            with socket.create_connection((host, int(port))) as raw:
                raw.sendall(draw.randbytes(64) if fed % 200 else b"\xff" + draw.randbytes(600))
        else:
            unknown.send_multipart(illegal(draw))
        fed += 1
        end = time.monotonic() + 10
        while endpoint.rejected.total() < fed and time.monotonic() < end:
            peers.clock.listen(time.monotonic() + 1)
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
