"""The control plane: short JSON lines over inherited sockets, between the launcher, its fork server and the clients."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import Any


class ControlClosed(Exception):
    """The other end is gone."""


@dataclass(slots=True)
class Tally:
    """What has gone one way over a line so far."""

    messages: int = 0
    bytes: int = 0


class Control:
    """One end of a control line. Messages are JSON objects; both ends were started by the same run and are trusted.

    ``sent`` and ``received`` count what has gone each way.
    """

    def __init__(self, sock: socket.socket):
        self.sent = Tally()
        self.received = Tally()
        sock.setblocking(True)
        self._sock = sock
        self._pending = b""

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Raises ControlClosed."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            self._sock.sendall(line)
        except OSError as error:
            raise ControlClosed from error
        self.sent.messages += 1
        self.sent.bytes += len(line)

    def receive(self) -> list[dict[str, Any]]:
        """Blocks until at least one whole message is there, then returns all that came. Raises ControlClosed."""
        messages: list[dict[str, Any]] = []
        while not messages:
            messages = self.receive_some()
        return messages

    def receive_some(self) -> list[dict[str, Any]]:
        """One read of the socket: the messages that it completed, perhaps none. Raises ControlClosed."""
        try:
            data = self._sock.recv(1 << 16)
        except OSError as error:
            raise ControlClosed from error
        if not data:
            raise ControlClosed
        *lines, self._pending = (self._pending + data).split(b"\n")
        self.received.messages += len(lines)
        self.received.bytes += len(data)
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self._sock.close()
