"""Taking up a run that was interrupted: from the last round of which everything is there, and sound.

A run can be given more rounds than it began with: from where it can go on as if it had had them from the start.
"""

import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...metrics.config_file import flat, parse, read_text
from ...metrics.reader import open_records
from ...metrics.records import LAUNCHER, EventRecord
from ...metrics.schema import CONFIG, EXTENDED_AFTER, RunFolderError
from ...metrics.store import Store
from ...metrics.summary import status_of
from ...node.algorithms.server import ServerAlgorithm
from ...transport.array_file import DamagedFile, digest_of
from ...transport.failpoints import failpoint
from ..config.sections import RunConfig, validate
from ..planner.agreement import can_go_on_after, same_comings_and_goings
from ..prepare.prepared import Prepared, write_down
from .folder import digest_of_config, fact, own_files, recorded_digest, require_plain, unfinished_files
from .incarnations import Incarnations, rounds_of
from .origin import machine

_SHOWN, _LONGEST_VALUE = 5, 60
"""Keys that are told of those that were changed, and characters of a value."""

_TOLD_ONCE = ("crash", "leave", "restart", "join", "scenario")


def read_run(folder: Path, rounds: int | None = None) -> RunConfig:
    """The configuration of a run that can be taken up, or be given so many ``rounds``. Raises RunFolderError,
    ConfigError."""
    require_plain(folder)
    finished = is_finished(folder)
    if finished and rounds is None:
        raise RunFolderError(
            f"{folder}: this run is finished; there is nothing to resume (--rounds N gives it more rounds)"
        )
    config = _as_it_began(folder, read_config(folder), rounds)
    if rounds is not None and rounds < config.rounds + finished:
        least = config.rounds + finished
        raise RunFolderError(f"{folder}: --rounds {rounds}: the run has {config.rounds}; allowed is {least} or more")
    return config


def is_finished(folder: Path) -> bool:
    """Raises RunFolderError."""
    with open_records(folder) as records:
        return status_of(records) == "finished"


def _as_it_began(folder: Path, config: RunConfig, rounds: int | None) -> RunConfig:
    """The configuration that the run began with. Raises RunFolderError where ``config`` is now another, but for the
    number of rounds where that is what is wanted."""
    if recorded_digest(folder) in (None, digest_of_config(folder)):
        return config
    text = fact(folder, CONFIG)
    if text is None:
        raise RunFolderError(f"{folder}: config.toml was changed since the run began; nothing can go on from there")
    before = validate(parse(text))
    changed = differences(before, config)
    if changed and not (set(changed) == {"rounds"} and config.rounds == rounds):
        told = "; ".join(changed[key] for key in list(changed)[:_SHOWN])
        more = f"; and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        way = f" (sheafgossip resume --rounds {config.rounds} extends it)" if config.rounds > before.rounds else ""
        raise RunFolderError(
            f"{folder}: config.toml was changed since the run began: {told}{more}; nothing can go on from there{way}"
        )
    return before


def differences(before: RunConfig, now: RunConfig) -> dict[str, str]:
    """{key: how it was changed}"""
    old, new = (flat(parse(config.to_toml())) for config in (before, now))
    keys = [key for key in old | new if old.get(key) != new.get(key)]
    return {key: f"{key} = {_value(new.get(key))}, was {_value(old.get(key))}" for key in keys}


