"""Who reads what a command prints may go at any time: a run ends as it would have, with all its records."""

import os
import pty
import subprocess

import pytest

from foreign import sheafgossip
from runs import CLI, RunFolder

from .test_when_things_go_wrong import LONG

SHORT = LONG.replace("rounds = 100000", "rounds = 50")


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
def run(tmp_path):
    """The run, and what gives the exit code of a command that has no other outlet than this, and no standard input."""
    (tmp_path / "run.toml").write_text(SHORT)

    def run(*words: str, outlet: int) -> int:
        with open(outlet, "rb", buffering=0, closefd=True):
            environment = os.environ | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
            pipes = {"stdout": outlet, "stderr": outlet, "preexec_fn": lambda: os.close(0), "cwd": tmp_path}
            return subprocess.run([*CLI, *words], **pipes, env=environment, timeout=60).returncode

    return RunFolder(tmp_path / "run"), run


@pytest.mark.parametrize("outlet", [closed, full, lost])
def test_a_run_that_nobody_can_be_told_of_ends_as_it_would_have(run, outlet):
    folder, run = run
    assert run("run", "run.toml", "--out", "run", outlet=outlet()) == 0
    assert folder.rows("SELECT count(*) FROM round") == [(6 * 51,)]
    assert set(folder.rows("SELECT kind FROM event WHERE node = -1")) == {("start",), ("finish",)}


def test_its_failures_are_told_by_the_exit_code_all_the_same(run):
    diverges = ("run.toml", "--set", "algorithm.lam=1e6", "--set", "model.kind=mlp", "--set", "model.hidden=[8]")
    _, run = run
    assert run("run", *diverges, "--out", "run", outlet=closed()) == 1
    assert run("watch", "run", outlet=closed()) == 1
    assert run("run", "none.toml", outlet=closed()) == 2


def test_a_summary_that_is_cut_off_is_no_mistake_but_one_that_could_not_be_stored_is(run, tmp_path):
    _, run = run
    words = ("run", tmp_path / "run.toml", "--out", tmp_path / "run", "--engine", "threads", "--set", "rounds=5")
    assert sheafgossip(*words)[0] == 0
    assert run("summary", "run", outlet=closed()) == 0
    assert run("summary", "run", outlet=full()) == 1


def test_files_of_a_run_do_not_take_the_place_of_descriptors_that_were_closed(run, tmp_path):
    """Or what is meant for standard error would be written into them."""
    line = " ".join([*CLI, "run run.toml --out run <&- >&- 2>&-"])
    assert subprocess.run(["/bin/sh", "-c", line], cwd=tmp_path, timeout=60).returncode == 0
    assert run[0].rows("SELECT count(*) FROM round") == [(6 * 51,)]
    assert run[0].rows("PRAGMA integrity_check") == [("ok",)]
