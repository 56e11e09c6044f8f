"""The sending side of the metrics plane: records leave for the collector as they are written."""

from __future__ import annotations

import zmq

from ..metrics.records import MAX_BATCH_BYTES, Record, pack_batch
from .wire import GREETING_BYTES, PUSH_READY_BYTES, message_wire_bytes

_RECORDS_A_BATCH = 2000


class Recorder:
    """Sends batches of records; a collector that cannot keep up slows its writers down instead of losing records."""

    def __init__(self, context: zmq.Context, endpoint: str, sender: int):
        self._socket = context.socket(zmq.PUSH)
        self._socket.linger = 5000  # ms: the last records of a process that ends still leave it
        self._socket.connect(endpoint)
        self._sender = sender
        self.batches = 0
        self.wire_bytes = GREETING_BYTES + PUSH_READY_BYTES

    def write(self, *records: Record) -> None:
        for start in range(0, len(records), _RECORDS_A_BATCH):
            batch = pack_batch(self._sender, self.batches, records[start : start + _RECORDS_A_BATCH])
            if len(batch) > MAX_BATCH_BYTES:
                raise ValueError(f"{len(batch)} bytes of records in one batch; at most {MAX_BATCH_BYTES} are allowed")
            self.send(batch)
            self.batches += 1

    def send(self, message: bytes) -> None:
        self._socket.send(message)
        self.wire_bytes += message_wire_bytes([len(message)])

    def close(self) -> None:
        self._socket.close()
