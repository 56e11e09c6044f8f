"""Kills, hostile messages and interrupts against real runs, from their first instructions on."""

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import time
from functools import partial
from pathlib import Path

import msgpack
import numpy as np
import pytest
import zmq

from runs import Going, alive, assert_same_states, small, until

LONG = small(clients=6, rounds=100_000, samples=300, algorithm="dfedu")
WITH_SERVER = small(clients=6, rounds=100_000, samples=300, topology="", algorithm="fedavg")
SILENT = f"{LONG}transport.timeout = 1.5\n"


def test_nothing_of_a_run_is_left_two_seconds_after_its_launcher_was_killed(start):
    going = start(LONG)
    going.until_round(3)
    processes = going.processes()
    assert len(processes) == 1 + 1 + 1 + 6  # launcher, fork server, collector, clients
    ((address,),) = going.folder.rows("SELECT address FROM node WHERE node = 0")
    socket = Path(address.removeprefix("ipc://"))
    sockets = socket.parent.parent
    assert socket.exists()
    assert sockets.stat().st_mode & 0o777 == 0o700
    going.kill()
    until(lambda: not alive(processes) and not sockets.exists(), seconds=2)
    assert len(going.folder.rows("SELECT * FROM round WHERE round = 3")) == 6


def send(number, node):
    return lambda going: os.kill(going.pid(node), number)


def kill(module):
    return lambda going: going.process_of(f"sheafgossip.{module}").kill()


ENDS = {  # what is done to a run, its exit code within so many seconds, what it says
    "client": (LONG, send(signal.SIGKILL, 4), 1, 5, r"client 4 died in round (\d+): killed by SIGKILL"),
    "server": (WITH_SERVER, send(signal.SIGKILL, 6), 1, 5, r"the server died in round \d+: killed by SIGKILL"),
    "collector": (LONG, kill("metrics.collector"), 1, 15, "the collector"),
    "fork server": (LONG, kill("launcher.processes.forkserver"), 1, 15, "the fork server"),
    "silence": (SILENT, send(signal.SIGSTOP, 2), 1, 12, "client 2 sent nothing for 1.5 s in round"),
    "ctrl-c": (LONG, Going.signal, 130, 5, "interrupted"),
}


@pytest.mark.parametrize("case", ENDS)
def test_what_befalls_a_process_ends_the_run_with_a_reason_and_keeps_the_records(start, case):
    text, act, code, seconds, reason = ENDS[case]
    going = start(text)
    going.until_round(5)
    printed = going.ends(code, lambda: act(going), seconds)
    found = re.search(reason, printed)
    assert found, printed
    completed = going.folder.rows("SELECT max(round) FROM round WHERE node = 4")[0][0]
    assert found.groups() in ((), (f"{completed + 1}",))
    assert printed.count("died") == (case in ("client", "server"))  # neighbours are not blamed
    kinds = [kind for (kind,) in going.folder.rows("SELECT kind FROM event WHERE node = -1 ORDER BY rowid")]
    assert kinds == ["start", "interrupt" if code == 130 else "failure"]
    assert len(going.folder.rows("SELECT * FROM round WHERE round = 5")) >= 6


def handles_all(pid: int) -> bool:
    """Whether a process has a handler of its own for SIGHUP, the last to get one."""
    caught = Path(f"/proc/{pid}/status").read_text().split("SigCgt:")[1].split()[0]
    return bool(int(caught, 16) >> (signal.SIGHUP - 1) & 1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="tells when a signal is handled by /proc")
@pytest.mark.parametrize(
    ("number", "moments"),
    [
        (signal.SIGTERM, (0.0, 0.05, 0.2, 0.5, 0.8, 2.0)),  # seconds after signals are handled
        (signal.SIGINT, (0.0, 0.2, 0.8)),
        (signal.SIGHUP, (0.0, 0.2, 0.8)),
    ],
)
def test_a_signal_at_any_moment_of_the_start_ends_a_run_with_130_and_no_process_left(start, tmp_path, number, moments):
    for moment in moments:
        going = start(LONG, env=os.environ | {"TMPDIR": str(tmp_path)}, stdout=subprocess.DEVNULL)
        until(partial(handles_all, going.process.pid), going.process, every_s=0.001)
        time.sleep(moment)
        going.ends(130, partial(going.signal, number), seconds=30)
        assert not list(tmp_path.glob("sheafgossip-*"))
        assert not going.folder.path.exists() or (going.folder.path / "config.toml").exists()


