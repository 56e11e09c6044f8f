"""Writes a run to an experiment tracker: after the run, or while it goes on, from a process beside it that reads
run.sqlite. Clients know nothing of it."""

import importlib.util
import os
import re
import select
import signal
import sqlite3
import subprocess
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from ..topology.errors import UserError, install
from ..transport.limits import end_with_parent
from .events import completed_rounds, gone_clients, status_of
from .reader import metric_of, open_records, relations
from .records import TABLES
from .store import CLIENTS, RunFolderError
from .summary import mean, worst
from .trackers import MLFLOW_URI, TRACKERS, Scalars, Subject, TensorBoard, Tracker

_OWN_METRICS = "SELECT round, node, name, value FROM metric WHERE value IS NOT NULL AND round > ?"
_LOOK_EVERY_S = 1.0


def require(to: str, key: str, folder: Path) -> None:
    """Raises UserError where the tracker cannot write there; ``key`` is how the user chose it."""
    if lacking := [name for name in TRACKERS[to].needs if importlib.util.find_spec(name) is None]:
        raise UserError(f"{key} needs {', '.join(lacking)}: {install(to)}")
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UserError(f"{folder}: cannot be written: {there} is {'not writable' if there.is_dir() else 'no folder'}")


def process_of(run: Path, to: str, folder: Path, *, chosen: bool, parent: int | None = None) -> dict[str, Any]:
    """Returns the arguments of subprocess for ``main``. ``chosen``: the user named the folder, which comes before
    MLflow's own variable. With a parent it follows the run, and is told on standard input how that has ended."""
    words = [sys.executable, "-P", "-m", "sheafgossip.metrics.tracking", str(run.resolve()), to, str(folder.absolute())]
    env = {name: value for name, value in os.environ.items() if name != MLFLOW_URI or not chosen}
    return {"args": [*words, *([] if parent is None else [str(parent)])], "env": env}


def export_to(runs: Iterable[Path], to: str, folder: Path, *, chosen: bool) -> None:
    """Raises UserError."""
    for run in runs:
        done = subprocess.run(**process_of(run, to, folder, chosen=chosen), capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"--to {to}: {last_line(done.stderr)}")


def write_events(run: Path, path: Path) -> None:
    """Needs the package tensorboard. Raises RunFolderError."""
    with open_records(run, check=TABLES) as records:
        file = TensorBoard(Subject.of(run), path.parent, path.name)
        for each in rounds_of(records):
            file.log(*each)
        file.end(status_of(records))


def last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "it ended without a word")


def rounds_of(records: sqlite3.Connection, after: int = -1, last: int = 2**62) -> Iterator[tuple[int, Scalars]]:
    """Yields what there is of each round beyond ``after``, up to ``last``."""
    for round, each in groupby(_scalars(records, after, last), itemgetter(0)):
        yield round, [(wall_s, scalars) for _, wall_s, scalars in each]


def _scalars(records: sqlite3.Connection, after: int, last: int) -> Iterator[tuple[int, float, Mapping[str, float]]]:
    """Yields (round, wall seconds, {tag: value})."""
    tags = ("test_metric", "train_loss", "disagreement")
    accuracy = metric_of(records) == "accuracy"
    traffic = "SELECT round, sum(payload_bytes) FROM traffic WHERE round > ? GROUP BY round"
    payload = dict(records.execute(traffic, [after]))
    memory = f"SELECT wall_s, node, pss FROM resource WHERE {CLIENTS} ORDER BY wall_s, resource.rowid"
    metrics = defaultdict[tuple[int, int], dict[str, float]](dict)  # of the user's own
    for round, node, name, value in records.execute(_OWN_METRICS, [after]) if "metric" in relations(records) else ():
        metrics[round, node][f"metric.{name}"] = value
    samples, pss = records.execute(memory).fetchall()[::-1], dict[int, int]()  # of each client the latest
    which = f"{CLIENTS} AND round > ? AND round <= ? ORDER BY round, node"
    rounds = records.execute(f"SELECT round, node, wall_s, {', '.join(tags)} FROM round WHERE {which}", [after, last])
    for round, of_round in groupby(rounds, itemgetter(0)):
        rows = [
            (node, wall_s, _known(dict(zip(tags, values, strict=True))) | metrics[round, node])
            for _, node, wall_s, *values in of_round
        ]
        last_s = max(wall_s for _, wall_s, _ in rows)
        known = defaultdict[str, list[float]](list)
        for tag, value in (each for *_, own in rows for each in own.items()):
            known[tag].append(value)
        scalars = {f"mean/{tag}": mean(values) for tag, values in known.items()}
        if "test_metric" in known:
            scalars["worst_10/test_metric"] = worst(known["test_metric"], 0.1, higher_is_better=accuracy)
        if round in payload:
            scalars["sum/payload_bytes"] = payload[round]
        while samples and samples[-1][0] <= last_s:
            _, node, size = samples.pop()
            pss[node] = size
        if pss:
            scalars["sum/pss"] = sum(pss.values())
        yield round, last_s, scalars
        for node, wall_s, own in rows:
            if own:
                yield round, wall_s, {f"client_{node:04d}/{tag}": value for tag, value in own.items()}


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {tag: value for tag, value in values.items() if value is not None}


def follow(run: Path, make: Callable[[], Tracker], word: Callable[[float], str]) -> None:
    """Writes the rounds that are complete until ``word``, which waits for so many seconds, returns how the run has
    ended; then all the rest. Looks take a twentieth of the time at most. Raises RunFolderError."""
    tracker, told, complete, pause_s = make(), dict[int, int](), -1, 0.0
    while not (status := word(pause_s)):
        began, settled = time.monotonic(), complete  # what was written beside those rounds has come in since
        with suppress(RunFolderError), open_records(run) as records:
            for round, scalars in rounds_of(records, max(told, default=-1), settled):
                tracker.log(round, scalars)
                told[round] = hash(repr(scalars))
            complete = max(complete, completed_rounds(records, gone_clients(records)))
        tracker.flush()
        pause_s = max(_LOOK_EVERY_S, 20 * (time.monotonic() - began))
    with open_records(run, check=TABLES) as records:
        left = {round: hash(repr(scalars)) for round, scalars in rounds_of(records)} if told else {}
        if any(left.get(round) != was for round, was in told.items()):  # by a client that came late
            tracker.end(status)
            tracker, told = make(), {}
        for round, scalars in rounds_of(records):
            if round not in told:
                tracker.log(round, scalars)
    tracker.end(status)


def _word(seconds: float) -> str:
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return ""
    return sys.stdin.readline().strip() or sys.exit("nobody is left to tell how the run has ended")


def main(run: Path, to: str, folder: Path, parent: int | None = None) -> None:
    if parent is not None:
        end_with_parent(parent, signal.SIGKILL)  # it has nothing to put in order that ``export`` would not
        os.nice(10)

    def status(_: float) -> str:
        with open_records(run, check=TABLES) as records:
            return status_of(records)

    try:
        if to != "mlflow" or MLFLOW_URI not in os.environ:
            folder.mkdir(parents=True, exist_ok=True)
        subject = Subject.of(run)
        follow(run, lambda: TRACKERS[to](subject, folder), status if parent is None else _word)
    except Exception as error:
        told = f"{traceback.format_exc()}\n{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        sys.exit(re.sub(r"//[^/\s]*@", "//", told))  # a server's address may hold a password


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), *map(int, sys.argv[4:]))
