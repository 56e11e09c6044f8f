"""Runs from before: how far each is, and how one is taken up, from the last round of which all is there and sound, or
given more rounds than it began with, from where it can go on as if it had had them from the start."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

import numpy as np

from ...metrics import lock
from ...metrics.config_file import config_text, flat, parse, read_config
from ...metrics.events import status_of
from ...metrics.reader import open_records
from ...metrics.records import LAUNCHER, EventRecord
from ...metrics.store import CODE, CONFIG, CONFIG_DIGEST, EXTENDED_AFTER, FILES, RunFolderError, Store
from ...metrics.summary import summarize
from ...node import own_code
from ...node.algorithms.server import ServerAlgorithm
from ...topology.errors import UserError, shown
from ...transport.array_file import DamagedFile, digest_of
from ...transport.environment import failpoint
from ..config.sections import ConfigError, RunConfig, validate
from ..planner.plan import can_go_on_after
from ..prepare.prepared import Prepared, digests_of_files, write_down
from .folder import STORING_S, Claim, facts, machine, own_files, recorded, remove_unfinished, require_plain
from .incarnations import Incarnations, rounds_of

_SHOWN = 5  # keys that are told of those that were changed
# what preparing writes first, and the tracker of a run that was cleared
_BEFORE_ITS_CONFIGURATION = {"shards", "plan", "log", "tracking", "config.toml.part", lock.NAME}


@dataclass(frozen=True)
class PlannedRun:
    """A run and the folder where it is, or will be, perhaps with a checkpoint to go on from."""

    config: RunConfig
    folder: Path
    has_checkpoint: bool = False


# -- how far runs are --------------------------------------------------------------------------------------------------


def missing_of(runs: Sequence[PlannedRun], *, accept_diverged: bool = False) -> list[PlannedRun]:
    """Returns those that have not finished, and changes nothing. With ``accept_diverged`` a run that diverged counts as
    finished: it would only diverge again. Where the seconds of a local step were measured when a run began, it keeps
    them: runs are compared on the same ones. Raises as ``stage`` does."""
    missing = []
    for run, found in [(run, stage(run.config, run.folder)) for run in runs]:
        if found != "finished" and not (accept_diverged and has_diverged(run.folder)):
            begun = configuration(run.folder) if run.config.times_a_step else None
            has_checkpoint = any(run.folder.glob("state/round-*[1-9]*")) and (run.folder / "config.toml").exists()
            missing.append(PlannedRun(begun or run.config, run.folder, has_checkpoint))
    return missing


def begin_anew(runs: list[PlannedRun]) -> list[PlannedRun]:
    """Removes what is there of runs without a checkpoint. Raises RunFolderError."""
    for run in runs:
        if not run.has_checkpoint:
            clear(run.folder)
    return runs


def clear(folder: Path) -> None:
    """Removes what a run has written in the folder, if it is there. Raises RunFolderError."""
    if folder.exists():
        require_plain(folder)
        with Claim(folder, still_going_on(folder)) as claim:
            claim.clear()
        with suppress(OSError):  # it may hold something else
            folder.rmdir()


def stage(config: RunConfig, folder: Path) -> Literal["missing", "begun", "finished"]:
    """How far this very run is, in this folder. Raises ConfigError where the folder holds something else,
    RunFolderError where the run still goes on, or its collector is not done in time."""
    if not folder.exists():
        return "missing"
    there = configuration(folder)
    if there is None:
        if folder.is_dir() and {path.name for path in folder.iterdir()} <= _BEFORE_ITS_CONFIGURATION:
            return "begun"
        raise ConfigError(f"{folder}: holds something else than a run; choose another --out")
    if (there.but(compute={"step_s": None}) if config.times_a_step else there) != config:
        raise ConfigError(f"{folder}: holds a run of another configuration; remove it, or choose another --out")
    if config.uses and (folder / "run.sqlite").exists():
        was, now = _digests(folder), own_code.digests(config.uses)
        if changed := [name for name in was | now if was.get(name) != now.get(name)]:
            raise ConfigError(f"{folder}: {changed[0]} has changed since that run began; choose another --out")
    if is_finished(folder):
        return "finished"
    if (folder / "run.sqlite").exists():
        read_run(folder)
    with Claim(folder, still_going_on(folder), STORING_S):
        return "begun"


def configuration(folder: Path) -> RunConfig | None:
    """Returns the folder's configuration; None where this program understands none there."""
    with suppress(UserError):
        return _read_config(folder)
    return None


