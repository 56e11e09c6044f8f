"""What is not legal, in great number and variety, over real sockets to a client that takes part in a run. ``make fuzz``
feeds 100,000 messages; SHEAFGOSSIP_FUZZ is their number."""

import gc
import os
import random
import socket
import time

import msgpack
import numpy as np
import psutil
import pytest

import made
from sheafgossip.transport.channel import Channel

MESSAGES = int(os.environ.get("SHEAFGOSSIP_FUZZ", "3000"))
AT_ONCE = 100
GROWTH = 3 << 20  # bytes of memory that may come and go
VECTOR = np.random.default_rng(1).standard_normal(10).astype(np.float32)
LEGAL = {"version": 1, "run": 77, "src": 0, "dst": 1, "round": 1, "phase": 0, "shapes": [[0, 10]]}

ODD = (None, True, 1.0, "1", b"1", [1], {1: 1}, msgpack.Timestamp(1), msgpack.ExtType(5, b"x"))
NUMBERS = (-1, 0, 2, 3, 7, 255, 2**31, 2**63, 2**64 - 1, -(2**63))
FOREIGN = (b"", b"\xff", b"\xff" * 500, b"GET / HTTP/1.1\r\n\r\n" * 20, b"\x16\x03\x01\x02\x00\x01")
LENGTHS = (0, 1, 9, 10, 11, 2**32, 2**63, 2**64 - 1)


def message(**changed) -> list[bytes]:
    return [msgpack.packb([*(LEGAL | changed).values()]), VECTOR.tobytes()]


def is_legal(frames: list[bytes]) -> bool:
    """By the page that describes the wire, for the two messages that may come now: of this round and of the next."""
    if len(frames) != 2 or len(frames[0]) > 255 or len(frames[1]) != VECTOR.nbytes:
        return False
    try:
        header = msgpack.unpackb(frames[0])
    except ValueError:
        return False
    return any(repr(header) == repr([*(LEGAL | {"round": round}).values()]) for round in (1, 2))


def changed_once(draw: random.Random, frames: list[bytes]) -> list[bytes]:
    """A message in whose header something is wrong, or these frames with one that is damaged."""
    field = draw.choice([*LEGAL][:-1])
    match draw.randrange(10):
        case 0:
            return message(**{field: draw.choice(NUMBERS)})
        case 1:
            return message(**{draw.choice([*LEGAL]): draw.choice(ODD)})
        case 2:
            lengths = draw.choices(LENGTHS, k=draw.randint(0, 40))
            return message(shapes=[[draw.choice((0, 1, 2, 5, 6, 255)), *lengths]])
        case 3:
            return message(round=0, shapes=[])[:1] if draw.random() < 0.5 else message(round=0)
        case 4:
            more = [draw.randbytes(draw.choice((0, 1, 40, 300))) for _ in range(draw.choice((1, 2, 50)))]
            return draw.choice(([], frames)) + more
    place = draw.randrange(len(frames))
    return [*frames[:place], made.damaged(draw, frames[place]), *frames[place + 1 :]]


def illegal(draw: random.Random) -> list[bytes]:
    while True:
        frames = message(round=draw.choice((1, 2)))
        for _ in range(draw.randint(1, 3)):
            frames = changed_once(draw, frames)
        if not is_legal(frames):
            return frames


@pytest.mark.parametrize("keys", [False, True])
def test_nothing_illegal_is_taken_in_or_left_uncounted_or_kept(network, keys):
    client, [neighbour] = network.client_of_puppets(1, keys=keys)
    unknown = None if keys else network.puppet(client)
    endpoint, process = client.endpoint, psutil.Process()
    peers = client.peers({0: Channel((10,), (10,))})
    draw, fed, memory = random.Random(7), 0, []
    while fed < MESSAGES:
        for _ in range(AT_ONCE):
            neighbour.send_multipart(illegal(draw))
        if unknown is None:
            with socket.create_connection(client.place) as raw:
                raw.sendall(draw.choice(FOREIGN) + draw.randbytes(draw.choice((0, 64, 600))))
        else:
            unknown.send_multipart(illegal(draw))
        fed += AT_ONCE + 1
        end = time.monotonic() + 10
        while endpoint.rejected.total() < fed and time.monotonic() < end:
            peers.clock.listen(end)
        assert endpoint.rejected.total() == fed, endpoint.rejected
        assert peers.memory_bytes() == 0
        gc.collect(0)
        memory.append(process.memory_info().rss)
    assert max(memory) < memory[len(memory) // 4] + GROWTH
    assert len(endpoint.rejected) < 15, endpoint.rejected  # a few fixed phrases, whatever comes
    for round in (1, 2):
        neighbour.send_multipart(message(round=round))
    np.testing.assert_array_equal(peers.receive()[0], VECTOR)
    assert endpoint.rejected.total() == fed
