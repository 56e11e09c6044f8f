"""What travels between the launcher and the agent of a host: JSON objects, control messages, files in pieces."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ....node.algorithms import input_files
from ....transport import control

PIECE_BYTES = 256 << 10
MAX_FRAME_BYTES = 64 << 20
"""The size of an object: the assignments of a hundred clients with many neighbours each are a few megabytes."""

HEARTBEAT_MS, SILENCE_MS = 1000, 3000
"""How often each end asks for a sign of the other, and after how long without one the connection counts as lost."""

_ALLOWED = re.compile(
    r"(shards|plan)/node-\d{4,7}\.safetensors|state/round-\d{6,9}/(node|sent)-\d{4,7}\.safetensors|"
    r"sent/node-\d{4,7}\.\d{1,3}\.safetensors|"
    rf"log/node-\d{{4,7}}\.log|({'|'.join(input_files())})\.safetensors"
)


class LineError(Exception):
    """The other end said what it must not."""


def pack(message: Any, piece: bytes | None = None) -> list[bytes]:
    text = control.encode(message)
    return [text] if piece is None else [text, piece]


def unpack(frames: list[bytes], words: control.Words) -> tuple[Any, bytes]:
    """The message, and the piece of a file that came with it. Raises LineError."""
    try:
        message = control.decode(frames[0], words)
    except (ValueError, TypeError, IndexError, RecursionError) as error:
        raise LineError("no JSON object") from error
    if not isinstance(message, (dict, *words.values())) or len(frames) > 2:
        raise LineError("no JSON object")
    return message, frames[1] if len(frames) == 2 else b""


def pieces(path: Path, name: str) -> Iterator[list[bytes]]:
    """A file as messages of the line; ``name`` is its path in the run's folder."""
    with path.open("rb") as file:
        piece = file.read(PIECE_BYTES)
        while True:
            following = file.read(PIECE_BYTES)
            yield pack({"file": name, "last": not following}, piece)
            if not following:
                return
            piece = following


class Incoming:
    """Puts the files of a run together in its folder; each is there whole or not at all."""

    def __init__(self, folder: Path):
        self.folder = folder

    def take(self, name: str, piece: bytes, *, last: bool) -> None:
        """Raises LineError for a file that is none of a run's."""
        if not isinstance(name, str) or _ALLOWED.fullmatch(name) is None or len(piece) > PIECE_BYTES:
            raise LineError(f"a file that is none of a run's: {str(name)[:60]!r}")
        path = self.folder / name
        unfinished = path.with_name(path.name + ".part")
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("ab") as file:
            file.write(piece)
        if last:
            unfinished.replace(path)