def is_finished(folder: Path) -> bool:
    """False, too, where its records cannot be read."""
    with suppress(RunFolderError):
        return summarize(folder).status == "finished"
    return False


def has_diverged(folder: Path) -> bool:
    with suppress(RunFolderError):
        return recorded(folder, "SELECT 1 FROM event WHERE kind = 'failure' AND detail LIKE '%is not finite%'") != []
    return False


def still_going_on(folder: Path) -> RunFolderError:
    return RunFolderError(f"{folder}: this run is still going on")


# -- the configuration of a run ----------------------------------------------------------------------------------------


def read_run(folder: Path, rounds: int | None = None) -> RunConfig:
    """Returns that of a run that can be taken up, or get so many ``rounds``. Raises RunFolderError, ConfigError."""
    require_plain(folder)
    finished = _has_finished(folder)
    if finished and rounds is None:
        raise RunFolderError(
            f"{folder}: this run is finished; there is nothing to resume (--rounds N gives it more rounds)"
        )
    _require_loaded(folder)
    config = _as_it_began(folder, rounds)
    if config.privacy.clip and config.has_scenario and config.time.clock == "wall":
        why = "[privacy] on the wall clock: rounds would be done again with the same noise, on other models"
        raise RunFolderError(f"{folder}: {why}; start the run anew, with another seed")
    if rounds is not None and rounds < (least := config.rounds + finished):
        raise RunFolderError(f"{folder}: --rounds {rounds}: the run has {config.rounds}; allowed is {least} or more")
    return config


def read_configuration(folder: Path) -> RunConfig:
    """Returns that with which any run began. Raises RunFolderError, ConfigError."""
    require_plain(folder)
    _require_loaded(folder)
    return _as_it_began(folder, None)


def _require_loaded(folder: Path) -> None:
    for use in _uses(folder):
        if not own_code.is_loaded(use.text, use.key):
            raise RunFolderError(
                f"{folder}: {use.key} = {use.text!r}: what a run's folder names is executed with --own-code only"
            )


def load_code(folder: Path, only: str = "") -> None:
    """Loads the code that the run began with, or ``only`` what it names so, from where the user has it: of the run's
    folder nothing is executed. Raises RunFolderError where it is not what it was."""
    require_plain(folder)
    uses = [use for use in _uses(folder) if only in ("", use.text)]
    for use in uses:
        _require_unchanged(folder, use)
    for use in uses:
        own_code.load(use.text, use.key)


def _uses(folder: Path) -> list[own_code.Use]:
    found = flat(read_config(folder), lists=True).items()
    return [own_code.Use.of(str(text), key) for key, text in found if key.rpartition(".")[2] == "use" and text]


def _require_unchanged(folder: Path, use: own_code.Use) -> None:
    if use.file is None:
        return
    digests = _digests(folder)
    if use.file.name not in digests:
        raise RunFolderError(f"{folder}: run.sqlite does not tell with which text of {use.file.name} the run began")
    elsewhere = {other.file.parent for other in _uses(folder) if other.file}  # those of a notebook have a folder each
    for name, digest in digests.items():
        path, kept = use.file.parent / name, folder / own_code.FOLDER / name
        if not path.exists() and any((place / name).exists() for place in elsewhere):
            continue  # it is looked at there
        if path.resolve().is_relative_to(folder.resolve()):
            raise RunFolderError(f"{folder}: {use.text} lies in the run's folder: nothing there is executed")
        try:
            changed = own_code.digest_of(path.read_text(encoding="utf-8")) != digest
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{folder}: {path} cannot be read ({error}); {kept} is what it was") from None
        if changed:
            raise RunFolderError(
                f"{folder}: {path} has changed since the run began; to go on, make it what it was, as in {kept}"
            )


def _digests(folder: Path) -> dict[str, str]:
    """Returns {file of the user's code: digest of the text that the run began with}, as far as they are told."""
    with suppress(ValueError):
        found = json.loads(facts(folder).get(CODE, "{}"))
        return {name: digest for name, digest in found.items() if isinstance(digest, str)}
    return {}


