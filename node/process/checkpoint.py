"""State files: a client after a round, complete or absent; and what they hold of messages under way."""

import errno
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from safetensors import safe_open

from ...transport.array_file import ArrayFile
from ...transport.clock_planned import PlannedClock
from ...transport.failpoints import failpoint
from ..assignment import Assignment


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


def _sent_to(node: int, paths: Iterable[Path]) -> Iterator[tuple[int, int, np.ndarray]]:
    """(round, phase, vector) of the messages to ``node`` that a neighbour's files hold; absent files hold none."""
    start = f"sent.{node}."
    for path in filter(Path.exists, paths):
        with safe_open(path, framework="numpy") as state:
            for name in state.keys():  # noqa: SIM118  (it is no mapping)
                if name.startswith(start):
                    round, phase = name.removeprefix(start).split(".")
                    yield int(round), int(phase), state.get_tensor(name)


def restore_messages(assignment: Assignment, clock: PlannedClock) -> None:
    """Messages from before this process: those that neighbours had sent when the run was interrupted, and this client
    has not used yet; and own ones that neighbours will use after checkpoints to come."""
    incarnation = assignment.incarnation
    for peer in assignment.neighbours:
        own = [assignment.handed_on(incarnation.number - 1)]
        if incarnation.resumed_at:
            own += assignment.checkpoint_of(assignment.node, incarnation.resumed_at)
            theirs = assignment.checkpoint_of(peer.node, incarnation.resumed_at)
            for message in _sent_to(assignment.node, theirs):
                clock.restore(peer.node, *message, incarnation.number)
        for message in _sent_to(peer.node, own):
            clock.stored.add(peer.node, *message, clock.round)


def hand_on(assignment: Assignment, clock: PlannedClock) -> None:
    """All that was sent to this client comes in, all that neighbours need of it is written: then it may end."""
    incarnation, every = assignment.incarnation, assignment.checkpoints.every
    clock.drain(incarnation.number, incarnation.resumed_at)
    for round in range(clock.round, incarnation.absent_until + 1):
        if every and round % every == 0:
            write_state(assignment.sent(round), round, clock.stored.state(round))
    if handed_on := clock.stored.state(clock.round - 1):
        write_state(assignment.handed_on(incarnation.number), clock.round - 1, handed_on)
