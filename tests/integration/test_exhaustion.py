"""Who connects to a run's ports takes neither the descriptors nor the memory that the run needs."""

import contextlib
import resource
import socket
import sqlite3
import struct
import sys

import psutil
import pytest

from runs import assert_same_states, small

from .test_keys import dial

CONFIG = small("checkpoints.every = 1", 'transport.protocol = "tcp"', rounds=150, algorithm="added")
ENDLESS = small('transport.protocol = "tcp"', "transport.keys = false", rounds=100_000)
WAITING = """
import os, time
while client.node == 0 and peers.round == 2 and not os.path.exists("all are connected"):
    time.sleep(0.01)
client.learn()
peers.exchange(dict.fromkeys(client.neighbours, client.theta))
"""


def test_peers_who_say_nothing_leave_a_run_the_files_that_it_needs(with_round, start, tmp_path):
    """As many connections as can be opened, to one client, while another holds the run up."""
    few = 1000  # open files a process may have: less than there are connections
    options = {"cwd": tmp_path, "env": with_round(WAITING)}
    going = start(CONFIG, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (few, few)), **options)

    def address() -> str:
        with contextlib.suppress(sqlite3.Error, ValueError):  # there is no database yet, or no client in it
            [(found,)] = going.folder.rows("SELECT address FROM node WHERE node = 1")
            return found
        return ""

    going.until(address)
    host, port = address().removeprefix("tcp://").split(":")
    with contextlib.ExitStack() as idle:
        for _ in range(2 * few):
            peer = idle.enter_context(socket.socket())
            peer.setblocking(False)
            peer.connect_ex((host, int(port)))
        (tmp_path / "all are connected").touch()
        going.ends(0, seconds=150)
    quiet = start(CONFIG, "--set", "transport.protocol=ipc", "--engine", "threads", **options)
    quiet.ends(0, seconds=150)
    assert_same_states(going.folder, quiet.folder, 150)


def about_to_send(address: str) -> socket.socket:
    """A connection by hand that has sent its greeting and READY: ZMTP 3.0, NULL."""
    peer = dial(address)
    peer.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER\x08Identity" + struct.pack(">I", 0)
    peer.sendall(bytes([4, len(ready)]) + ready)
    peer.settimeout(100)
    heard = b""
    while b"READY" not in heard:
        heard += peer.recv(1000)
    return peer


@pytest.mark.skipif(sys.platform != "linux", reason="this system does not bound the memory of a process")
@pytest.mark.parametrize("frame", [b"\1\1x", b"\3" + struct.pack(">Q", 2000) + bytes(2000)], ids=["short", "long"])
def test_a_client_that_such_a_message_ends_is_told_in_one_line(start, frame):
    going = start(ENDLESS)
    going.until_round(3)
    [(pid, address)] = going.folder.rows("SELECT pid, address FROM node WHERE node = 1")
    client = psutil.Process(pid)
    limit, _ = client.rlimit(psutil.RLIMIT_DATA)
    assert 1 << 30 <= limit < 4 << 30
    fewer = client.memory_info().data + (50 << 20)  # a GiB takes its time
    client.rlimit(psutil.RLIMIT_DATA, (fewer, -1))
    many = frame * ((1 << 19) // len(frame))
    with about_to_send(address) as peer, contextlib.suppress(ConnectionError):
        while True:
            peer.sendall(many)
    printed = going.ends(1)
    assert "client 1 died in round " in printed
    assert "killed by SIGABRT, for what came in took all the memory that it may have" in printed
