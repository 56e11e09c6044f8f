"""Records, run folders and damaged bytes made by hand."""

import random
from io import StringIO
from pathlib import Path

from rich.console import Console

from sheafgossip.metrics.records import LAUNCHER, EventRecord, NodeRecord, Record, RoundRecord, TrafficRecord
from sheafgossip.metrics.store import Store


def node(number: int, role: str = "client", pid: int = 100) -> NodeRecord:
    return NodeRecord(number, role, "logistic", 650, 30, 10, 2, "host", pid, "")


def done(client: int, number: int, metric: float | None = None, wall_s: float = 0.0, **others) -> RoundRecord:
    return RoundRecord(client, number, 0.5, None, metric, 1.0, wall_s, **others)


def sent(src: int, dst: int, number: int, payload: int) -> TrafficRecord:
    return TrafficRecord(src, dst, number, 1, payload, payload + 20, payload + 30)


def event(client: int, kind: str, wall_s: float = 0.0, detail: str = "", virtual_s: float | None = None) -> EventRecord:
    return EventRecord(wall_s, virtual_s, client, kind, detail)


START = event(LAUNCHER, "start")


def write(folder: Path, *records: Record, **facts: str) -> Path:
    """Adds records and facts to the run in a folder."""
    store = Store(folder / "run.sqlite")
    store.describe(facts)
    store.write(records)
    store.close()
    return folder


def printed(*parts: object, width: int = 80) -> str:
    """What a terminal shows of tables and texts."""
    console = Console(width=width, file=StringIO(), highlight=False, markup=False, emoji=False)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))
    return console.file.getvalue()


def damaged(draw: random.Random, data: bytes) -> bytes:
    """Bytes with some bits flipped, the end cut off, more at the end, others altogether, or lists in lists in lists."""
    match draw.randrange(5):
        case 0:
            changed = bytearray(data or b"\0")
            for _ in range(draw.randint(1, 8)):
                changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
            return bytes(changed)
        case 1:
            return data[: draw.randint(0, len(data))]
        case 2:
            return data + draw.randbytes(draw.choice((1, 4, 30, 300, 5000)))
        case 3:
            return draw.randbytes(draw.choice((0, 1, 21, 255, 256, 3000)))
    nest = draw.choice((b"\x91", b"\x81\x01", b"\xdd\0\0\0\1", b"\xdd\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff"))
    return nest * draw.choice((5, 60, 500))
