"""How long a client waits for its neighbours."""

import contextlib
import math

import pytest

from sheafgossip.transport import waiting


class Clock:
    """Time that passes only when it is told to."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    return clock


def waited(clock: Clock, seconds: float, stops: dict[int, float], looks: tuple[int, ...] = ()) -> float:
    """Seconds until the wait is over, where some parts of it (by number) take so much longer, and somebody looks with a
    debugger in others."""
    began = clock.now
    for number, until in enumerate(waiting.parts_of(seconds)):
        assert until > clock.now
        with waiting.suspended() if number in looks else contextlib.nullcontext():
            clock.now = until + stops.get(number, 0.0)
    return clock.now - began


@pytest.mark.parametrize("seconds", [0.3, 1.5, 60.0, 3600.5])
def test_time_in_which_a_process_was_stopped_or_looked_at_does_not_count_and_all_other_does(clock, seconds):
    assert waited(clock, seconds, {}) == pytest.approx(seconds, abs=0.02)
    part = seconds / max(8, math.ceil(seconds))
    stopped, looks = {1: 100.0, 3: 5000.0}, (0, 2, 5)
    assert waited(clock, seconds, stopped, looks) == pytest.approx(seconds + 5100.0 + 5 * part, abs=0.02)


def test_a_process_that_is_a_little_late_has_waited_all_the_same(clock):
    assert waited(clock, 1.5, dict.fromkeys(range(100), 0.2)) < 1.5 + 0.4


def test_a_debugger_that_is_left_before_a_part_has_ended_has_held_it_up_all_the_same(clock):
    parts = waiting.parts_of(1.0)
    for _ in range(100):
        until = next(parts)
        with waiting.suspended():
            pass
        clock.now = until
