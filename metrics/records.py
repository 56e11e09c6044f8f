"""What the processes of a run report, and its form on the wire: a record class is a table of ``run.sqlite``, its fields
are the columns. Every client imports this module, so it imports nothing of ours and nothing heavy."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple, get_args, get_type_hints

import msgpack

LAUNCHER, COLLECTOR, FORK_SERVER = -1, -2, -3  # node numbers of the processes that are not clients
LARGEST_NODE = 1_000_000
MAX_BATCH_BYTES = 4 << 20  # a longer message on the metrics plane is refused by its receiver; writers split before it


class MalformedRecords(ValueError):
    """Bytes on the metrics plane that are no batch of records."""


def sender_of(node: int, incarnation: int) -> int:
    return node + LARGEST_NODE * (incarnation - 1)


def node_of(sender: int) -> int:
    return sender if sender < 0 else sender % LARGEST_NODE


class NodeRecord(NamedTuple):
    node: int
    role: str
    model: str
    parameters: int
    train_samples: int
    test_samples: int
    degree: int  # neighbours, of all rounds and both directions
    host: str
    pid: int
    address: str  # where its data socket is bound


class RoundRecord(NamedTuple):
    """A client after a round (round 0: before the first exchange). With a server, ``test_*`` and ``global_metric`` are
    of the models that the client would have if the run ended with the round."""

    node: int
    round: int
    train_loss: float | None
    test_loss: float | None  # None when not evaluated, the metric too
    test_metric: float | None
    theta_norm: float
    wall_s: float
    virtual_s: float | None = None  # when the round ended, where a scenario tells time
    disagreement: float | None = None  # sqrt(sum_j ||P_ij theta_i - P_ji theta_j||^2) as the round began
    objective: float | None = None  # train_loss + lam/4 sum_j ||...||^2: the sum over clients counts each edge once
    gradient_norm: float | None = None  # the client's part of the objective's, where a round is one full gradient step
    idle_s: float | None = None  # how long the client waited for its neighbours
    waited_for: int | None = None  # the neighbour that came last
    global_metric: float | None = None  # of the model that all clients have in common, on the client's test samples


class EdgeRecord(NamedTuple):
    """The map P_ij of client i = ``node`` for its neighbour j, in a round."""

    node: int
    neighbour: int
    round: int
    disagreement: float | None  # ||P_ij theta_i - P_ji theta_j|| as the round began; None: the client went without
    map_norm: float  # ||P_ij||_F as the round ended
    error_bound: float  # of what a rank cap may have cost all of the client's maps together; 0 where maps are exact
    weight: float | None = None  # a factor on the map in this round, where edges have weights
    cosine: float | None = None  # how similar the updates of the edge's two ends are estimated to be


class TrafficRecord(NamedTuple):
    """What ``src`` sent to ``dst`` in a round."""

    src: int
    dst: int
    round: int
    messages: int
    payload_bytes: int  # the vectors alone
    message_bytes: int  # all frames
    wire_bytes: int  # with ZMTP framing


class OverheadRecord(NamedTuple):
    """Bytes that ``src`` sent to ``dst`` outside the rounds; ``kind`` is greeting, ready, handshake (what keys add to
    these two), hello, confirmation (of messages taken, where the run has a scenario), evaluation (what a server shows
    clients that do not download it), records or control."""

    src: int
    dst: int
    kind: str
    messages: int
    wire_bytes: int


class ResourceRecord(NamedTuple):
    """A process at a moment: bytes of memory, CPU seconds since its start, bytes of a client's own state."""

    node: int
    wall_s: float
    rss: int
    pss: int
    uss: int
    peak_rss: int
    cpu_s: float
    state_bytes: int  # the sum of the columns after it; all are 0 for what is not a client
    theta_bytes: int = 0
    map_bytes: int = 0  # what restriction maps began as, or their matrices
    history_bytes: int = 0  # of their updates
    buffer_bytes: int = 0  # gradient, velocity and vectors that came early


class WorkRecord(NamedTuple):
    """What one part of a client's work has taken by a moment, since the client's start."""

    node: int
    wall_s: float
    part: str  # start, gradient, maps, exchange, waiting, evaluation, records or io
    cpu_s: float
    elapsed_s: float  # wall seconds
    flops: int


