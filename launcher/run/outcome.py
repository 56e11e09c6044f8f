"""How a run ended, and why: what is told to the user of the clients that failed."""

import errno
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ...metrics.names import SERVER_NAME, client_name
from ...metrics.reader import open_records
from ...metrics.schema import RunFolderError
from ...node.assignment import name_of
from ...transport.control import Failed
from ..prepare.prepared import Prepared
from .waits import News


@dataclass(frozen=True)
class Outcome:
    """``causes`` are texts for the user, the root of the trouble first."""

    status: Literal["finish", "failure", "interrupt"]
    causes: tuple[str, ...] = ()


@dataclass
class Failures:
    """What has gone wrong with clients."""

    errors: dict[int, Failed] = field(default_factory=dict)
    deaths: dict[int, int] = field(default_factory=dict)
    """{client: exit status}"""
    lost_hosts: list[str] = field(default_factory=list)
    lost_clients: set[int] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.errors or self.deaths)

    def causes(self, prepared: Prepared, hopeless: News | None) -> Iterator[str]:
        """Deaths by signal first: what they leave behind makes others fail. ``hopeless`` is a wait without an end."""
        rounds = _completed_rounds(prepared.folder)
        yield from self.lost_hosts
        for node, status in sorted(self.deaths.items()):
            if status < 0 and node not in self.lost_clients:
                last = last_line(_log(prepared, node)) if -status == signal.SIGABRT else ""  # libraries say why
                yield f"{name_in(prepared, node)} died in {_round(rounds, node)}: {signal_name(-status)}{last}"
        if hopeless and self.errors:
            yield f"{name_in(prepared, hopeless.node)} {hopeless.text}"
        told: Counter[str] = Counter()
        for node, error in sorted(self.errors.items()):
            if not (error.cause and told[error.cause]):
                yield f"{name_in(prepared, node)} failed in {_round(rounds, node)}: {error.text.rstrip()}"
            told[error.cause] += 1
        for node, status in sorted(self.deaths.items()):
            if status >= 0 and node not in self.errors:
                text = f"with exit status {status}; see {_log(prepared, node)}"
                yield f"{name_in(prepared, node)} ended in {_round(rounds, node)} {text}"


def name_in(prepared: Prepared, node: int) -> str:
    """Returns how a client, or the server, of the run is called."""
    if prepared.assignments[node].role == "server":
        return SERVER_NAME
    return client_name(node, {k: each.owner for k, each in enumerate(prepared.data.clients) if each.owner})


def signal_name(number: int) -> str:
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:
        return f"killed by signal {number}"


def last_line(log: Path) -> str:
    """Returns it as the end of a sentence; empty where there is none."""
    with suppress(OSError):
        said = log.read_text(errors="replace").splitlines()[-1:]
        if "FATAL ERROR: OUT OF MEMORY" in "".join(said):
            return ", for what came in took all the memory that it may have"
        why = " (see ulimit -u, pids.max)" if os.strerror(errno.EAGAIN) in "".join(said) else ""
        return "".join(f"; it said: {line}{why}" for line in said)
    return ""


def _log(prepared: Prepared, node: int) -> Path:
    return prepared.folder / "log" / f"{name_of(node)}.log"


def _completed_rounds(folder: Path) -> dict[int, int]:
    """Returns {client: its last round on record}, as far as that can be read."""
    with suppress(RunFolderError, sqlite3.Error), open_records(folder) as records:
        return dict(records.execute("SELECT node, max(round) FROM round GROUP BY node").fetchall())
    return {}


def _round(completed: dict[int, int], node: int) -> str:
    return f"round {completed[node] + 1}" if node in completed else "start-up"
