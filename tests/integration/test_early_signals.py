"""Signals at any moment of a command, from its first instructions on."""

import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from runs import until

from .test_when_things_go_wrong import LONG

MOMENTS = [0.0, 0.05, 0.2, 0.5, 0.8, 2.0]
"""Seconds after signals are heeded."""


def heeds_all(pid: int) -> bool:
    """Whether a process has a handler of its own for SIGHUP, the last to get one."""
    caught = Path(f"/proc/{pid}/status").read_text().split("SigCgt:")[1].split()[0]
    return bool(int(caught, 16) >> (signal.SIGHUP - 1) & 1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="tells when a signal is heeded by /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_at_any_moment_of_the_start_ends_a_run_with_130_and_no_process_left(start, tmp_path, number):
    for moment in MOMENTS if number == signal.SIGTERM else MOMENTS[::2]:
        going = start(LONG, env=os.environ | {"TMPDIR": str(tmp_path)}, stdout=subprocess.DEVNULL)
        until(partial(heeds_all, going.process.pid), going.process, every_s=0.001)
        time.sleep(moment)
        going.ends(130, partial(going.signal, number), seconds=30)
        assert not list(tmp_path.glob("sheafgossip-*"))
        assert not going.folder.path.exists() or (going.folder.path / "config.toml").exists()


def test_a_run_under_nohup_goes_on_when_its_terminal_is_lost(start):
    ignored = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    going = start(LONG.replace("rounds = 100000", "rounds = 300"), **ignored)
    going.until((going.folder.path / "run.sqlite").exists)
    for each in going.processes():
        each.send_signal(signal.SIGHUP)
    going.ends(0, seconds=60)
