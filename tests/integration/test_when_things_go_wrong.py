"""Kills, interrupts and hostile messages, against real runs."""

import contextlib
import os
import re
import signal
import sqlite3
import time
from pathlib import Path

import msgpack
import numpy as np
import pytest
import zmq

from runs import alive, assert_same_states

LONG = """
clients = 6
rounds = 100000
[topology]
kind = "ring"
[data]
samples = 300
[algorithm]
name = "dfedu"
"""
WITH_SERVER = LONG.replace("dfedu", "fedavg").replace('[topology]\nkind = "ring"\n', "")


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
    time.sleep(2)
    assert alive(processes) == []
    assert not sockets.exists()
    assert len(going.folder.rows("SELECT * FROM round WHERE round = 3")) == 6


@pytest.mark.parametrize(
    ("text", "node", "name"), [(LONG, 4, "client 4"), (WITH_SERVER, 6, "the server")], ids=["client", "server"]
)
def test_a_killed_client_ends_the_run_and_is_named_with_its_round(start, text, node, name):
    going = start(text)
    going.until_round(5)
    processes = going.processes()
    os.kill(going.pid(node), signal.SIGKILL)
    code, printed = going.end(seconds=5)
    assert code == 1
    completed = going.folder.rows(f"SELECT max(round) FROM round WHERE node = {node}")[0][0]
    assert completed >= 5
    assert f"{name} died in round {completed + 1}: killed by SIGKILL" in printed
    assert printed.count("died") == 1  # its neighbours are not blamed
    assert "Traceback" not in printed
    assert alive(processes) == []
    assert going.folder.rows("SELECT kind FROM event WHERE node = -1 ORDER BY rowid") == [("start",), ("failure",)]
    assert len(going.folder.rows("SELECT * FROM round WHERE round = 5")) == 6 + (name == "the server")


def test_ctrl_c_stops_cleanly_and_keeps_the_records(start):
    going = start(LONG)
    going.until_round(5)
    processes = going.processes()
    going.signal()
    code, printed = going.end(seconds=5)
    assert code == 130
    assert "interrupted" in printed
    assert "Traceback" not in printed
    assert alive(processes) == []
    assert ("interrupt",) in going.folder.rows("SELECT kind FROM event WHERE node = -1")
    assert len(going.folder.rows("SELECT * FROM round WHERE round = 5")) == 6


def test_ctrl_c_while_clients_start_leaves_nothing_behind(start):
    going = start(LONG.replace("clients = 6", "clients = 40"))
    going.until(lambda: len(going.processes()) >= 8)
    processes = going.processes()
    going.signal()
    code, _ = going.end(seconds=8)
    assert code == 130
    assert alive(processes) == []


def test_an_exception_in_a_client_shows_its_traceback(start):
    going = start(LONG + "[checkpoints]\nevery = 500\n")
    going.until_round(1)
    for round in range(500, 5001, 500):  # the next checkpoint, wherever the run is by now, finds a file in its way
        with contextlib.suppress(FileExistsError, IsADirectoryError):
            (going.folder.path / "state" / f"round-{round:06d}").open("x").close()
    code, printed = going.end(seconds=100)
    assert code == 1
    assert re.search(r"failed in round \d+: Traceback", printed)
    assert "FileExistsError" in printed


def test_a_silent_client_fails_its_neighbours_after_the_timeout(start):
    going = start(LONG + "[transport]\ntimeout = 1.5\n")
    going.until_round(3)
    processes = going.processes()
    os.kill(going.pid(2), signal.SIGSTOP)
    code, printed = going.end(seconds=12)
    assert code == 1
    assert "client 2 sent nothing for 1.5 s in round" in printed
    assert alive(processes) == []


def test_divergence_ends_the_run_with_its_cause(start):
    going = start(LONG.replace('name = "dfedu"', 'name = "dfedu"\nlam = 1e6') + '[model]\nkind="mlp"\nhidden=[8]\n')
    code, printed = going.end(seconds=60)
    assert code == 1
    assert "is not finite after round" in printed
    assert "algorithm.lam" in printed
    assert "Traceback" not in printed