class EventRecord(NamedTuple):
    """Something worth telling: start, finish, crash, warning, drop, timeout, interrupt..."""

    wall_s: float
    virtual_s: float | None
    node: int
    kind: str
    detail: str


class KernelRecord(NamedTuple):
    """One end of a TCP connection of the data plane, at ``node``, as the kernel counted it: wire bytes each way."""

    node: int
    local: str
    peer: str
    bytes_sent: int
    bytes_received: int


class UsedRecord(NamedTuple):
    """What a client used of a neighbour in one exchange of a round, in runs with a scenario."""

    node: int
    round: int
    phase: int
    neighbour: int
    used_round: int | None  # that of the neighbour's message: the same, an older or a newer one; None: it went without


class MetricRecord(NamedTuple):
    """A metric of the user's own, of a client's model on its test samples."""

    node: int
    round: int
    name: str
    value: float


# The position in this list is the record's tag on the wire: append, never reorder.
Record = (
    NodeRecord | RoundRecord | TrafficRecord | OverheadRecord | ResourceRecord
    | EventRecord | EdgeRecord | KernelRecord | WorkRecord | UsedRecord | MetricRecord
)  # fmt: skip
TABLES: dict[str, type[Record]] = {each.__name__.removesuffix("Record").lower(): each for each in get_args(Record)}
COLUMNS: dict[str, dict[str, Any]] = {name: get_type_hints(record_class) for name, record_class in TABLES.items()}
_TABLE_NAMES = tuple(TABLES)
_TAGS = {record_class: tag for tag, record_class in enumerate(TABLES.values())}
_FITTING = [  # by tag, for each column the types that a message may hold: a writer may give 0 for 0.0
    [{*(get_args(type_) or [type_])} | ({int} if type_ in (float, float | None) else set()) for type_ in types.values()]
    for types in COLUMNS.values()
]
_LARGEST_INTEGER = 2**63 - 1  # of a column in SQLite
_UINT64 = b"\xcf"  # msgpack's mark before the only integers that can be larger


class Batch(NamedTuple):
    """A message on the metrics plane."""

    sender: int  # a process: a client that is started again needs another number, or its batches pass for repetitions
    sequence: int  # of the sender's messages, from 0
    tables: dict[str, list[list]]  # rows


class End(NamedTuple):
    """The launcher's last word to the collector: how many batches each sender has sent in all."""

    batches: dict[int, int]


def pack_batch(sender: int, sequence: int, records: Iterable[Record]) -> bytes:
    return msgpack.packb([sender, sequence, [[_TAGS[type(record)], *record] for record in records]])


def pack_end(batches: dict[int, int]) -> bytes:
    return msgpack.packb(["end", sorted(batches.items())])


def unpack(message: bytes) -> Batch | End:
    """Raises MalformedRecords on anything that ``pack_batch`` or ``pack_end`` cannot have written."""
    try:
        body = msgpack.unpackb(message, max_str_len=1 << 20, max_bin_len=0, max_ext_len=0)
        if isinstance(body, list) and len(body) == 2 and body[0] == "end":
            if {type(number) for pair in body[1] for number in pair} - {int}:
                raise ValueError("no numbers of senders and of batches")
            return End(dict(body[1]))
        sender, sequence, rows = body
        if (type(sender), type(sequence), type(rows)) != (int, int, list):
            raise ValueError("no number of a sender, number of a batch, and list of records")
        tables: dict[str, list[list]] = {}
        for row in rows:
            if not _fits(row[0], tuple(map(type, row))):
                raise ValueError(f"no record has this tag and these fields: {row!r:.200}")
            tables.setdefault(_TABLE_NAMES[row[0]], []).append(row[1:])
        if _UINT64 in message and any(  # or a byte that looks like it
            type(value) is int and value > _LARGEST_INTEGER for row in rows for value in row
        ):
            raise ValueError("an integer of more than 63 bits")
        return Batch(sender, sequence, tables)
    except Exception as error:  # whatever msgpack or the shape of the data raises, the bytes are at fault
        raise MalformedRecords(f"not a batch of records: {error}") from error


@lru_cache(maxsize=1024)  # honest writers use a handful of combinations
def _fits(tag: int, types: tuple[type, ...]) -> bool:
    known = types[0] is int and 0 <= tag < len(_FITTING) and len(types) == 1 + len(_FITTING[tag])
    return known and all(given in allowed for given, allowed in zip(types[1:], _FITTING[tag], strict=True))
