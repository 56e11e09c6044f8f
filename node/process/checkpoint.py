"""State files: a client after a round, complete or absent."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from safetensors import safe_open

from ...transport.array_file import ArrayFile
from ...transport.failpoints import failpoint


class DiskFull(Exception):
    """Why a state could not be written; one line for the user."""


def write_state(path: Path, round: int, arrays: Mapping[str, np.ndarray]) -> None:
    """Raises DiskFull, or any other OSError."""
    try:
        ArrayFile(arrays, {"round": str(round)}).save(path, lasting=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskFull(f"{path} cannot be written: {error.strerror}") from None
        raise
    failpoint("state renamed")


def sent_to(node: int, paths: Iterable[Path]) -> Iterator[tuple[int, int, np.ndarray]]:
    """(round, phase, vector) of the messages to ``node`` that a neighbour's files hold; absent files hold none."""
    start = f"sent.{node}."
    for path in paths:
        if not path.exists():
            continue
        with safe_open(path, framework="numpy") as state:
            for name in state.keys():  # noqa: SIM118  (it is no mapping)
                if name.startswith(start):
                    round, phase = name.removeprefix(start).split(".")
                    yield int(round), int(phase), state.get_tensor(name)
