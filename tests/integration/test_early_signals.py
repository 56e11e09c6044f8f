"""Signals at any moment of a command, from its first instructions on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from runs import CLI, alive, default_signals

from .test_when_things_go_wrong import LONG

MOMENTS = [0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.8, 1.2, 2.0]
"""Seconds after signals are heeded."""


def heeds(process: psutil.Process, number: int) -> bool:
    """Whether a process has a handler of its own for this signal."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = int(status.split("SigCgt:")[1].split()[0], 16)
    return bool(caught >> (number - 1) & 1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="tells when a signal is heeded by /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_at_any_moment_of_the_start_ends_a_run_with_130_and_no_process_left(tmp_path, number):
    config = tmp_path / "going.toml"
    config.write_text(LONG)
    for moment in MOMENTS if number == signal.SIGTERM else MOMENTS[::3]:
        out = tmp_path / f"{moment}"
        command = [*CLI, "run", str(config), "--out", str(out)]
        with subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": str(tmp_path)},
            preexec_fn=default_signals,
        ) as process:
            launcher = psutil.Process(process.pid)
            while not heeds(launcher, signal.SIGHUP):
                assert process.poll() is None
                time.sleep(0.001)
            time.sleep(moment)
            processes = [launcher, *launcher.children(recursive=True)]
            process.send_signal(number)
            said = process.communicate(timeout=30)[1]
        assert process.returncode == 130, said
        assert "Traceback" not in said
        assert alive(processes) == []
        assert not list(tmp_path.glob("sheafgossip-*"))
        assert not out.exists() or (out / "config.toml").exists()


def test_a_run_under_nohup_goes_on_when_its_terminal_is_lost(start, tmp_path):
    config = tmp_path / "short.toml"
    config.write_text(LONG.replace("rounds = 100000", "rounds = 300"))
    out = tmp_path / "run"
    command = [*CLI, "run", str(config), "--out", str(out)]
    ignoring = subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    with ignoring as process:
        while not (out / "run.sqlite").exists():
            assert process.poll() is None
            time.sleep(0.01)
        for each in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
            each.send_signal(signal.SIGHUP)
        assert process.wait(60) == 0
