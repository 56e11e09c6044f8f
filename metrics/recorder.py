"""The sending side of the metrics plane: records leave for the collector as they are written, or a moment later."""

import time
from dataclasses import dataclass, field

import zmq

from ..transport.environment import CONSTANTS
from ..transport.keys import KeyPair, dial_with
from ..transport.wire import GREETING_BYTES, PUSH_READY_BYTES, handshake_bytes, message_wire_bytes
from .records import MAX_BATCH_BYTES, Record, pack_batch

_RECORDS_A_BATCH = CONSTANTS.records_a_batch
_WAITING = 1000  # batches, of a few kB as a rule, that wait for a collector that cannot keep up, or for the way to it


@dataclass(eq=False)
class Recorder:
    """Sends batches of records. A collector that cannot keep up slows its writers down but for those that ``may_drop``:
    ``dropped`` of their ``batches`` are lost, and the collector misses them. Who is about to wait calls ``flush``."""

    context: zmq.Context
    endpoint: str  # empty: ``connect`` comes later
    sender: int
    keys: tuple[KeyPair, str] | None = field(default=None, kw_only=True)  # its own, and the collector's public one
    may_drop: bool = field(default=False, kw_only=True)
    gather_s: float = field(default=0.0, kw_only=True)  # so soon after others records wait for more, or for ``flush``

    def __post_init__(self) -> None:
        self._socket = self.context.socket(zmq.PUSH)
        # ms: the last records of a process that ends still leave it, however long a slow collector takes
        self._socket.linger = 5000 if self.may_drop else -1
        self._socket.sndhwm = _WAITING
        self.wire_bytes = GREETING_BYTES + PUSH_READY_BYTES
        if self.keys is not None:
            dial_with(self._socket, *self.keys)
            self.wire_bytes += handshake_bytes(connects=True)
        self.connect = self._socket.connect
        if self.endpoint:
            self.connect(self.endpoint)
        self._gathered: list[Record] = []
        self._flush_due = 0.0
        self.batches = self.dropped = 0

    def write(self, *records: Record) -> None:
        self._gathered += records
        if time.monotonic() >= self._flush_due or len(self._gathered) >= _RECORDS_A_BATCH:
            self.flush()

    def flush(self) -> None:
        if not self._gathered:
            return
        records, self._gathered = self._gathered, []
        self._flush_due = time.monotonic() + self.gather_s
        for start in range(0, len(records), _RECORDS_A_BATCH):
            batch = pack_batch(self.sender, self.batches, records[start : start + _RECORDS_A_BATCH])
            if len(batch) > MAX_BATCH_BYTES:
                raise ValueError(f"{len(batch)} bytes of records in one batch; at most {MAX_BATCH_BYTES} are allowed")
            self.send(batch)
            self.batches += 1

    def send(self, message: bytes) -> None:
        try:
            self._socket.send(message, zmq.NOBLOCK if self.may_drop else 0)
        except zmq.Again:
            self.dropped += 1
        else:
            self.wire_bytes += message_wire_bytes([len(message)], sealed=self.keys is not None)

    def close(self) -> None:
        self.flush()
        self._socket.close()
