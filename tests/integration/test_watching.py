"""Looking at real runs from another process, and from another terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import stat
import subprocess
import sys
import time

import psutil
import pytest
from runs import CLI

SHORT = """
clients = 4
rounds = 5
topology.kind = "ring"
data.samples = 400
training = { work = "full", alpha = 0.5 }
"""
LONG = SHORT.replace("rounds = 5", "rounds = 1_000_000\nevaluation.every = 0")
TWO = SHORT + "[[compare]]\nname = 'first'\n[[compare]]\nname = 'second'\nalgorithm.name = 'local'\n"


def watching(folder, *options) -> subprocess.Popen[str]:
    command = [*CLI, "watch", str(folder), *options]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def seen(folder) -> tuple[int, str, str]:
    process = watching(folder)
    out, err = process.communicate(timeout=150)
    return process.returncode, out, err


def in_a_terminal(*arguments: str, seconds: float = 150, interrupt_at: str | None = None) -> tuple[int, str]:
    """(exit code, all that was written to it) of a command in a terminal of 80 columns."""
    pid, terminal = pty.fork()
    if not pid:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ |= {"TERM": "xterm-256color", "PYTHONUTF8": "1", "COLUMNS": "80", "LINES": "24"}
        os.execv(sys.executable, [*CLI, *arguments])
    written, deadline = b"", time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            written += os.read(terminal, 1 << 16)
        except OSError:  # the other end is closed
            break
        if interrupt_at and interrupt_at.encode() in written:
            os.write(terminal, b"\x03")
            interrupt_at = None
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), written.decode()


def test_a_finished_run_is_shown_once(run):
    folder = run(SHORT).path
    code, out, err = seen(folder)
    assert (code, out) == (0, "")
    assert re.fullmatch(r"run-1: finished after 0:\d\d, accuracy \d+\.\d %, \d+\.?\d* kB sent\n", err)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_finished_run_can_be_watched_where_nothing_may_be_written(run):
    folder = run(SHORT).path
    mode = folder.stat().st_mode
    folder.chmod(mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    try:
        assert seen(folder)[0] == 0
    finally:
        folder.chmod(mode)


def test_watching_a_finished_run_leaves_no_file_behind(run):
    folder = run(SHORT).path
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert seen(folder)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_several_runs_are_watched_one_after_the_other(run):
    code, _, err = seen(run(TWO).path)
    assert code == 0
    assert [line.split(" after")[0] for line in err.splitlines()] == ["first: finished", "second: finished"]


def test_a_run_in_progress_is_followed_until_it_is_interrupted(start):
    going = start(LONG)
    going.until_round(5)
    watcher = watching(going.folder.path)
    assert re.match(r"going-0: round \d+.* of 1000000, ", watcher.stderr.readline())
    going.process.send_signal(signal.SIGINT)
    going.end(30)
    _, err = watcher.communicate(timeout=150)
    assert watcher.returncode == 130
    assert "going-0: interrupted after " in err


def test_ctrl_c_ends_the_looking_and_not_the_run(start):
    going = start(LONG)
    going.until_round(5)
    watcher = watching(going.folder.path)
    watcher.stderr.readline()
    watcher.send_signal(signal.SIGINT)
    _, err = watcher.communicate(timeout=150)
    assert (watcher.returncode, err) == (130, "no longer watching; the run goes on\n")
    assert going.process.poll() is None
    going.process.send_signal(signal.SIGINT)
    going.end(30)


def test_a_run_that_fails_is_told_with_its_reason(start):
    going = start(LONG)
    going.until_round(5)
    watcher = watching(going.folder.path)
    watcher.stderr.readline()
    os.kill(going.pid(2), signal.SIGKILL)
    going.end(30)
    _, err = watcher.communicate(timeout=150)
    assert watcher.returncode == 1
    assert re.search(r"^error: going-0: client 2 died in round \d+: killed by SIGKILL$", err, re.MULTILINE)


def test_a_run_whose_processes_are_gone_does_not_keep_its_watcher(start):
    going = start(LONG)
    going.until_round(5)
    for process in going.processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # clients end by themselves once their launcher has gone
            process.kill()
    going.end(30)
    code, _, err = seen(going.folder.path)
    assert code == 130
    assert err.splitlines()[-1] == "error: going-0: no process of this run is left"


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_what_is_no_run_is_refused_in_one_line(tmp_path, folder):
    code, out, err = seen(tmp_path / folder)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    assert "not the folder of a run" in err


def test_in_a_terminal_a_run_is_a_picture_that_ends_with_the_result(tmp_path):
    (tmp_path / "config.toml").write_text(SHORT)
    code, written = in_a_terminal("run", str(tmp_path / "config.toml"), "--out", str(tmp_path / "run"))
    assert code == 0
    assert "starting" in written
    assert "wall time, s" in written
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")  # the cursor is back


def test_in_a_terminal_ctrl_c_gives_the_cursor_back(tmp_path):
    (tmp_path / "config.toml").write_text(LONG)
    arguments = "run", str(tmp_path / "config.toml"), "--out", str(tmp_path / "run")
    code, written = in_a_terminal(*arguments, interrupt_at=" left")
    assert code == 130
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")
    assert "interrupted: the records so far are kept" in written


def test_in_a_terminal_plain_lines_and_silence_are_kept_to(tmp_path):
    (tmp_path / "config.toml").write_text(SHORT)
    for option, progress in (("--plain", True), ("--quiet", False)):
        code, written = in_a_terminal("run", str(tmp_path / "config.toml"), "--out", str(tmp_path / option), option)
        assert code == 0
        assert "\x1b[?25l" not in written
        assert (": finished after " in written) == progress
