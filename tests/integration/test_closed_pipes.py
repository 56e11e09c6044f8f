"""Who reads what a command prints may go at any time: a run ends as it would have, with all its records."""

import os
import pty
import subprocess

import pytest

from foreign import sheafgossip
from runs import CLI, RunFolder, small


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
    (tmp_path / "run.toml").write_text(small(clients=6, rounds=50, samples=300, algorithm="dfedu"))
    return RunFolder(tmp_path / "run")


def exit_code(*words: str, outlet: int | None) -> int:
    """Of a command that has no other outlet than this, or none at all, and no standard input."""
    environment = os.environ | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
    pipes = {"stdout": outlet, "stderr": outlet, "preexec_fn": lambda: os.closerange(0, 1 if outlet else 3)}
    done = subprocess.run([*CLI, *words], **pipes, env=environment, timeout=60)
    if outlet:
        os.close(outlet)
    return done.returncode


@pytest.mark.parametrize("outlet", [closed, full, lost, lambda: None])
def test_a_run_that_nobody_can_be_told_of_ends_as_it_would_have(folder, outlet):
    """Nor do its files take the place of descriptors that are closed: what is told would be written into them."""
    assert exit_code("run", "run.toml", "--out", "run", outlet=outlet()) == 0
    assert folder.rows("SELECT count(*) FROM round") == [(6 * 51,)]
    assert folder.rows("PRAGMA integrity_check") == [("ok",)]
    assert set(folder.rows("SELECT kind FROM event WHERE node = -1")) == {("start",), ("finish",)}


def test_its_failures_are_told_by_the_exit_code_all_the_same(folder):
    diverges = ("run.toml", "--set", "algorithm.lam=1e6", "--set", "model.kind=mlp", "--set", "model.hidden=[8]")
    assert exit_code("run", *diverges, "--out", "run", "--engine", "threads", outlet=closed()) == 1
    assert exit_code("watch", "run", outlet=closed()) == 1
    assert exit_code("run", "none.toml", outlet=closed()) == 2


def test_a_summary_that_is_cut_off_is_no_mistake_but_one_that_could_not_be_stored_is(folder):
    assert sheafgossip("run", "run.toml", "--out", "run", "--engine", "threads", "--set", "rounds=5")[0] == 0
    assert exit_code("summary", "run", outlet=closed()) == 0
    assert exit_code("summary", "run", outlet=full()) == 1
