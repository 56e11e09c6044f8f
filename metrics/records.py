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
    """A process of the run."""

    node: int  # its number: clients from 0; -1 the launcher, -2 the collector, -3 the fork server
    role: str  # client, server, launcher, fork server, collector, agent
    model: str  # short name of the client's architecture, such as "cnn 32-64"
    parameters: int  # length of theta
    train_samples: int  # of its shard
    test_samples: int  # of its shard
    degree: int  # number of its neighbours, over all rounds and both directions
    host: str  # machine, or the part of one made a host by placement.hosts
    pid: int  # process number
    address: str  # where its data socket is bound


class RoundRecord(NamedTuple):
    """A client after a round (round 0: before the first exchange). With a server, ``test_*`` and ``global_metric`` are
    of the models that the client would have if the run ended with the round."""

    node: int  # which client
    round: int  # which round
    train_loss: float | None  # mean of the losses in the round's local work; missing where there was none
    test_loss: float | None  # mean loss, without the l2 term, on its test samples; missing when not evaluated
    test_metric: float | None  # accuracy (0 to 1) or mean squared error on them
    theta_norm: float  # Euclidean norm of theta in the client's state
    wall_s: float  # when the round, and what is evaluated of it, was complete
    virtual_s: float | None = None  # the same in planned seconds, with a virtual clock
    disagreement: float | None = None
    """sqrt(sum_j ||P_ij theta_i - P_ji theta_j||^2) at the start of the round; missing if the algorithm has none."""
    objective: float | None = None
    """The client's part of the objective at the start of the round: train_loss + lam/4 sum_j of the same squared norms;
    the sum over clients counts each edge once."""
    gradient_norm: float | None = None
    """The client's part of the norm of the objective's gradient; missing unless the local work is one full step."""
    idle_s: float | None = None  # seconds spent waiting for neighbours, on the run's clock; missing without a scenario
    waited_for: int | None = None  # the neighbour that came last; missing if none was waited for
    global_metric: float | None = None
    """That of the common model: the server's after the round; missing if the algorithm has none."""


class EdgeRecord(NamedTuple):
    """The restriction map P_ij of a client for a neighbour in a round."""

    node: int  # i
    neighbour: int  # j
    round: int
    disagreement: float | None  # ||P_ij theta_i - P_ji theta_j|| as the round began; missing: the client went without
    map_norm: float  # Frobenius norm of P_ij as the round ended, times its weight
    error_bound: float  # of what a rank cap may have cost all of the client's maps together; 0 where maps are exact
    weight: float | None = None  # selective sheaf: weight of the neighbour's pull in this round
    cosine: float | None = None  # selective sheaf: estimated cosine between the clients' updates


class TrafficRecord(NamedTuple):
    """What one client sent another in a round."""

    src: int  # from
    dst: int  # to
    round: int
    messages: int
    payload_bytes: int  # the vectors alone
    message_bytes: int  # all frames, headers included
    wire_bytes: int  # with the protocol's framing, see docs/wire.md


class OverheadRecord(NamedTuple):
    """What was sent outside the rounds."""

    src: int  # from
    dst: int  # to
    kind: str
    """greeting, ready, handshake (what keys add to these two), hello, confirmation (of messages taken, with a
    scenario), evaluation (what a server shows clients that do not download it), again (in a replay), records, control,
    all as in docs/wire.md, and files (between launcher and agents); these five are written at the end."""
    messages: int
    wire_bytes: int


class ResourceRecord(NamedTuple):
    """A process at a moment: a client at the end of a round, every ``measuring.every`` seconds, and after its last;
    other processes at the end. Samples that would cost a client more than 0.5% of its CPU time are postponed. Memory is
    in bytes."""

    node: int  # which process
    wall_s: float  # when
    rss: int  # resident memory
    pss: int  # with shared pages divided among their processes
    uss: int  # without shared pages
    peak_rss: int  # largest resident memory so far
    cpu_s: float  # CPU seconds since the process started
    state_bytes: int  # what a client keeps between rounds, the sum of the next four; 0 for other processes
    theta_bytes: int = 0  # its parameters
    map_bytes: int = 0  # its restriction maps: their starts, or dense matrices
    history_bytes: int = 0  # updates of factored maps
    buffer_bytes: int = 0  # gradient, velocity, and vectors that arrived early


class WorkRecord(NamedTuple):
    """What a part of a client's work has taken since its start, written with each sample."""

    node: int  # which client
    wall_s: float  # when
    part: str  # start, gradient, maps, exchange, waiting, evaluation, records or io, see docs/measuring.md
    cpu_s: float  # CPU seconds
    elapsed_s: float  # wall seconds; all parts add up to the process's lifetime
    flops: int  # floating point operations, see docs/measuring.md


class EventRecord(NamedTuple):
    """What happened."""

    wall_s: float  # when
    virtual_s: float | None  # when, in planned seconds
    node: int  # who
    kind: str  # docs/run-folder.md has all of them
    detail: str  # a sentence


class KernelRecord(NamedTuple):
    """One end of a TCP connection as the kernel counted it, with ``measuring.kernel``, without retransmissions and
    TCP/IP headers."""

    node: int  # the client at this end
    local: str  # its address, 127.0.0.1:PORT
    peer: str  # that of the other end
    bytes_sent: int
    bytes_received: int
    busy_s: float | None = None  # in which something to send was not acknowledged yet, in ticks of the kernel's clock


class UsedRecord(NamedTuple):
    """What a client used of a neighbour in one exchange of a round, with a scenario."""

    node: int  # which client
    round: int  # which of its rounds
    phase: int  # which exchange of the round, from 0
    neighbour: int  # whose vector
    used_round: int | None  # in which the neighbour sent it: the same, older or newer; missing: none was used


class MetricRecord(NamedTuple):
    """A metric of the user's own, of a client's model on its test samples."""

    node: int  # which client
    round: int  # after which of its rounds
    name: str  # what it is called
    value: float  # what the function returned


class ConfusionRecord(NamedTuple):
    """How often a client's model took test samples of one class for another, or for the same, after the run's last
    round, with ``evaluation.confusion``; pairs that did not occur have no row."""

    node: int  # which client
    round: int  # after which of its rounds
    label: int  # number of the samples' class
    predicted: int  # number of the class that they were taken for
    samples: int  # how many


class PrivacyRecord(NamedTuple):
    """What differential privacy a client's training samples have after all rounds of the run, with [privacy]: each one,
    added or removed, against all who see the client's messages and do not know the noise."""

    node: int  # which client
    epsilon: float
    delta: float
    noise: float  # standard deviation as a multiple of privacy.clip, with what correlated noise adds to it for others
    sampling: float  # the largest probability with which a sample is in a gradient
    gradients: int  # that are noised, at most


# The position in this list is the record's tag on the wire: append, never reorder.
Record = (
    NodeRecord | RoundRecord | TrafficRecord | OverheadRecord | ResourceRecord
    | EventRecord | EdgeRecord | KernelRecord | WorkRecord | UsedRecord | MetricRecord | ConfusionRecord
    | PrivacyRecord
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
