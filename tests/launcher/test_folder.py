"""Whose folder is whose: nothing that this program did not write is removed, and nobody's work is disturbed."""

import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sheafgossip.launcher.config.sections import ConfigError
from sheafgossip.launcher.processes.engine import EngineError, LocalEngine, private_folder
from sheafgossip.launcher.run import folder
from sheafgossip.launcher.run.folder import Claim, own_files, remove_unfinished, require_plain
from sheafgossip.launcher.studies.folders import new_folder
from sheafgossip.metrics import lock
from sheafgossip.metrics.store import RunFolderError

ROUND = "state/round-000004"
OWN = {"config.toml", "run.sqlite", "run.sqlite-wal", "shards/node-0000.safetensors", "log/node-0001.log"}
OWN |= {"log/collector.log", f"{ROUND}/node-0001.safetensors", f"{ROUND}/sent-0001.safetensors"}
UNFINISHED = {f"{ROUND}/node-0002.part", "state/round-1000000/node-0002.safetensors.part"}
UNFINISHED.add("plan/node-12345.safetensors.part")
FOREIGN = {"notes.md", "state/notes.md", f"{ROUND}/thesis.part", "log/mine.log", "plan/node-1.safetensors"}


@pytest.fixture
def run_folder(tmp_path):
    folder = tmp_path / "run"
    for name in OWN | UNFINISHED | FOREIGN:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    return folder


def below(folder, paths):
    return {path.relative_to(folder).as_posix() for path in paths if path.is_file()}


def test_clearing_a_folder_leaves_what_this_program_did_not_write_and_follows_no_link(run_folder, tmp_path):
    assert below(run_folder, own_files(run_folder)) == OWN | UNFINISHED
    remove_unfinished(run_folder)
    assert below(run_folder, own_files(run_folder)) == OWN
    document = tmp_path / "home" / "node-0007.safetensors"
    document.parent.mkdir()
    document.write_text("irreplaceable")
    (run_folder / "state" / "round-000008").symlink_to(document.parent)
    with Claim(run_folder, RunFolderError()) as claim:
        claim.clear()
    assert below(run_folder, run_folder.rglob("*")) == FOREIGN
    (run_folder / "shards").symlink_to(document.parent)
    with Claim(run_folder, RunFolderError()) as claim:
        claim.clear()
    assert document.read_text() == "irreplaceable"


def test_a_file_that_a_run_renames_or_sqlite_removes_meanwhile_is_no_obstacle(run_folder, monkeypatch):
    listed = list(folder._below(run_folder))
    gone = {f"{ROUND}/node-0002.part", "run.sqlite-wal"}
    (run_folder / ROUND / "node-0002.part").rename(run_folder / ROUND / "node-0002.safetensors")
    (run_folder / "run.sqlite-wal").unlink()
    monkeypatch.setattr(folder, "_below", lambda of: listed)
    require_plain(run_folder)
    assert below(run_folder, own_files(run_folder)) == (OWN | UNFINISHED) - gone
    with Claim(run_folder, RunFolderError()) as claim:
        looked_at = own_files(run_folder)
        (run_folder / "run.sqlite").unlink()
        monkeypatch.setattr(folder, "own_files", lambda of: looked_at)
        claim.clear()
    assert not (run_folder / "config.toml").exists()


@pytest.mark.parametrize(
    ("name", "put", "what"),
    [
        *((name, "link", "a symbolic link") for name in ("state", "shards", ROUND, "lock", "log/x", *sorted(OWN)[::3])),
        *(("log", "pipe", "no folder"), ("log/node-0001.log", "pipe", "no file"), ("lock", "pipe", "no file")),
        ("config.toml", "folder", "no file"),
    ],
)
def test_anything_but_files_and_folders_of_a_run_is_refused_in_one_line(run_folder, tmp_path, name, put, what):
    place = run_folder / name
    if place.exists():
        place.rename(tmp_path / "moved")
    make = {"pipe": os.mkfifo, "folder": Path.mkdir, "link": lambda place: place.symlink_to(tmp_path / "moved")}
    make[put](place)
    with pytest.raises(RunFolderError, match=rf"^\S+: {name} is {what}; [^\n]*$"):
        require_plain(run_folder)


