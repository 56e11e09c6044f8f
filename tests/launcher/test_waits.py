"""What the launcher makes of clients that wait for one another."""

import pytest

from sheafgossip.launcher.run.journal import Waits
from sheafgossip.transport.control import Waiting

SETTLED = 100.0


def waiting(whom: list[int], round: int, sent: dict[int, int], seconds: float = 5.0) -> Waiting:
    """In this round, for the first message of each; so many messages have been sent to others."""
    return Waiting([(other, round, 0) for other in whom], round, list(sent.items()), seconds)


def waits_of(**clients: Waiting) -> Waits:
    """``c3`` is the wait of client 3."""
    waits = Waits("client {}".format)
    for name, wait in clients.items():
        waits.note(int(name[1:]), wait, now=0.0)
    return waits


def test_clients_that_wait_in_a_circle_for_what_nobody_has_sent_are_named_in_turn_and_once():
    waits = waits_of(c0=waiting([1], 1, {1: 1}), c1=waiting([2], 1, {2: 1}), c2=waiting([0], 1, {0: 1}))
    _, text = waits.news(set(), SETTLED)
    assert waits.hopeless
    assert text.endswith(": client 0 for client 1, client 1 for client 2, client 2 for client 0")
    assert waits.news(set(), 2 * SETTLED) is None


@pytest.mark.parametrize("of_the_other", [([0], 1, {0: 1}), ([0], 2, {0: 0})], ids=["under way", "gone on"])
def test_what_a_client_has_sent_before_it_waits_or_may_have_sent_makes_no_circle(of_the_other):
    assert waits_of(c0=waiting([1], 1, {1: 1}), c1=waiting(*of_the_other)).news(set(), SETTLED) is None


def test_who_waits_for_one_that_has_done_all_rounds_is_told_so_once_that_has_settled_and_while_it_lasts():
    waits = waits_of(c3=waiting([5], 7, {}))
    assert waits.news({5}, 0.1) is None
    assert waits.news({5}, SETTLED) == (3, "waits for client 5 in round 7, which has completed all its rounds")
    assert waits.hopeless
    waits = waits_of(c3=waiting([5], 7, {}))
    waits.over(3)
    assert waits.news({5}, SETTLED) is None


def test_who_keeps_most_waiting_and_waits_for_nobody_is_told_once_until_it_takes_twice_as_long():
    waits = waits_of(c1=waiting([2, 9], 4, {}), c3=waiting([9], 4, {}), c2=waiting([8], 4, {}))
    assert waits.news(set(), SETTLED) == (1, "waits for client 9 in round 4, for 5 s so far, and so do 1 more")
    assert not waits.hopeless
    assert waits.news(set(), SETTLED) is None
    waits.note(3, waiting([9], 4, {}, 9.0), SETTLED)
    assert waits.news(set(), 2 * SETTLED) is None
    waits.note(3, waiting([9], 4, {}, 10.5), SETTLED)
    assert "for 10 s so far" in waits.news(set(), 2 * SETTLED)[1]
