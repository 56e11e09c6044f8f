"""What is no batch of records, in great number and variety, sent to a collector that is at work.

``make fuzz`` feeds 100,000 messages; SHEAFGOSSIP_FUZZ is their number.
"""

import os
import random
import subprocess
import sys
import time

import msgpack
import psutil
import zmq

from sheafgossip.metrics.reader import open_records
from sheafgossip.metrics.records import (
    TABLES,
    EdgeRecord,
    EventRecord,
    MalformedRecords,
    RoundRecord,
    TrafficRecord,
    pack_batch,
    pack_end,
    unpack,
)

MESSAGES = int(os.environ.get("SHEAFGOSSIP_FUZZ", "3000"))
AT_ONCE = 200
GROWTH = 8 << 20  # bytes of memory that may come and go


def mutated(draw: random.Random, number: int) -> bytes:
    """A message made out of a legal batch; it is legal where the changes are to figures alone."""
    legal = [
        RoundRecord(0, number, 0.5, None, None, 1.25, number / 10),
        TrafficRecord(0, 1, number, 1, 2, 3, 4),
        EventRecord(0.5, None, 0, "warning", "wröng"),
        EdgeRecord(0, 1, number, 0.5, 1.0, 0.0),
    ]
    batch = pack_batch(0, number, draw.choices(legal, k=draw.randint(1, 5)))
    for _ in range(draw.randint(1, 2)):
        match draw.randrange(6):
            case 0:
                changed = bytearray(batch)
                for _ in range(draw.randint(1, 8)):
                    changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
                batch = bytes(changed)
            case 1:
                batch = batch[: draw.randint(1, len(batch))]
            case 2:
                batch += draw.randbytes(draw.choice((1, 30, 3000)))
            case 3:
                batch = draw.randbytes(draw.choice((1, 30, 3000)))
            case 4:
                batch = draw.choice((b"\x91", b"\x81\x01", b"\xdd\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff")) * 500
            case _:
                batch = msgpack.packb(odd(draw))
    return batch


def odd(draw: random.Random) -> object:
    value = draw.choice((None, True, 2**64 - 1, -1, 1.5, "x", b"x", [1], {1: 1}, msgpack.Timestamp(1), float("nan")))
    tag = draw.choice((0, 1, 3, 9, 10, -1, 2**63, "round"))
    row = [tag, *[value] * draw.choice((0, 1, len(TABLES["round"]._fields), 200))]
    return draw.choice(([0, 0, [row]], [value, 0, [row]], ["end", value], ["end", [[0, value]]], [row], value))


def is_legal(message: bytes) -> bool:
    try:
        unpack(message)
    except MalformedRecords:
        return False
    return True


def test_nothing_illegal_is_stored_or_left_uncounted_or_kept(tmp_path):
    command = [sys.executable, "-m", "sheafgossip.metrics.collector", "--endpoint", f"ipc://{tmp_path}/records"]
    command += ["--database", str(tmp_path / "run.sqlite"), "--no-resources"]
    draw, illegal, legal, memory = random.Random(7), 0, 0, []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as collector, zmq.Context() as context:
        endpoint, process = collector.stdout.readline().split()[1], psutil.Process(collector.pid)
        with context.socket(zmq.PUSH) as push:
            push.connect(endpoint)
            while illegal < MESSAGES:
                messages = [mutated(draw, 1 + illegal + legal + number) for number in range(AT_ONCE)]
                foul = [message for message in messages if not is_legal(message)]
                for message in foul:
                    push.send(message)
                illegal, legal = illegal + len(foul), legal + len(messages) - len(foul)
                time.sleep(0.01)
                memory.append(process.memory_info().rss)
            push.send(pack_batch(1, 0, [EventRecord(0.0, None, 1, "last", "after all that")]))
            push.send(pack_end({1: 1}))
        assert collector.wait(60) == 0
    assert 0 < legal < illegal
    with open_records(tmp_path) as records:
        drops = records.execute("SELECT detail FROM event WHERE kind = 'drop'").fetchall()
        counts = [int(detail.removesuffix(" malformed messages on the metrics plane")) for (detail,) in drops]
        assert sum(counts) == illegal
        assert records.execute("SELECT detail FROM event WHERE kind = 'last'").fetchall() == [("after all that",)]
        for table in TABLES:
            expected = {"event": len(drops) + 1, "node": 1}.get(table, 0)
            assert records.execute(f"SELECT count(*) FROM {table}").fetchone() == (expected,)
    assert max(memory) < memory[len(memory) // 2] + GROWTH