def test_poison_is_dropped_and_shown_and_the_run_is_unharmed(start, run_in_threads, monkeypatch):
    """The same run with and without an attacker that is sent to a client's socket."""
    config = LONG.replace("rounds = 100000", "rounds = 800") + "[checkpoints]\nevery = 100\n"
    with monkeypatch.context() as patch:
        patch.setenv("SHEAFGOSSIP_FAILPOINTS", "state renamed@node-0000=delay 0.5")  # longer than the attack takes
        going = start(config)
    going.until_round(2)
    address = going.folder.rows("SELECT address FROM node WHERE node = 3")[0][0]
    context = zmq.Context()
    header = [1, 1 << 62, 2, 3, 50, 0, [[0, 650]]]
    vector = np.ones(650, dtype="<f4").tobytes()
    poisons = [
        [b"\xff" * 40],
        [b""],
        [msgpack.packb(header), vector],  # a foreign run id, and no neighbour's socket
        [msgpack.packb([*header[:-1], [[0, 3]]]), vector],
        [b"x"] * 50,
    ]
    for poison in poisons:
        socket = context.socket(zmq.DEALER)
        socket.linger = 2000
        socket.connect(address)
        socket.send_multipart(poison)
        socket.close()
    giant = context.socket(zmq.DEALER)
    giant.linger = 500
    giant.connect(address)
    giant.send_multipart([b"x", bytes(100_000_000)])
    time.sleep(1)
    giant.close()
    context.term()
    code, printed = going.end(seconds=60)
    assert code == 0, printed
    dropped = [detail for (detail,) in going.folder.rows("SELECT detail FROM event WHERE kind = 'drop' AND node = 3")]
    assert any("unknown peer" in detail for detail in dropped)
    assert any("over 2600 bytes" in detail for detail in dropped)
    calm = run_in_threads(config)
    assert_same_states(calm, going.folder, 800)
    assert calm.payload() == going.folder.payload()


MODULES = {
    "collector": "sheafgossip.metrics.collector",
    "fork server": "sheafgossip.launcher.processes.forkserver",
}


@pytest.mark.parametrize("victim", MODULES)
def test_the_loss_of_a_helper_process_ends_the_run_with_a_reason(start, victim):
    going = start(LONG)
    going.until_round(3)
    processes = going.processes()
    going.process_of(MODULES[victim]).kill()
    code, printed = going.end(seconds=15)
    assert code == 1
    assert victim in printed
    assert "Traceback" not in printed
    assert alive(processes) == []


@pytest.mark.parametrize("time_table", ["", '[time]\nclock = "virtual"\nstaleness = 1\n'], ids=["unplanned", "virtual"])
def test_a_run_that_is_frozen_for_longer_than_its_timeout_goes_on_with_the_same_bits(
    start, run_in_threads, monkeypatch, time_table
):
    """Client 0 stands at its second checkpoint then, so that nobody is at the end."""
    config = LONG.replace("rounds = 100000", "rounds = 40") + "[transport]\ntimeout = TIMEOUT\n" + time_table
    config += "[checkpoints]\nevery = 10\n"
    with monkeypatch.context() as patch:
        patch.setenv("SHEAFGOSSIP_FAILPOINTS", "state renamed@node-0000:2=delay 2")
        going = start(config.replace("TIMEOUT", "4.0"))
    going.until((going.folder.path / "state/round-000010/node-0000.safetensors").exists)
    processes = going.processes()
    for process in processes:
        process.suspend()
    time.sleep(5)
    assert not (going.folder.path / "state/round-000040").exists()
    for process in processes:
        process.resume()
    code, printed = going.end(seconds=60)
    assert code == 0, printed
    assert_same_states(run_in_threads(config.replace("TIMEOUT", "60.0")), going.folder, 40)


def test_a_run_waits_while_its_records_are_locked_and_none_is_lost(start):
    going = start(LONG.replace("rounds = 100000", "rounds = 400"))
    going.until_round(2)
    with contextlib.closing(sqlite3.connect(going.folder.path / "run.sqlite", timeout=30)) as somebody:
        somebody.execute("BEGIN IMMEDIATE")
        time.sleep(6.5)  # longer than SQLite itself waits
        somebody.rollback()
    code, printed = going.end(seconds=60)
    assert code == 0, printed
    assert going.folder.rows("SELECT count(*) FROM round") == [(6 * 401,)]
    assert going.folder.rows("SELECT kind FROM event WHERE node = -2") == []