def _has_finished(folder: Path) -> bool:
    with open_records(folder) as records:
        return status_of(records) == "finished"


def _as_it_began(folder: Path, rounds: int | None) -> RunConfig:
    """Returns the configuration that the run began with. Raises RunFolderError where it is now another, but for
    ``rounds``."""
    config, told = _read_config(folder), facts(folder)
    if told.get(CONFIG_DIGEST) in (None, sha256(config_text(folder).encode()).hexdigest()):
        return config
    changed = f"{folder}: config.toml was changed since the run began"
    if CONFIG not in told:
        raise RunFolderError(f"{changed}; nothing can go on from there")
    before = validate(parse(told[CONFIG]), from_run=True)
    old, new = (flat(parse(each.to_toml())) for each in (before, config))
    keys = [key for key in old | new if old.get(key) != new.get(key)]
    if keys and not (keys == ["rounds"] and config.rounds == rounds):
        values = {key: [shown(each[key]) if key in each else "not set" for each in (new, old)] for key in keys[:_SHOWN]}
        text = "; ".join(f"{key} = {now}, was {then}" for key, (now, then) in values.items())
        text += f"; and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
        hint = f" (sheafgossip resume --rounds {config.rounds} extends it)" if config.rounds > before.rounds else ""
        raise RunFolderError(f"{changed}: {text}; nothing can go on from there{hint}")
    return before


def _read_config(folder: Path) -> RunConfig:
    """Raises RunFolderError, ConfigError."""
    if not (folder / "config.toml").exists():
        raise RunFolderError(f"{folder}: has no config.toml")
    return validate(read_config(folder), from_run=True)


# -- taking a run up ---------------------------------------------------------------------------------------------------


def require_sound_records(folder: Path) -> None:
    """Raises RunFolderError. To be asked where nobody writes."""
    ((found,),) = recorded(folder, "PRAGMA integrity_check(1)")
    if found != "ok":
        raise RunFolderError(f"{folder}: run.sqlite is damaged: {' '.join(str(found).split())}")


def require_same_files(config: RunConfig, folder: Path) -> None:
    """Raises RunFolderError where a file that the graph or the plan follows from has changed since the run began."""
    told: dict[str, str] = {}
    with suppress(ValueError):
        told = dict(json.loads(facts(folder).get(FILES, "{}")))
    for key, digest in digests_of_files(config).items():
        if told.get(key, digest) != digest:
            changed = f"{folder}: the file that {key} names has changed since the run began"
            raise RunFolderError(f"{changed}; to go on, make it what it was")


def taken_up(prepared: Prepared) -> Prepared:
    """The run, to go on after the last round of which all is there and sound. What was half written when it was
    interrupted is removed, and so is what was recorded of later rounds: they are done again, and until then the records
    would tell of two runs at once. Raises RunFolderError."""
    folder = prepared.folder
    remove_unfinished(folder)
    planned = "kind IN ('crash', 'leave', 'restart', 'join', 'scenario')"
    told = recorded(folder, f"SELECT node, kind, virtual_s, detail FROM event WHERE {planned}")
    was, now = facts(folder), machine()
    moved = (f"{key} {now[key]} (was {was[key]})" for key in now if was.get(key) not in (None, now[key]))
    prepared = replace(prepared, told=tuple(told), moved=", ".join(moved))
    completed = rounds_of(prepared)
    for round in _checkpoints(prepared):
        resumed = replace(prepared, resumed_at=round, went_on_s=_wall_s_after(round, folder))
        incarnations = Incarnations(resumed)
        files = incarnations.files(completed)
        if incarnations.all_have_left() and all(_is_sound(path, signed=CONFIG_DIGEST in was) for path in files):
            break
    else:
        round, resumed = -1, prepared
    store = Store(folder / "run.sqlite")
    failpoint("rows kept")
    store.forget_after(round)
    store.close()
    failpoint("rows forgotten")
    return resumed


def _is_sound(path: Path, *, signed: bool) -> bool:
    """``signed``: it must have a digest, as all files of its run do."""
    try:
        return digest_of(path) is not None or not signed
    except (FileNotFoundError, DamagedFile):
        return False


