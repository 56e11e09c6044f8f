"""``sheafgossip replay``: a run again, with the messages that it used; and whether it is the same."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...metrics import lock
from ...metrics.reader import open_records
from ...metrics.store import RunFolderError
from ...metrics.text import say
from ...topology.errors import UserError
from ...transport.array_file import DamagedFile, read
from ..config.sections import RunConfig
from ..planner.replay import Recording
from ..run.display import Display
from ..run.earlier import PlannedRun, load_code, read_configuration
from ..run.folder import relative
from ..studies.folders import new_folder
from ..studies.runner import Finished, Means, run_each
from .outcomes import tell
from .runs import Follower

_FILE = "replay.safetensors"
_OF_ONE_CLOCK = "sent.", "deadlines", "shown_bytes"  # arrays of a state that are bookkeeping of either clock


class Sameness(NamedTuple):
    """How many rounds and states of clients two runs have in common, and where they differ first; "": nowhere."""

    rounds: int
    states: int
    difference: str


def replay(folder: Path, out: Path | None, own_code: bool, quiet: bool, plain: bool, **means: Any) -> int:
    folder = folder.resolve()
    if own_code:
        load_code(folder)
    finished = make_replay(folder, out, Means(**means), quiet=quiet, plain=plain)
    code = tell([(finished.prepared.folder, finished.outcome, "")])
    say(f"run folder: {relative(finished.prepared.folder)}")
    if finished.outcome.status == "interrupt":
        return code
    rounds, states, difference = sameness(folder, finished.prepared.folder)
    if difference:
        say(f"error: not what was recorded: {difference}", err=True)
        return max(code, 1)
    say(f"equal to the bit: {rounds:,} rounds of clients, and {states:,} states")
    return code


def make_replay(folder: Path, out: Path | None, means: Means, *, quiet: bool, plain: bool = False) -> Finished:
    """Raises UserError."""
    if lock.is_held(folder):
        raise RunFolderError(f"{folder}: this run goes on; replay it when it has ended")
    config = read_configuration(folder)
    display = Display(quiet=quiet, plain=plain or means.engine == "threads")
    with new_folder(out, Path(f"{folder.name}-replay.toml")) as root, display:
        try:
            run = PlannedRun(_recorded(folder, config, root / _FILE), root)
            (finished,) = run_each([run], Follower(display, [root]), means)
        except UserError:  # a refused run leaves nothing behind
            (root / _FILE).unlink(missing_ok=True)
            raise
    return finished


def _recorded(folder: Path, config: RunConfig, file: Path) -> RunConfig:
    """Returns the configuration of the run's replay. Without a scenario, or on the virtual clock, that is its own. It
    names the record within its folder, which may be moved."""
    if config.has_scenario and config.time.clock == "wall":
        Recording.of(folder).save(file)
    elif config.time.replay is not None:
        try:
            shutil.copyfile(folder / config.time.replay, file)
        except OSError as error:
            raise UserError(f"time.replay = {str(config.time.replay)!r}: cannot be read: {error.strerror}") from None
    else:
        return config
    return config.but(time={"clock": "virtual", "replay": Path(file.name), "notice_s": 0.0})


def sameness(recorded: Path, again: Path) -> Sameness:
    """Compares train_loss and ||theta|| of all rounds of clients, and all states, that both have; all that is on record
    of the first one has to be there. Raises RunFolderError."""
    query = "SELECT round, node, train_loss, theta_norm FROM round WHERE node >= 0"
    tables = []
    for folder in (recorded, again):
        with open_records(folder) as records:
            tables.append({row[:2]: row[2:] for row in records.execute(query)})
    was, now = tables
    differences = [(*key, "its loss or norm") for key, value in was.items() if now.get(key, value) != value]
    differences += [(*key, "it is missing") for key in was.keys() - now.keys()]
    states = 0
    for round, node, paths in _states(recorded, again):
        try:
            one, other = map(read, paths)
        except DamagedFile as error:
            raise RunFolderError(str(error)) from None
        names = [name for name in one.keys() | other.keys() if not name.startswith(_OF_ONE_CLOCK)]
        states += 1
        for name in sorted(names):
            if name not in one or name not in other or not _same(one[name], other[name]):
                differences.append((round, node, f"{name} of its state"))
    first = min(differences, default=None)
    text = f"client {first[1]} after round {first[0]}: {first[2]}" if first else ""
    return Sameness(len(was.keys() & now.keys()), states, text)


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def _states(recorded: Path, again: Path) -> Iterator[tuple[int, int, tuple[Path, Path]]]:
    """(round, client, its two states)"""
    for path in sorted(recorded.glob("state/round-*/node-*.safetensors")):
        other = again / path.relative_to(recorded)
        if other.exists():
            yield int(path.parent.name[6:]), int(path.stem[5:]), (path, other)