def _value(value: object) -> str:
    text = "not set" if value is None else repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def read_config(folder: Path) -> RunConfig:
    """Raises RunFolderError, ConfigError."""
    try:
        return validate(parse(read_text(folder / "config.toml")))
    except OSError as error:
        raise RunFolderError(f"{folder}: config.toml cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise RunFolderError(f"{folder}: config.toml is not valid TOML: {error}") from None


def still_going_on(folder: Path) -> RunFolderError:
    return RunFolderError(f"{folder}: this run is still going on")


def require_sound_records(folder: Path) -> None:
    """Raises RunFolderError. To be asked where nobody writes."""
    with open_records(folder) as records:
        records.execute("PRAGMA cell_size_check = ON")
        (found,) = records.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise RunFolderError(f"{folder}: run.sqlite is damaged: {' '.join(str(found).split())}")


def taken_up(prepared: Prepared) -> Prepared:
    """The run, to go on after the last round that every client has completed, written down and recorded.

    What was half written when it was interrupted is removed, and so is what was recorded of the rounds after that one:
    they are done again, and until then the records would tell of two runs at once. Raises RunFolderError.
    """
    for path in unfinished_files(prepared.folder):
        path.unlink()
    completed = rounds_of(prepared)
    kinds = ", ".join(f"'{kind}'" for kind in _TOLD_ONCE)
    with open_records(prepared.folder) as records:
        told = records.execute(f"SELECT node, kind, virtual_s, detail FROM event WHERE kind IN ({kinds})").fetchall()
    prepared = replace(prepared, told=tuple(told), moved=_moved(prepared.folder))
    signed = recorded_digest(prepared.folder) is not None
    for round in checkpoints(prepared, last_recorded(prepared)):
        resumed = replace(prepared, resumed_at=round, went_on_s=wall_s_after(round, prepared.folder))
        incarnations = Incarnations(resumed)
        if incarnations.all_have_left() and all(
            _is_sound(path, signed=signed) for path in incarnations.files(completed)
        ):
            _forget_after(round, prepared.folder)
            return resumed
    _forget_after(-1, prepared.folder)
    return prepared


def last_recorded(prepared: Prepared) -> int:
    """The last round that, with all before it, is on record of every client that completes it; -1: none is. Raises
    RunFolderError."""
    completed = rounds_of(prepared)
    with open_records(prepared.folder) as records:
        recorded = _recorded(records, completed, prepared.folder)
    missing = ~(recorded | ~completed).all(axis=0)
    return (int(missing.argmax()) if missing.any() else len(missing)) - 1


def checkpoints(prepared: Prepared, last: int, *, at_its_end: bool = False) -> list[int]:
    """The rounds up to ``last`` after which state was written, the latest first, that of the last round of all only
    where the run went on after it, or ``at_its_end``."""
    every, rounds = prepared.config.checkpoints.every, prepared.config.rounds
    once = (fact(prepared.folder, EXTENDED_AFTER) or "").split(",")
    found = {int(round) for round in once if round.isdecimal()} | set(range(every, rounds, every) if every else ())
    return sorted((round for round in found | ({rounds} if at_its_end else set()) if 0 < round <= last), reverse=True)


def wall_s_after(round: int, folder: Path) -> float:
    """Seconds that the run had taken when it had completed that round."""
    with open_records(folder) as records:
        return records.execute("SELECT max(wall_s) FROM round WHERE round = ?", [round]).fetchone()[0] or 0.0


def _moved(folder: Path) -> str:
    """How this machine differs from the one where the run began, as far as that is on record."""
    was = {key: fact(folder, key) for key in machine()}
    return ", ".join(f"{key} {now} (was {was[key]})" for key, now in machine().items() if was[key] not in (None, now))


def _recorded(records: sqlite3.Connection, completed: np.ndarray, folder: Path) -> np.ndarray:
    """(processes, rounds + 1) bool: which rounds are on record."""
    recorded = np.zeros_like(completed)
    processes, rounds = recorded.shape
    for node, round in records.execute("SELECT node, round FROM round WHERE node >= 0"):
        if not isinstance(node, int) or not isinstance(round, int) or node >= processes or not 0 <= round < rounds:
            raise RunFolderError(
                f"{folder}: run.sqlite tells of round {round!r} of client {node!r}, which config.toml does not have"
            )
        recorded[node, round] = True
    return recorded


def _is_sound(path: Path, *, signed: bool) -> bool:
    """``signed``: it must have a digest, as all files of its run do."""
    try:
        return digest_of(path) is not None or not signed
    except (FileNotFoundError, DamagedFile):
        return False


def _forget_after(round: int, folder: Path) -> None:
    store = Store(folder / "run.sqlite")
    failpoint("rows kept")
    store.forget_after(round)
    store.close()
    failpoint("rows forgotten")


def extended(was: Prepared, will: Prepared) -> Prepared:
    """``will``: the same run with more rounds. It is written down, with a round to go on after; what is recorded of
    later ones is forgotten. Raises RunFolderError, and leaves all as it was, where none of its checkpoints is one of
    the longer run, too.
    """
    folder, rounds = was.folder, was.config.rounds
    there = checkpoints(was, last_recorded(was), at_its_end=True)
    fitting = [round for round in there if _is_common(round, was, will)]
    if not fitting and (there or is_finished(folder)):
        raise RunFolderError(f"{folder}: cannot be extended to {will.config.rounds} rounds: {_why_not(was, will)}")
    after = max(fitting, default=0)
    ends = [int(round) for round in (fact(folder, EXTENDED_AFTER) or "").split(",") if round] + [rounds]
    text = f"from {rounds} to {will.config.rounds} rounds, going on after round {after}"
    event = EventRecord(wall_s_after(after, folder), None, LAUNCHER, "extend", text)
    store = write_down(will)
    store.describe(**{EXTENDED_AFTER: ",".join(str(round) for round in ends if round <= after)})
    store.write([event])
    store.forget_ends(rounds)
    store.forget_after(after or -1)
    store.close()
    if after < rounds:  # the state after its last round, which the longer run may not come by
        for path in own_files(folder):
            if path.parent.name == was.assignments[0].state(rounds).parent.name:
                path.unlink()
    return will


def _is_common(round: int, was: Prepared, will: Prepared) -> bool:
    if round == was.config.rounds and _ends_otherwise(was.config):
        return False
    if was.plan is None or will.plan is None:
        return True
    return same_comings_and_goings(was.plan, will.plan) and can_go_on_after(round, was.plan, will.plan)


def _ends_otherwise(config: RunConfig) -> bool:
    """Whether a run's last round is unlike the same round of a longer run: all clients download in it."""
    return isinstance(config.algorithm, ServerAlgorithm) and config.algorithm.last_round_differs


def _why_not(was: Prepared, will: Prepared) -> str:
    if was.plan and will.plan and not same_comings_and_goings(was.plan, will.plan):
        return "faults are drawn for the number of rounds, and fall otherwise in so many"
    if not checkpoints(was, last_recorded(was), at_its_end=True):
        why = "not all clients came to its end"
    elif _ends_otherwise(was.config):
        why = f"in round {was.config.rounds} all clients download, as it was the last one"
    else:
        why = "in so many rounds clients would have used other messages, or at other times"
    return f"{why}, and there is no checkpoint before that; start a run of {will.config.rounds} rounds"
