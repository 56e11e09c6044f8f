"""What happens to an interrupted run when its folder is damaged: it ends with the same bits, or is refused in one line.

By default one kind of damage to each file; SHEAFGOSSIP_DAMAGE=all does all of them (`make damage`).
"""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from sheafgossip.launcher.cli import main
from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.config.sections import ConfigError
from sheafgossip.launcher.processes.engines import Engine, open_engine
from sheafgossip.launcher.studies.runner import Finished, run_all, take_up
from sheafgossip.metrics.schema import RunFolderError

ROUNDS, LAST = 12, 10
CONFIG = f"""
clients = 3
rounds = {ROUNDS}
[topology]
kind = "ring"
[data]
samples = 60
[compute]
step_s = 0.01
[time]
clock = "virtual"
staleness = 2
[links]
latency_s = 0.02
[checkpoints]
every = 4
[algorithm]
name = "d-psgd"
[[faults]]
kind = "crash"
clients = [1]
at_round = 7
restart_after = 3
"""


@dataclass(frozen=True)
class Interrupted:
    """A run as it is after its launcher was killed in round 11, and what it came to where that did not happen."""

    folder: Path
    result: dict[str, np.ndarray]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory) -> Interrupted:
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    (folder.parent / "config.toml").write_text(CONFIG)
    (done,) = run_all(load(folder.parent / "config.toml", []), folder)
    assert done.outcome.status == "finish"
    result = models(folder)
    shutil.rmtree(folder / "state" / f"round-{ROUNDS:06d}")
    with closing(sqlite3.connect(folder / "run.sqlite")) as records:
        for table in ("round", "traffic", "used"):
            records.execute(f"DELETE FROM {table} WHERE round > {LAST}")
        records.execute("DELETE FROM event WHERE kind = 'finish'")
        records.commit()
        shutil.copytree(folder, folder.parent / "killed")  # with what SQLite has not folded into the file yet
    assert (folder.parent / "killed" / "run.sqlite-wal").stat().st_size
    return Interrupted(folder.parent / "killed", result)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with open_engine("threads") as opened:
        yield opened


def models(folder: Path) -> dict[str, np.ndarray]:
    files = sorted((folder / "state" / f"round-{ROUNDS:06d}").glob("node-*.safetensors"))
    return {path.name: load_file(path)["theta"] for path in files}


def zeros(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4096] = bytes(len(content[middle : middle + 4096]))
    path.write_bytes(content)


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[len(content) * 2 // 3] ^= 64
    path.write_bytes(content)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES = [zeros, flipped, halved, emptied, Path.unlink]
ALL = os.environ.get("SHEAFGOSSIP_DAMAGE") == "all"


def resumed(folder: Path, engine: Engine) -> Finished | str:
    """How the run ended that was taken up, or the line with which it was refused."""
    try:
        return take_up(folder, engine)
    except (ConfigError, RunFolderError) as error:
        return str(error)


def require_the_same_bits_or_one_line(ended: Finished | str, folder: Path, result: dict[str, np.ndarray]) -> None:
    if isinstance(ended, str):
        assert ended.count("\n") == 0, ended
        return
    assert ended.outcome.status == "finish", ended.outcome.causes
    found = models(folder)
    assert found.keys() == result.keys()
    assert all(np.array_equal(found[name], result[name]) for name in result)


@pytest.mark.parametrize(
    "part", ["config.toml", "run.sqlite*", "shards/*", "plan/*", "state/*4/*", "state/*8/*", "log/*"]
)
def test_a_run_whose_files_are_damaged_in_turn_ends_with_the_same_bits_or_in_one_line(
    interrupted, engine, tmp_path, part
):
    files = [path.relative_to(interrupted.folder) for path in sorted(interrupted.folder.glob(part))]
    assert files
    every = [(file, damage) for file in files for damage in DAMAGES]
    some = [(file, DAMAGES[(number + len(part)) % len(DAMAGES)]) for number, file in enumerate(files)]
    for number, (file, damage) in enumerate(every if ALL else some[:3]):
        folder = tmp_path / f"{number}"
        shutil.copytree(interrupted.folder, folder)
        damage(folder / file)
        require_the_same_bits_or_one_line(resumed(folder, engine), folder, interrupted.result)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(interrupted, engine, tmp_path):
    for number, file in enumerate(sorted((interrupted.folder / "state" / "round-000008").iterdir())):
        folder = tmp_path / f"{number}"
        shutil.copytree(interrupted.folder, folder)
        zeros(folder / "state" / "round-000008" / file.name)
        ended = resumed(folder, engine)
        assert not isinstance(ended, str), ended
        assert ended.prepared.resumed_at == 4
        require_the_same_bits_or_one_line(ended, folder, interrupted.result)


def test_an_undamaged_run_goes_on_from_its_last_checkpoint(interrupted, engine, tmp_path):
    shutil.copytree(interrupted.folder, tmp_path / "run")
    ended = resumed(tmp_path / "run", engine)
    assert not isinstance(ended, str), ended
    assert ended.prepared.resumed_at == 8
    require_the_same_bits_or_one_line(ended, tmp_path / "run", interrupted.result)


def test_a_run_from_before_there_were_digests_goes_on(interrupted, engine, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(interrupted.folder, folder)
    with closing(sqlite3.connect(folder / "run.sqlite")) as records, records:
        records.execute("DELETE FROM meta WHERE key = 'config_sha256'")
    for path in folder.glob("*/**/*.safetensors"):
        as_before(path)
    ended = resumed(folder, engine)
    assert not isinstance(ended, str), ended
    assert ended.prepared.resumed_at == 8
    require_the_same_bits_or_one_line(ended, folder, interrupted.result)


def as_before(path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({name: array.copy() for name, array in load_file(path).items()}, path)


@pytest.mark.parametrize(
    ("file", "content", "line"),
    [
        ("config.toml", b"\xff\xfe", "not valid TOML"),
        ("config.toml", b"clients = 2\n", "was changed since the run began"),
        ("run.sqlite", b"", "run.sqlite"),
        ("run.sqlite", b"SQLite format 3\0" + bytes(5000), "run.sqlite"),
    ],
)
def test_what_cannot_be_gone_on_with_ends_the_command_with_2_and_one_line(
    interrupted, tmp_path, monkeypatch, capsys, file, content, line
):
    folder = tmp_path / "run"
    shutil.copytree(interrupted.folder, folder)
    if file == "run.sqlite":
        (folder / "run.sqlite-wal").unlink()
        (folder / "run.sqlite-shm").unlink()
    (folder / file).write_bytes(content)
    monkeypatch.setattr("sys.argv", ["sheafgossip", "resume", str(folder)])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr().err
    assert (end.value.code, said.count("\n")) == (2, 1), said
    assert line in said


def test_records_of_a_client_that_there_is_not_are_refused_in_one_line(interrupted, engine, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(interrupted.folder, folder)
    with closing(sqlite3.connect(folder / "run.sqlite")) as records, records:
        records.execute("UPDATE round SET node = 70 WHERE node = 2")
    assert resumed(folder, engine) == (
        f"{folder}: run.sqlite tells of round 0 of client 70, which config.toml does not have"
    )