def test_a_run_under_nohup_goes_on_when_its_terminal_is_lost(start):
    ignored = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    going = start(LONG, "--set", "rounds=300", **ignored)
    going.until((going.folder.path / "run.sqlite").exists)
    for each in going.processes():
        each.send_signal(signal.SIGHUP)
    going.ends(0, seconds=60)


def test_an_exception_in_a_client_that_is_no_file_of_the_users_shows_its_traceback(start, with_round, tmp_path):
    with_round("1 / (client.node - 2)")
    going = start(small('algorithm.use = "added:Added"', algorithm=""), env=os.environ | {"PYTHONPATH": str(tmp_path)})
    code, printed = going.end()
    assert code == 1
    assert re.search(r"client 2 failed in round 1: Traceback(.|\n)*ZeroDivisionError", printed)


def test_an_algorithm_that_binds_theta_anew_is_told_its_line_and_what_to_write(start, with_round):
    code, printed = start(small(with_round("client.theta = client.theta + 1"), algorithm="")).end()
    assert code == 1
    assert "write client.theta[:] = ..." in printed
    assert "client.theta = client.theta + 1" in printed  # the line at fault


def test_poison_is_dropped_and_shown_and_the_run_is_unharmed(start, run_in_threads, monkeypatch):
    """The same run with and without an attacker that is sent to a client's socket."""
    keys = ("rounds=800", "checkpoints.every=100")
    with monkeypatch.context() as patch:
        patch.setenv("SHEAFGOSSIP_FAILPOINTS", "state renamed@node-0000=delay 0.5")  # longer than the attack takes
        going = start(LONG, *(word for key in keys for word in ("--set", key)))
    going.until_round(2)
    ((address,),) = going.folder.rows("SELECT address FROM node WHERE node = 3")
    header = [1, 1 << 62, 2, 3, 50, 0]
    vector = np.ones(650, dtype="<f4").tobytes()
    poisons = [
        [b"\xff" * 40],
        [b""],
        [msgpack.packb([*header, [[0, 650]]]), vector],  # a foreign run id, and no neighbour's socket
        [msgpack.packb([*header, [[0, 3]]]), vector],
        [b"x"] * 50,
        [b"x", bytes(100_000_000)],
    ]
    with zmq.Context() as context:
        for poison in poisons:
            with context.socket(zmq.DEALER) as socket:
                socket.linger = 2000  # one that is too large is refused again and again until then
                socket.connect(address)
                socket.send_multipart(poison)
    going.ends(0, seconds=60)
    dropped = str(going.folder.rows("SELECT detail FROM event WHERE kind = 'drop' AND node = 3"))
    assert "unknown peer" in dropped
    assert "over 2600 bytes" in dropped
    calm = run_in_threads(LONG, *keys)
    assert_same_states(calm, going.folder, 800)
    assert calm.payload() == going.folder.payload()


def test_a_run_that_is_frozen_for_longer_than_its_timeout_goes_on_with_the_same_bits(
    start, run_in_threads, monkeypatch
):
    """With and without a clock. Client 0 stands at its second checkpoint then, so that nobody is at the end."""
    plain = small("checkpoints.every = 10", "transport.timeout = 4.0", clients=6, rounds=40, samples=300)
    texts = plain, plain + 'time = {clock = "virtual", staleness = 1}\n'
    with monkeypatch.context() as patch:
        patch.setenv("SHEAFGOSSIP_FAILPOINTS", "state renamed@node-0000:2=delay 2")
        both = [start(text) for text in texts]
    for going in both:
        going.until((going.folder.path / "state/round-000010/node-0000.safetensors").exists)
        for process in going.processes():
            process.suspend()
    time.sleep(5)
    for going, text in zip(both, texts, strict=True):
        assert not (going.folder.path / "state/round-000040").exists()
        for process in going.processes():
            process.resume()
        going.ends(0, seconds=60)
        assert_same_states(run_in_threads(text), going.folder, 40)


def test_a_run_waits_while_its_records_are_locked_and_none_is_lost(start):
    going = start(LONG, "--set", "rounds=400")
    going.until_round(2)
    with contextlib.closing(sqlite3.connect(going.folder.path / "run.sqlite", timeout=30)) as somebody:
        somebody.execute("BEGIN IMMEDIATE")
        time.sleep(6.5)  # longer than SQLite itself waits
        somebody.rollback()
    going.ends(0, seconds=60)
    assert going.folder.rows("SELECT count(*) FROM round") == [(6 * 401,)]
    assert going.folder.rows("SELECT kind FROM event WHERE node = -2") == []
