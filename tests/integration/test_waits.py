"""Clients that wait for what nobody sends: who waits for whom is told long before the timeout."""

import os
import sqlite3
from contextlib import suppress

import pytest

from runs import Going, RunFolder, small
from sheafgossip.launcher.run.journal import Waits
from sheafgossip.transport.control import Waiting

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


# -- what the launcher makes of what clients say -----------------------------------------------------------------------

SETTLED = 100.0


def wait(whom: list[int], round: int, sent: dict[int, int], seconds: float = 5.0) -> Waiting:
    """In this round, for the first message of each; so many messages have been sent to others."""
    return Waiting([(other, round, 0) for other in whom], round, list(sent.items()), seconds)


def waits_of(**clients: Waiting) -> Waits:
    """``c3`` is the wait of client 3."""
    waits = Waits("client {}".format)
    for name, told in clients.items():
        waits.note(int(name[1:]), told, now=0.0)
    return waits


def test_clients_that_wait_in_a_circle_for_what_nobody_has_sent_are_named_in_turn_and_once():
    waits = waits_of(c0=wait([1], 1, {1: 1}), c1=wait([2], 1, {2: 1}), c2=wait([0], 1, {0: 1}))
    _, text = waits.news(set(), SETTLED)
    assert waits.hopeless
    assert text.endswith(": client 0 for client 1, client 1 for client 2, client 2 for client 0")
    assert waits.news(set(), 2 * SETTLED) is None


@pytest.mark.parametrize("of_the_other", [([0], 1, {0: 1}), ([0], 2, {0: 0})], ids=["under way", "gone on"])
def test_what_a_client_has_sent_before_it_waits_or_may_have_sent_makes_no_circle(of_the_other):
    assert waits_of(c0=wait([1], 1, {1: 1}), c1=wait(*of_the_other)).news(set(), SETTLED) is None


def test_who_waits_for_one_that_has_done_all_rounds_is_told_so_once_that_has_settled_and_while_it_lasts():
    waits = waits_of(c3=wait([5], 7, {}))
    assert waits.news({5}, 0.1) is None
    assert waits.news({5}, SETTLED) == (3, "waits for client 5 in round 7, which has completed all its rounds")
    assert waits.hopeless
    waits = waits_of(c3=wait([5], 7, {}))
    waits.over(3)
    assert waits.news({5}, SETTLED) is None


def test_who_keeps_most_waiting_and_waits_for_nobody_is_told_once_until_it_takes_twice_as_long():
    waits = waits_of(c1=wait([2, 9], 4, {}), c3=wait([9], 4, {}), c2=wait([8], 4, {}))
    assert waits.news(set(), SETTLED) == (1, "waits for client 9 in round 4, for 5 s so far, and so do 1 more")
    assert not waits.hopeless
    assert waits.news(set(), SETTLED) is None
    waits.note(3, wait([9], 4, {}, 9.0), SETTLED)
    assert waits.news(set(), 2 * SETTLED) is None
    waits.note(3, wait([9], 4, {}, 10.5), SETTLED)
    assert "for 10 s so far" in waits.news(set(), 2 * SETTLED)[1]
