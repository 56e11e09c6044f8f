"""What the launcher makes of clients that wait for one another."""

import pytest

from sheafgossip.launcher.run.waits import Wait, Waits

SETTLED = 100.0


def waits_of(**wanted: tuple[list[int], int, dict[int, int]]) -> Waits:
    """c3=([5], 7, {5: 1}): client 3, in round 7, waits for the first message of client 5, to which it has sent one."""
    waits = Waits("client {}".format)
    for name, (whom, round, sent) in wanted.items():
        waits.note(int(name[1:]), Wait(dict.fromkeys(whom, (round, 0)), round, sent), 5.0, now=0.0)
    return waits


def test_clients_that_wait_in_a_circle_for_what_nobody_has_sent_are_named_in_turn_and_once():
    waits = waits_of(c0=([1], 1, {1: 1}), c1=([2], 1, {2: 1}), c2=([0], 1, {0: 1}))
    news = waits.news(set(), SETTLED)
    assert news.hopeless
    assert news.text.endswith(": client 0 for client 1, client 1 for client 2, client 2 for client 0")
    assert waits.news(set(), 2 * SETTLED) is None


@pytest.mark.parametrize("of_the_other", [([0], 1, {0: 1}), ([0], 2, {0: 0})], ids=["under way", "gone on"])
def test_what_a_client_has_sent_before_it_waits_or_may_have_sent_makes_no_circle(of_the_other):
    assert waits_of(c0=([1], 1, {1: 1}), c1=of_the_other).news(set(), SETTLED) is None


def test_who_waits_for_one_that_has_done_all_rounds_is_told_so():
    news = waits_of(c3=([5], 7, {})).news({5}, SETTLED)
    assert (news.node, news.hopeless) == (3, True)
    assert news.text == "waits for client 5 in round 7, which has completed all its rounds"


def test_who_keeps_most_waiting_and_waits_for_nobody_is_told_once_until_it_takes_twice_as_long():
    waits = waits_of(c1=([2, 9], 4, {}), c3=([9], 4, {}), c2=([8], 4, {}))
    news = waits.news(set(), SETTLED)
    assert not news.hopeless
    assert news.text == "waits for client 9 in round 4, for 5 s so far, and so do 1 more"
    assert waits.news(set(), SETTLED) is None
    waits.note(3, Wait({9: (4, 0)}, 4, {}), 9.0, SETTLED)
    assert waits.news(set(), 2 * SETTLED) is None
    waits.note(3, Wait({9: (4, 0)}, 4, {}), 10.5, SETTLED)
    news = waits.news(set(), 2 * SETTLED)
    assert "for 10 s so far" in news.text


def test_nothing_is_told_of_a_wait_that_is_over_or_has_just_changed():
    waits = waits_of(c3=([5], 7, {}))
    assert waits.news({5}, 0.1) is None
    waits.over(3)
    assert waits.news({5}, SETTLED) is None
