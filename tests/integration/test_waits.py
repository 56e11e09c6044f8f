"""Clients that wait for what nobody sends: who waits for whom is told long before patience is over."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import time

import pytest
from runs import CLI, default_signals

ROUND = """
client.learn()
next_, before = (client.node + 1) % client.clients, (client.node - 1) % client.clients
"""
SMALL = """
clients = 4
rounds = 3
[topology]
kind = "ring"
[algorithm]
name = "added"
[transport]
timeout = 300.0
"""
TO_ONE_ONLY = "peers.exchange({next_: client.theta})"
ONE_IS_FORGOTTEN = "client.node == 2 and peers.receive([before])"
ONE_IS_LATE = "client.node == 1 and __import__('time').sleep(600); peers.exchange({next_: client.theta}, [before])"


@pytest.fixture
def waiting(tmp_path, with_round):
    """Starts a run in which somebody waits; returns it, and what is recorded of that."""
    processes = []

    def waiting(body: str, *options: str) -> tuple[subprocess.Popen, list[tuple[int, str]]]:
        environment = with_round(ROUND + body)
        (tmp_path / "mine.toml").write_text(SMALL)
        process = subprocess.Popen(
            [*CLI, "run", "mine.toml", "--out", "run", *options],
            cwd=tmp_path,
            env=environment | {"SHEAFGOSSIP_TEST_CONSTANTS": "tell_wait_s=0.5"},
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=default_signals,
        )
        processes.append(process)
        while not (told := _told(tmp_path / "run" / "run.sqlite")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        return process, told

    yield waiting
    for process in processes:
        process.kill()
        process.communicate()


def _told(records) -> list[tuple[int, str]]:
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(records, timeout=10)) as database:
        return database.execute("SELECT node, detail FROM event WHERE kind = 'waiting'").fetchall()
    return []


@pytest.mark.parametrize("engine", ["local", "threads"])
def test_an_exchange_with_one_neighbour_only_is_told_as_a_circle_of_who_waits_for_whom(waiting, engine):
    process, told = waiting(TO_ONE_ONLY, "--engine", engine)
    ((node, text),) = told
    assert text.startswith("waits in a circle where nobody sends what the other waits for, in round 1: ")
    for i in range(4):
        assert f"client {i} for client {(i + 1) % 4}" in text
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.count(f"client {node} {text}") == 1  # a line of the progress


def test_who_waits_for_a_client_that_has_done_all_its_rounds_is_told_so(waiting):
    _, told = waiting(ONE_IS_FORGOTTEN)
    assert told[-1] == (2, "waits for client 1 in round 1, which has completed all its rounds")


def test_who_waits_for_a_client_at_work_is_told_of_it_by_name(waiting):
    _, told = waiting(ONE_IS_LATE)
    assert told[0][0] == 2
    assert told[0][1].startswith("waits for client 1 in round 1, for ")
    assert "circle" not in told[0][1]


def test_the_failure_in_the_end_says_it_first(tmp_path, with_round):
    environment = with_round(ROUND + TO_ONE_ONLY)
    (tmp_path / "mine.toml").write_text(SMALL.replace("300.0", "3.0"))
    done = subprocess.run(
        [*CLI, "run", "mine.toml", "--quiet"],
        cwd=tmp_path,
        env=environment | {"SHEAFGOSSIP_TEST_CONSTANTS": "tell_wait_s=0.5"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1
    first, second, *_ = done.stderr.splitlines()
    assert "waits in a circle" in first
    assert "sent nothing for 3 s in round 1" in second


def test_slow_clients_of_a_wall_clock_scenario_are_no_news(tmp_path):
    (tmp_path / "mine.toml").write_text(
        SMALL.replace("added", "d-psgd")
        + '[time]\nclock = "wall"\n[compute]\nstep_s = 0.05\nslowdown = [1, 1, 1, 20]\n'
    )
    done = subprocess.run(
        [*CLI, "run", "mine.toml", "--out", "run"],
        cwd=tmp_path,
        env=os.environ | {"SHEAFGOSSIP_TEST_CONSTANTS": "tell_wait_s=0.2"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert _told(tmp_path / "run" / "run.sqlite") == []
