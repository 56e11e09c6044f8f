"""Files of a client's state, and of messages that neighbours have yet to use."""

import errno
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from safetensors import safe_open

from ...transport import array_file
from ...transport.environment import failpoint


class Failure(Exception):
    """A client cannot go on; the message is one line for the user."""


def write_state(path: Path, round: int, arrays: Mapping[str, np.ndarray]) -> None:
    """Raises Failure where the disk is full, or any other OSError."""
    try:
        array_file.ArrayFile(arrays, {"round": str(round)}).save(path, lasting=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise Failure(f"{path} cannot be written: {error.strerror}") from None
        raise
    failpoint("state renamed")


def sent_to(node: int, paths: Iterable[Path]) -> Iterator[tuple[int, int, np.ndarray]]:
    """(round, phase, vector) of the messages to ``node`` that a neighbour's files hold; absent files hold none."""
    start = f"sent.{node}."
    for path in filter(Path.exists, paths):
        with safe_open(path, framework="numpy") as state:
            for name in state.keys():  # noqa: SIM118  (it is no mapping)
                if name.startswith(start):
                    round, phase = name.removeprefix(start).split(".")
                    yield int(round), int(phase), state.get_tensor(name)
