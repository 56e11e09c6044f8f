"""The control plane: short JSON lines over inherited sockets, between the launcher, its fork server and the clients."""

from __future__ import annotations

import json
import math
import select
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
    """One end of a control line. Messages are JSON objects; both ends belong to the same run, and are trusted.

    ``sent`` and ``received`` count what has gone each way. One of the two ends must be ``attentive``: it goes on
    reading while it waits for room to send. If both just waited, a burst of messages both ways would hang them.
    """

    def __init__(self, sock: socket.socket, *, attentive: bool = False):
        self.sent = Tally()
        self.received = Tally()
        sock.setblocking(True)
        self._sock = sock
        self._attentive = attentive
        self._came_meanwhile = b""
        self._pending = b""

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Raises ControlClosed."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            if self._attentive:
                self._send_and_read(line)
            else:
                self._sock.sendall(line)
        except OSError as error:
            raise ControlClosed from error
        self.sent.messages += 1
        self.sent.bytes += len(line)

    def _send_and_read(self, line: bytes) -> None:
        while True:
            try:
                line = line[self._sock.send(line, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                if self._poll(select.POLLIN | select.POLLOUT) & ~select.POLLOUT:
                    self._came_meanwhile += self._read()
            if not line:
                return

    def wait(self, seconds: float) -> bool:
        """Until there is something to receive, or for so long; whether there is."""
        return bool(self._came_meanwhile) or bool(self._poll(select.POLLIN, seconds))

    def _poll(self, events: int, seconds: float | None = None) -> int:
        poll = select.poll()  # unlike select(), for any number of open files
        poll.register(self._sock, events)
        return next((event for _, event in poll.poll(None if seconds is None else math.ceil(seconds * 1000))), 0)

    def receive(self) -> list[dict[str, Any]]:
        """Blocks until at least one whole message is there, then returns all that came. Raises ControlClosed."""
        messages: list[dict[str, Any]] = []
        while not messages:
            messages = self.receive_some()
        return messages

    def receive_some(self) -> list[dict[str, Any]]:
        """One read of the socket: the messages that it completed, perhaps none. Raises ControlClosed."""
        data, self._came_meanwhile = self._came_meanwhile or self._read(), b""
        *lines, self._pending = (self._pending + data).split(b"\n")
        self.received.messages += len(lines)
        self.received.bytes += len(data)
        return [json.loads(line) for line in lines]

    def _read(self) -> bytes:
        try:
            data = self._sock.recv(1 << 16)
        except OSError as error:
            raise ControlClosed from error
        if not data:
            raise ControlClosed
        return data

    def close(self) -> None:
        self._sock.close()
