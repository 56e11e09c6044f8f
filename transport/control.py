"""The control plane: short JSON lines over inherited sockets, between the launcher, its fork server and the clients."""

from __future__ import annotations

import json
import socket
from typing import Any


class ControlClosed(Exception):
    """The other end is gone."""


class Control:
    """One end of a control line. Messages are JSON objects; both ends were started by the same run and are trusted."""

    def __init__(self, sock: socket.socket):
        sock.setblocking(True)
        self._sock = sock
        self._pending = b""

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Raises ControlClosed."""
        try:
            self._sock.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            raise ControlClosed from error

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
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self._sock.close()
