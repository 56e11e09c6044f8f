"""What happens to an interrupted run when its folder is damaged: it ends with the same bits, or is refused in one line.
By default one kind of damage to each file; SHEAFGOSSIP_DAMAGE=all does all of them (`make damage`)."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from runs import RunFolder, assert_same_states, small
from sheafgossip.launcher.config.sections import ConfigError
from sheafgossip.launcher.processes.engine import open_engine
from sheafgossip.launcher.studies.runner import take_up
from sheafgossip.metrics.store import RunFolderError

ROUNDS, LAST = 12, 10
SCENARIO = """
compute.step_s = 0.01
time = {clock = "virtual", staleness = 2}
links.latency_s = 0.02
faults = [{kind = "crash", clients = [1], at_round = 7, restart_after = 3}]
"""
CONFIG = small("checkpoints.every = 4", SCENARIO, clients=3, rounds=ROUNDS, samples=60)


@pytest.fixture(scope="module")
def interrupted(run_in_threads, tmp_path_factory) -> RunFolder:
    """As if its launcher had been killed in round 11, with what SQLite has not folded into the file yet."""
    folder = run_in_threads(CONFIG).copy(tmp_path_factory.mktemp("interrupted") / "run")
    with closing(sqlite3.connect(folder.path / "run.sqlite")) as records:
        records.execute("UPDATE meta SET value = value")
        records.commit()
        folder.cut_after(LAST)
        killed = folder.copy(folder.path.parent / "killed")
    assert (killed.path / "run.sqlite-wal").stat().st_size
    return killed


@pytest.fixture
def folder(interrupted, tmp_path) -> RunFolder:
    return interrupted.copy(tmp_path / "run")


@pytest.fixture(scope="module")
def take_it_up(run_in_threads) -> Iterator[Callable[[RunFolder], int | str]]:
    """Returns the round after which a run went on, to the same end, or the line with which it was refused."""
    with open_engine("threads") as engine:

        def take_it_up(folder: RunFolder) -> int | str:
            try:
                ended = take_up(folder.path, engine)
            except (ConfigError, RunFolderError) as error:
                assert "\n" not in str(error)  # noqa: PT017
                return str(error)
            assert ended.outcome.status == "finish", ended.outcome.causes
            assert_same_states(folder, run_in_threads(CONFIG), ROUNDS)
            return ended.prepared.resumed_at

        yield take_it_up


def zeros(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes(len(content[middle : middle + 4096])) + content[middle + 4096 :]


def flipped(content: bytes) -> bytes:
    place = len(content) * 2 // 3
    return content[:place] + bytes(byte ^ 64 for byte in content[place : place + 1]) + content[place + 1 :]


def damage(file: Path, kind: Callable[[bytes], bytes | None]) -> None:
    content = kind(file.read_bytes())
    file.unlink() if content is None else file.write_bytes(content)


DAMAGES = [zeros, flipped, lambda content: content[: len(content) // 2], lambda _: b"", lambda _: None]
ALL = os.environ.get("SHEAFGOSSIP_DAMAGE") == "all"


@pytest.mark.parametrize("part", ["config.toml", "run.sqlite*", "shards/*", "plan/*", "state/*/*", "log/*"])
def test_damaged_files_change_no_bit_or_are_told_in_one_line(interrupted, take_it_up, tmp_path, part):
    files = [path.relative_to(interrupted.path) for path in sorted(interrupted.path.glob(part))]
    every = [(file, kind) for file in files for kind in DAMAGES]
    some = [(file, DAMAGES[(number + len(part)) % len(DAMAGES)]) for number, file in enumerate(files)]
    for number, (file, kind) in enumerate(every if ALL else some[-3:]):
        folder = interrupted.copy(tmp_path / f"{number}")
        damage(folder.path / file, kind)
        take_it_up(folder)
    assert files


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(interrupted, folder, take_it_up, tmp_path):
    assert take_it_up(folder) == 8
    for file in sorted((interrupted.path / "state" / "round-000008").iterdir()):
        damaged = interrupted.copy(tmp_path / file.stem)
        damage(damaged.path / "state" / "round-000008" / file.name, zeros)
        assert take_it_up(damaged) == 4


def test_a_run_from_before_there_were_digests_goes_on(folder, take_it_up):
    folder.alter("DELETE FROM meta WHERE key = 'config_sha256'")
    for path in folder.path.glob("*/**/*.safetensors"):
        save_file({name: array.copy() for name, array in load_file(path).items()}, path)
    assert take_it_up(folder) == 8


def test_records_of_a_client_that_there_is_not_are_refused_in_one_line(folder, take_it_up):
    folder.alter("UPDATE round SET node = 70 WHERE node = 2")
    assert take_it_up(folder) == (
        f"{folder.path}: run.sqlite tells of round 0 of client 70, which config.toml does not have"
    )
