"""The protocol's constants, of all rooms: what no user should have to choose. Tests choose others for all processes of
a run, by SHEAFGOSSIP_TEST_CONSTANTS="window_bytes=4096,linger_s=0.1"."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar, get_type_hints

Meaning = TypeVar("Meaning")

VARIABLE = "SHEAFGOSSIP_TEST_CONSTANTS"


@dataclass(frozen=True, slots=True)
class Constants:
    """Those that end in ``_s`` are seconds."""

    window_bytes: int = 1 << 20  # that messages under way to a neighbour fit, beside those that the plan has wait
    window_most: int = 128  # of those messages; half as many are confirmed at once
    queue_of_a_server: int = 8  # messages that wait on a server's connection, each way, where nobody confirms them
    soon_s: float = 0.02  # so long a client waits for messages alone, before it also listens to the launcher
    look_every_s: float = 0.05  # it hears the launcher in any case so often while messages keep coming
    tell_wait_s: float = 5.0  # after so long a wait a client tells the launcher for whom, and again after twice as long
    last_words_s: float = 1.0  # how long the last words of a neighbour that has died may take to come in
    last_words_wall_s: float = 0.5  # the same on the wall clock, also of one that has finished
    gather_s: float = 0.25  # records of rounds that are shorter than this leave together
    linger_s: float = 10.0  # how long what a client has sent may take to leave it, where it ends before the others
    records_a_batch: int = 2000
    forked_at_once: int = 100
    stop_grace_s: float = 1.5  # how long clients that were asked to stop may take before they are killed
    further_failures_s: float = 0.3  # a failure rarely comes alone: how long to listen for the one that caused it
    exit_s: float = 60.0  # how long processes that are done may take to leave
    standstill_s: float = 120.0  # for how long the collector may store and write nothing at the end
    locked_s: float = 120.0  # for how long somebody else may keep the database locked at the end
    commit_every_s: float = 0.5
    missing_s: float = 5.0  # how long the collector waits for batches that were announced, while none comes
    collector_gather_ms: int = 50  # messages that come meanwhile are written together: much cheaper than one by one
    burst: int = 256  # messages that the collector takes in one go; also bounds how late a commit can be
    burst_rows: int = 5_000  # rows that wait in the collector's memory to be written together


def parse(text: str) -> Constants:
    """``text`` is NAME=NUMBER, separated by commas. Raises ValueError."""
    types = get_type_hints(Constants)
    given = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in types:
            raise ValueError(f"{part!r}: no such constant; allowed are {', '.join(types)}")
        with suppress(ValueError):
            given[name] = types[name](value)
        if given.get(name, -1) < 0:
            raise ValueError(f"{part!r}: must be a number ({types[name].__name__}), and not below 0")
    return Constants(**given)


def chosen(variable: str, parse: Callable[[str], Meaning]) -> Meaning:
    """What the environment's ``variable`` means; where it means nothing, the process ends with one line."""
    try:
        return parse(os.environ.get(variable, ""))
    except ValueError as error:
        print(f"error: {variable}: {error}", file=sys.stderr)
        raise SystemExit(2) from None


CONSTANTS = chosen(VARIABLE, parse)
