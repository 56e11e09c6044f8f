"""Clients that wait for what nobody sends: who waits for whom is told long before the timeout."""

import os

import pytest

from runs import RunFolder, small
from sheafgossip.launcher.run.journal import Waits
from sheafgossip.transport.control import Waiting

IMPATIENT = os.environ | {"SHEAFGOSSIP_TEST_CONSTANTS": "tell_wait_s=0.5"}
TO_ONE_ONLY = """
client.learn()
peers.exchange({(client.node + 1) % client.clients: client.theta})
"""


def told(folder: RunFolder) -> list[tuple[int, str]]:
    """What is recorded of somebody who waits."""
    return folder.rows("SELECT node, detail FROM event WHERE kind = 'waiting'")


def test_the_failure_in_the_end_says_it_first(start, with_round):
    """Each sends to one neighbour only, and waits for the other."""
    going = start(small("transport.timeout = 3.0", with_round(TO_ONE_ONLY), algorithm=""), env=IMPATIENT)
    code, said = going.end()
    assert code == 1
    ((node, text),) = told(going.folder)
    assert text.startswith("waits in a circle where nobody sends what the other waits for, in round 1: ")
    for i in range(4):
        assert f"client {i} for client {(i + 1) % 4}" in text
    progress, _, error = said.partition("error: ")
    assert progress.count(f"client {node} {text}") == 1
    first, second, *_ = error.splitlines()
    assert "waits in a circle" in first
    assert "sent nothing for 3 s in round 1" in second


def test_who_waits_for_one_that_has_done_all_its_rounds_is_told_so_and_that_is_no_circle(start, with_round):
    of_one = with_round("client.node == 2 and peers.receive([1])")
    going = start(small("transport.timeout = 5.0", of_one, algorithm=""), env=IMPATIENT)
    assert going.end()[0] == 1
    assert any(
        said.startswith("waits for client 1 in round 1, which has completed all its") for _, said in told(going.folder)
    )
    assert not any("circle" in said for _, said in told(going.folder))


def test_slow_clients_of_a_wall_clock_scenario_are_no_news(start):
    slow = 'time.clock = "wall"\ncompute = {step_s = 0.05, slowdown = [1, 1, 1, 20]}\n'
    going = start(small(slow), env=os.environ | {"SHEAFGOSSIP_TEST_CONSTANTS": "tell_wait_s=0.2"})
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
