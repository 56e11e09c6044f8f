"""The folder of a run's sockets never stays, and nobody else's is removed."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sheafgossip.launcher.processes.forkserver import private_folder

MAKE = "from sheafgossip.launcher.processes.forkserver import private_folder\nprint(private_folder()[0], flush=True)\n"


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_what_killed_processes_have_left_goes_when_the_next_run_starts(tmp_path):
    lasting = [sys.executable, "-c", f"{MAKE}import time\ntime.sleep(60)"]
    with subprocess.Popen(lasting, stdout=subprocess.PIPE, text=True) as other:
        theirs = Path(other.stdout.readline().strip())
        mine, lock = private_folder()
        assert {path.name for path in tmp_path.iterdir()} == {theirs.name, mine.name}
        assert mine.stat().st_mode & 0o777 == 0o700
        other.kill()
    (theirs / "0").mkdir()
    private_folder()
    assert not theirs.exists()
    assert mine.exists()  # kept by this process
    os.close(lock)
    private_folder()
    assert not mine.exists()


def test_folders_that_are_not_known_to_be_left_stay(tmp_path):
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
