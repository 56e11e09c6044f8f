"""Looking at real runs from another process, and from another terminal."""

import os
import re
import signal
import stat

import pytest

from runs import Going, RunFolder, in_a_terminal, small

SHORT = small('training = {work = "full", alpha = 0.5}', rounds=5, samples=400, algorithm="")
LONG = SHORT.replace("rounds = 5", "rounds = 1_000_000\nevaluation.every = 0")
TWO = SHORT + "[[compare]]\nname = 'first'\n[[compare]]\nname = 'second'\nalgorithm.name = 'local'\n"


@pytest.fixture
def going(start) -> Going:
    going = start(LONG)
    going.until_round(5)
    return going


def test_finished_runs_are_shown_once_one_after_the_other_and_no_file_is_left_behind(run_in_threads, begin, tmp_path):
    folder = run_in_threads(TWO).path
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    line = r"{}: finished after 0:\d\d, accuracy \d+\.\d %{}\n"
    both = line.format("first", r", \d+\.?\d* kB sent") + line.format("second", "")
    mode = folder.stat().st_mode
    folder.chmod(mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    try:
        code, said = begin("watch", folder).end()
    finally:
        folder.chmod(mode)
    assert (code, bool(re.fullmatch(both, said))) == (0, True), said
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    interrupted = RunFolder(folder / "first").copy(tmp_path / "run")
    interrupted.alter("UPDATE event SET kind = 'interrupt' WHERE kind = 'finish'")
    code, said = begin("watch", interrupted.path).end()
    assert (code, said.startswith("first: interrupted after ")) == (130, True), said


def test_ctrl_c_ends_the_looking_and_not_the_run_whose_failure_is_told_with_its_reason(going, begin):
    watcher, second = begin("watch", going.folder.path), begin("watch", going.folder.path)
    for each in (watcher, second):
        assert re.match(r"run: round \d+.* of 1000000, ", each.process.stderr.readline())
    watcher.signal(signal.SIGINT)
    assert watcher.end() == (130, "no longer watching; the run goes on\n")
    assert going.process.poll() is None
    os.kill(going.pid(2), signal.SIGKILL)
    going.end(30)
    code, said = second.end()
    assert code == 1
    assert re.search(r"^error: run: client 2 died in round \d+: killed by SIGKILL$", said, re.MULTILINE)


def test_a_run_whose_processes_are_gone_does_not_keep_its_watcher(going, begin):
    going.kill_everything()
    code, said = begin("watch", going.folder.path).end()
    assert (code, said.splitlines()[-1]) == (130, "error: run: no process of this run is left")


@pytest.mark.parametrize(("option", "progress"), [("--set=seed=1", "picture"), ("--plain", "lines"), ("--quiet", "")])
def test_in_a_terminal_a_run_is_a_picture_that_ends_with_the_result_unless_other_is_asked_for(
    tmp_path, option, progress
):
    (tmp_path / "config.toml").write_text(SHORT)
    code, written = in_a_terminal("run", tmp_path / "config.toml", "--out", tmp_path / "run", option)
    assert code == 0
    assert (": finished after " in written) == (progress == "lines")
    assert ("\x1b[?25l" in written) == (progress == "picture")
    assert ("starting" in written) == (progress == "picture")
    assert "wall time, s" in written
    assert written.rfind("\x1b[?25h") >= written.rfind("\x1b[?25l")  # the cursor is back


def test_in_a_terminal_ctrl_c_gives_the_cursor_back(tmp_path):
    (tmp_path / "config.toml").write_text(LONG)
    words = "run", tmp_path / "config.toml", "--out", tmp_path / "run"
    code, written = in_a_terminal(*words, typed=[(" left", "\x03")])
    assert code == 130
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")
    assert "interrupted: the records so far are kept" in written
