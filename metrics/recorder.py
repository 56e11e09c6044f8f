"""The sending side of the metrics plane: records leave for the collector as they are written, or a moment later."""

import time

import zmq

from ..transport.environment import CONSTANTS
from ..transport.keys import KeyPair, dial_with
from ..transport.wire import GREETING_BYTES, PUSH_READY_BYTES, handshake_bytes, message_wire_bytes
from .records import MAX_BATCH_BYTES, Record, pack_batch

_RECORDS_A_BATCH = CONSTANTS.records_a_batch
_WAITING = 1000  # batches, of a few kB as a rule, that wait for a collector that cannot keep up, or for the way to it


class Recorder:
    """Sends batches of records; a collector that cannot keep up slows its writers down. Writers that ``may_drop`` wait
    for nothing: ``dropped`` counts the batches that were lost; they are among ``batches``, so that the collector misses
    them. ``keys`` are the writer's own, and the collector's public one. Records that follow each other within
    ``gather_s`` seconds leave together; whoever is about to wait calls ``flush``."""

    def __init__(
        self,
        context: zmq.Context,
        endpoint: str,
        sender: int,
        *,
        keys: tuple[KeyPair, str] | None = None,
        may_drop: bool = False,
        gather_s: float = 0.0,
    ):
        self._socket = context.socket(zmq.PUSH)
        # ms: the last records of a process that ends still leave it, however long a slow collector takes
        self._socket.linger = 5000 if may_drop else -1
        self._socket.sndhwm = _WAITING
        self._sealed = keys is not None
        self.wire_bytes = GREETING_BYTES + PUSH_READY_BYTES
        if keys is not None:
            dial_with(self._socket, *keys)
            self.wire_bytes += handshake_bytes(connects=True)
        self.connect = self._socket.connect
        if endpoint:
            self.connect(endpoint)
        self._sender = sender
        self._how = zmq.NOBLOCK if may_drop else 0
        self._gather_s = gather_s
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
        self._flush_due = time.monotonic() + self._gather_s
        for start in range(0, len(records), _RECORDS_A_BATCH):
            batch = pack_batch(self._sender, self.batches, records[start : start + _RECORDS_A_BATCH])
            if len(batch) > MAX_BATCH_BYTES:
                raise ValueError(f"{len(batch)} bytes of records in one batch; at most {MAX_BATCH_BYTES} are allowed")
            self.send(batch)
            self.batches += 1

    def send(self, message: bytes) -> None:
        try:
            self._socket.send(message, self._how)
        except zmq.Again:
            self.dropped += 1
        else:
            self.wire_bytes += message_wire_bytes([len(message)], sealed=self._sealed)

    def close(self) -> None:
        self.flush()
        self._socket.close()
