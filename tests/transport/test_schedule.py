import math

import pytest

from sheafgossip.transport.schedule import can_be_used, chosen_round, needed_round


@pytest.mark.parametrize(
    ("round", "staleness", "needed"), [(1, 0, 1), (5, 0, 5), (5, 2, 3), (2, 2, 0), (1, 3, 0), (5, math.inf, 0)]
)
def test_a_wait_is_for_a_message_no_older_than_allowed(round, staleness, needed):
    assert needed_round(round, staleness) == needed


@pytest.mark.parametrize("silence", ["wait", "skip", "stale"])
@pytest.mark.parametrize("staleness", [0, 1, 3, math.inf])
@pytest.mark.parametrize("round", [1, 4])
@pytest.mark.parametrize("arrived", [set(), {1}, {3}, {4}, {1, 6}, {4, 6}], ids=str)
def test_a_message_that_is_used_has_arrived_and_is_as_fresh_as_the_rule_says(arrived, round, staleness, silence):
    freshest = max(arrived, default=0)
    used = chosen_round(round, freshest, round in arrived, staleness, silence)
    assert used in arrived | {0}
    if staleness == 0:
        assert used == (round if round in arrived else freshest if silence == "stale" else 0)
    else:
        assert used == (freshest if freshest >= round - staleness or silence == "stale" else 0)


@pytest.mark.parametrize("staleness", [0, 2, math.inf])
def test_what_may_be_used_later_is_stored(staleness):
    arrived = {2, 4, 5, 7}
    stored = {each for each in arrived if can_be_used(each, 4, max(arrived), staleness)}
    for silence in ("wait", "stale"):
        for round in range(4, 9):
            used = chosen_round(round, max(arrived), round in arrived, staleness, silence)
            assert used in stored | {0}
    assert stored == ({4, 5, 7} if staleness == 0 else {7})
