"""Who reads what a command prints may go at any time: a run ends as it would have, with all its records."""

import os
import pty
import subprocess

import pytest

from foreign import sheafgossip
from runs import CLI, RunFolder

from .test_when_things_go_wrong import LONG

ROUNDS = "SELECT count(*) FROM round"


def closed() -> int:
    """A pipe whose reader is gone."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def lost() -> int:
    """A terminal that is gone."""
    ours, theirs = pty.openpty()
    os.close(ours)
    return theirs


def full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> RunFolder:
    """Of the run that run.toml describes in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(LONG.replace("rounds = 100000", "rounds = 50"))
    return RunFolder(tmp_path / "run")


def exit_code(*words: str, outlet: int) -> int:
    """Of a command that has no other outlet than this, and no standard input."""
    with open(outlet, "rb", buffering=0, closefd=True):
        environment = os.environ | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
        pipes = {"stdout": outlet, "stderr": outlet, "preexec_fn": lambda: os.close(0)}
        return subprocess.run([*CLI, *words], **pipes, env=environment, timeout=60).returncode


@pytest.mark.parametrize("outlet", [closed, full, lost])
def test_a_run_that_nobody_can_be_told_of_ends_as_it_would_have(folder, outlet):
    assert exit_code("run", "run.toml", "--out", "run", outlet=outlet()) == 0
    assert folder.rows(ROUNDS) == [(6 * 51,)]
    assert set(folder.rows("SELECT kind FROM event WHERE node = -1")) == {("start",), ("finish",)}


def test_its_failures_are_told_by_the_exit_code_all_the_same(folder):
    diverges = ("run.toml", "--set", "algorithm.lam=1e6", "--set", "model.kind=mlp", "--set", "model.hidden=[8]")
    assert exit_code("run", *diverges, "--out", "run", outlet=closed()) == 1
    assert exit_code("watch", "run", outlet=closed()) == 1
    assert exit_code("run", "none.toml", outlet=closed()) == 2


def test_a_summary_that_is_cut_off_is_no_mistake_but_one_that_could_not_be_stored_is(folder):
    assert sheafgossip("run", "run.toml", "--out", "run", "--engine", "threads", "--set", "rounds=5")[0] == 0
    assert exit_code("summary", "run", outlet=closed()) == 0
    assert exit_code("summary", "run", outlet=full()) == 1


def test_files_of_a_run_do_not_take_the_place_of_descriptors_that_were_closed(folder):
    """Or what is meant for standard error would be written into them."""
    line = " ".join([*CLI, "run run.toml --out run <&- >&- 2>&-"])
    assert subprocess.run(["/bin/sh", "-c", line], timeout=60).returncode == 0
    assert (folder.rows(ROUNDS), folder.rows("PRAGMA integrity_check")) == ([(6 * 51,)], [("ok",)])
