"""Who reads what a command prints may go at any time: a run ends as it would have, with all its records."""

import os
import pty
import subprocess
from pathlib import Path

import pytest

from foreign import sheafgossip
from runs import CLI, RunFolder

from .test_when_things_go_wrong import LONG

DIVERGES = 'name = "dfedu"\nlam = 1e6\n[model]\nkind="mlp"\nhidden=[8]'


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


OUTLETS = {
    "closed pipe": closed,
    "full disk": lambda: os.open("/dev/full", os.O_WRONLY),
    "lost terminal": lost,
}


def command(*arguments: str | Path, outlet: int) -> int:
    """The exit code of a command that has no other outlet than this, and no standard input."""
    with open(outlet, "rb", buffering=0, closefd=True):
        return subprocess.run(
            [*CLI, *map(str, arguments)],
            stdout=outlet,
            stderr=outlet,
            preexec_fn=lambda: os.close(0),
            env=os.environ | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"},
            timeout=60,
        ).returncode


def of_rounds(rounds: int, folder: Path) -> Path:
    (folder / "run.toml").write_text(LONG.replace("rounds = 100000", f"rounds = {rounds}"))
    return folder / "run.toml"


@pytest.mark.parametrize("outlet", OUTLETS.values(), ids=list(OUTLETS))
def test_a_run_that_nobody_can_be_told_of_ends_as_it_would_have(tmp_path, outlet):
    config = of_rounds(50, tmp_path)
    assert command("run", config, "--out", tmp_path / "run", outlet=outlet()) == 0
    folder = RunFolder(tmp_path / "run")
    assert folder.rows("SELECT count(*) FROM round") == [(6 * 51,)]
    assert set(folder.rows("SELECT kind FROM event WHERE node = -1")) == {("start",), ("finish",)}


def test_its_failures_are_told_by_the_exit_code_all_the_same(tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(LONG.replace('name = "dfedu"', DIVERGES))
    assert command("run", config, "--out", tmp_path / "run", outlet=closed()) == 1
    assert command("sweep", config, "--out", tmp_path / "sweep", outlet=closed()) == 1
    assert command("watch", tmp_path / "run", outlet=closed()) == 1
    assert command("run", tmp_path / "none.toml", outlet=closed()) == 2


def test_a_summary_that_is_cut_off_is_no_mistake_but_one_that_could_not_be_stored_is(tmp_path):
    config = of_rounds(5, tmp_path)
    assert sheafgossip("run", config, "--out", tmp_path / "run", "--engine", "threads")[0] == 0
    assert command("summary", tmp_path / "run", outlet=closed()) == 0
    assert command("summary", tmp_path / "run", outlet=os.open("/dev/full", os.O_WRONLY)) == 1


def test_files_of_a_run_do_not_take_the_place_of_descriptors_that_were_closed(tmp_path):
    """Or what is meant for standard error would be written into them."""
    config = of_rounds(50, tmp_path)
    line = " ".join([*CLI, "run", str(config), "--out", str(tmp_path / "run"), "<&- >&- 2>&-"])
    assert subprocess.run(["/bin/sh", "-c", line], timeout=60).returncode == 0
    assert RunFolder(tmp_path / "run").rows("SELECT count(*) FROM round") == [(6 * 51,)]
    assert RunFolder(tmp_path / "run").rows("PRAGMA integrity_check") == [("ok",)]
