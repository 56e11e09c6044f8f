"""Clients that wait for what nobody sends: who waits for whom is told long before the timeout."""

import os
import sqlite3
from contextlib import suppress

import pytest

from runs import Going, RunFolder, small

ROUND = """
client.learn()
next_, before = (client.node + 1) % client.clients, (client.node - 1) % client.clients
"""
SMALL = small("transport.timeout = 300.0", algorithm="added")
TO_ONE_ONLY = "peers.exchange({next_: client.theta})"
ONE_IS_FORGOTTEN = "client.node == 2 and peers.receive([before])"
ONE_IS_LATE = "client.node == 1 and __import__('time').sleep(600); peers.exchange({next_: client.theta}, [before])"


def told(folder: RunFolder) -> list[tuple[int, str]]:
    """What is recorded of somebody who waits."""
    with suppress(sqlite3.Error):
        return folder.rows("SELECT node, detail FROM event WHERE kind = 'waiting'")
    return []


@pytest.fixture
def waiting(begin, tmp_path, with_round):
    """Starts a run in which somebody waits."""

    def waiting(body: str, *options: str) -> Going:
        environment = with_round(ROUND + body) | {"SHEAFGOSSIP_TEST_CONSTANTS": "tell_wait_s=0.5"}
        (tmp_path / "mine.toml").write_text(SMALL)
        return begin("run", "mine.toml", "--out", "run", *options, cwd=tmp_path, env=environment)

    return waiting


def test_an_exchange_with_one_neighbour_only_is_told_as_a_circle_of_who_waits_for_whom(waiting):
    going = waiting(TO_ONE_ONLY, "--engine", "threads")
    going.until(lambda: told(going.folder))
    ((node, text),) = told(going.folder)
    assert text.startswith("waits in a circle where nobody sends what the other waits for, in round 1: ")
    for i in range(4):
        assert f"client {i} for client {(i + 1) % 4}" in text
    said = going.ends(130, going.signal, seconds=60)
    assert said.count(f"client {node} {text}") == 1  # a line of the progress


@pytest.mark.parametrize(
    ("body", "beginning"),
    [
        (ONE_IS_FORGOTTEN, "waits for client 1 in round 1, which has completed all its rounds"),
        (ONE_IS_LATE, "waits for client 1 in round 1, for "),
    ],
)
def test_who_waits_for_a_client_is_told_by_its_name_and_whether_it_has_done_all_its_rounds(waiting, body, beginning):
    going = waiting(body)
    going.until(lambda: any(text.startswith(beginning) for node, text in told(going.folder) if node == 2))
    assert not any("circle" in text for _, text in told(going.folder))
    going.kill_everything()


def test_the_failure_in_the_end_says_it_first(waiting):
    going = waiting(TO_ONE_ONLY, "--quiet", "--set", "transport.timeout=3.0")
    _, said = going.process.communicate(timeout=100)
    assert going.process.returncode == 1
    first, second, *_ = said.splitlines()
    assert "waits in a circle" in first
    assert "sent nothing for 3 s in round 1" in second


def test_slow_clients_of_a_wall_clock_scenario_are_no_news(start):
    slow = 'time.clock = "wall"\ncompute = {step_s = 0.05, slowdown = [1, 1, 1, 20]}\n'
    environment = os.environ | {"SHEAFGOSSIP_TEST_CONSTANTS": "tell_wait_s=0.2"}
    going = start(SMALL.replace("added", "d-psgd") + slow, env=environment)
    assert going.end()[0] == 0
    assert told(going.folder) == []