def _checkpoints(prepared: Prepared, *, at_its_end: bool = False) -> list[int]:
    """The rounds after which state was written, the latest first, as far as all rounds until then are on record of
    every client that completes them; that of the last round of all only where the run went on after it, or
    ``at_its_end``. Raises RunFolderError."""
    folder, every, rounds = prepared.folder, prepared.config.checkpoints.every, prepared.config.rounds
    completed = rounds_of(prepared)
    there = ~completed
    for node, round in recorded(folder, "SELECT node, round FROM round WHERE node >= 0"):
        known = isinstance(node, int) and isinstance(round, int) and node < len(completed) and 0 <= round <= rounds
        if not known:
            text = f"run.sqlite tells of round {round!r} of client {node!r}, which config.toml does not have"
            raise RunFolderError(f"{folder}: {text}")
        there[node, round] = True
    whole = np.logical_and.accumulate(there.all(axis=0))
    found = {*_extended_after(folder), *(range(every, rounds, every) if every else ()), *([rounds] * at_its_end)}
    return sorted((round for round in found if 0 < round <= rounds and whole[round]), reverse=True)


def _extended_after(folder: Path) -> list[int]:
    """Returns the last rounds of the run before each extension."""
    return [int(round) for round in facts(folder).get(EXTENDED_AFTER, "").split(",") if round.isdecimal()]


def _wall_s_after(round: int, folder: Path) -> float:
    """Seconds that the run had taken when it had completed that round."""
    return recorded(folder, "SELECT max(wall_s) FROM round WHERE round = ?", round)[0][0] or 0.0


# -- more rounds -------------------------------------------------------------------------------------------------------


def extended(was: Prepared, will: Prepared) -> Prepared:
    """Writes down ``will``, the same run with more rounds, to go on after one of them; what is recorded of later ones
    is forgotten. Raises RunFolderError, and leaves all as it was, where no checkpoint is one of the longer run, too."""
    folder, rounds = was.folder, was.config.rounds
    there = _checkpoints(was, at_its_end=True)
    fitting, why_not = _common(there, was, will)
    if not fitting and (there or _has_finished(folder)):
        raise RunFolderError(f"{folder}: cannot be extended to {will.config.rounds} rounds: {why_not}")
    after = max(fitting, default=0)
    ends = [round for round in [*_extended_after(folder), rounds] if round <= after]
    text = f"from {rounds} to {will.config.rounds} rounds, going on after round {after}"
    event = EventRecord(_wall_s_after(after, folder), None, LAUNCHER, "extend", text)
    store = write_down(will)
    store.describe({EXTENDED_AFTER: ",".join(map(str, ends))})
    store.write([event])
    store.forget_ends(rounds)
    store.forget_after(after or -1)
    store.close()
    if after < rounds:  # the state after its last round, which the longer run may not come by
        for path in own_files(folder):
            if path.parent.name == was.assignments[0].state(rounds).parent.name:
                path.unlink()
    return will


def _common(there: list[int], was: Prepared, will: Prepared) -> tuple[list[int], str]:
    """Those of the rounds after which the longer run would be where this one was, and why the others are none."""
    rounds, algorithm = was.config.rounds, was.config.algorithm
    ends_otherwise = isinstance(algorithm, ServerAlgorithm) and (  # after the last round all clients download
        algorithm.receivers(was.config, rounds) != algorithm.receivers(will.config, rounds)
    )
    if was.config.privacy.clip and was.config.privacy.epsilon is not None:
        return [], "privacy.epsilon has found the noise for so many; start a run of more"
    if was.config.training.schedule == "cosine":
        return [], "the learning rate comes down to the last round; start a run of so many"
    common = [round for round in there if not (ends_otherwise and round == rounds)]
    if was.plan and will.plan:
        if not set(was.plan.events) <= set(will.plan.events) or was.plan.conditions != will.plan.conditions:
            return [], "faults are drawn for the number of rounds, and fall otherwise in so many"
        common = [round for round in common if can_go_on_after(round, was.plan, will.plan)]
    if not there:
        why = "not all clients came to its end"
    elif ends_otherwise:
        why = f"in round {rounds} all clients download, as it was the last one"
    else:
        why = "in so many rounds clients would have used other messages, or at other times"
    return common, f"{why}, and there is no checkpoint before that; start a run of {will.config.rounds} rounds"