def test_many_that_begin_at_once_get_a_folder_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    together = threading.Barrier(16)

    def begin(_: int) -> str:
        together.wait()
        with new_folder(None, tmp_path / "mine.toml") as folder:
            (folder / "config.toml").touch()
            return folder.name

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(begin, range(16))) == {"mine", *(f"mine-{number}" for number in range(2, 17))}


def test_a_new_folder_that_nothing_was_written_to_goes_again_and_others_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with new_folder(None, tmp_path / "a.toml"):
        pass
    assert not (tmp_path / "runs").exists()
    with new_folder(None, tmp_path / "a.toml"), new_folder(None, tmp_path / "b.toml") as other:
        (other / "config.toml").touch()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["b"]


def test_a_folder_that_another_works_in_is_not_taken_nor_one_that_a_link_promises(tmp_path):
    folder = tmp_path / "run"
    with Claim(folder, ConfigError()):
        with new_folder(folder, tmp_path / "a.toml"), pytest.raises(ConfigError, match="at work"):
            Claim(folder, ConfigError("at work"), wait_s=0)
        assert folder.exists()
    assert not folder.exists()
    (tmp_path / "run").symlink_to(tmp_path / "nowhere" / "at" / "all")
    with pytest.raises(FileNotFoundError):
        Claim(tmp_path / "run", ConfigError())


# -- of a run's sockets ------------------------------------------------------------------------------------------------

MAKE = "from sheafgossip.launcher.processes.engine import private_folder\nprint(private_folder()[0], flush=True)\n"


def test_what_killed_processes_have_left_goes_when_the_next_run_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lasting = [sys.executable, "-c", f"{MAKE}import time\ntime.sleep(60)"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(lasting, stdout=subprocess.PIPE, text=True, env=environment) as other:
        theirs = Path(other.stdout.readline().strip())
        mine, held = private_folder()
        assert {path.name for path in tmp_path.iterdir()} == {theirs.name, mine.name}
        assert mine.stat().st_mode & 0o777 == 0o700
        other.kill()
    (theirs / "0").mkdir()
    private_folder()
    assert not theirs.exists()
    assert mine.exists()  # kept by this process
    os.close(held)
    private_folder()
    assert not mine.exists()
    documents = tmp_path / "documents"
    documents.mkdir(mode=0o700)
    (documents / "lock").touch()
    (tmp_path / "sheafgossip-link").symlink_to(documents)
    for name, mode in (("sheafgossip-open", 0o755), ("sheafgossip-unlocked", 0o700)):
        (tmp_path / name).mkdir(mode=mode)
    (tmp_path / "sheafgossip-open" / "lock").touch()
    before = sorted(tmp_path.iterdir())
    private_folder()
    assert set(before) < set(tmp_path.iterdir())
    assert (documents / "lock").exists()


def test_a_folder_too_deep_for_sockets_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 77)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(EngineError, match=r"is too long for the paths of sockets in it; .* at most 76 bytes"):
        LocalEngine()
    assert not list(deep.iterdir())


def test_a_folder_is_swept_away_only_while_nobody_can_take_it_for_its_own(tmp_path, monkeypatch):
    """Else a run that begins at that moment would lose the folder of its sockets."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = tmp_path / "sheafgossip-made"  # by one who has not locked it yet
    made.mkdir(mode=0o700)
    (made / "lock").touch()
    taken = []

    def remove(folder):
        with pytest.raises(BlockingIOError):
            taken.append(lock.acquire(folder, 0.0))
        remove_all(folder)

    remove_all = lock.remove
    monkeypatch.setattr(lock, "remove", remove)
    private_folder()
    assert (taken, made.exists()) == ([], False)
