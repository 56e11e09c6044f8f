"""What each process has for itself: times of the parts of its work, waits that stand still while it does, constants."""

import contextlib
import math
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from sheafgossip.transport import stopwatch
from sheafgossip.transport.environment import TEST_CONSTANTS, Constants, parse_constants
from sheafgossip.transport.stopwatch import Stopwatch, parts_of, suspended


def compute(seconds: float) -> None:
    """Takes so much CPU time of this thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_the_parts_add_up_to_the_whole_and_a_part_within_a_part_has_its_own_time():
    def now() -> np.ndarray:
        return np.array([time.thread_time(), time.perf_counter()])

    before, watch, begun = now(), Stopwatch("first"), now()
    with watch.during("outer"):
        compute(0.02)
        with watch.during("inner"):
            compute(0.05)
        compute(0.02)
    watch.switch("last")
    compute(0.01)
    end, spent, after = now(), watch.read(), now()
    assert spent.keys() == {"first", "outer", "inner", "last", "io"}
    whole = np.sum([part for name, part in spent.items() if name != "io"], axis=0)
    assert (end - begun <= whole + 1e-6).all()
    assert (whole <= after - before + 1e-6).all()
    for name, seconds in (("inner", 0.05), ("outer", 0.04), ("last", 0.01)):
        assert spent[name].cpu_s == pytest.approx(seconds, abs=5e-3)


def test_cpu_time_of_other_threads_is_io():
    watch = Stopwatch("a")
    thread = threading.Thread(target=compute, args=(0.05,))
    thread.start()
    thread.join()
    spent = watch.read()
    assert spent["io"] == (pytest.approx(0.05, rel=0.3), 0)
    assert spent["a"].cpu_s < 0.03


@pytest.mark.skipif(stopwatch.undisturbed() is time.perf_counter_ns, reason="this kernel does not tell")
def test_an_undisturbed_clock_stands_still_while_another_has_the_processor_and_goes_on_in_sleep():
    mine = os.sched_getaffinity(0)
    place = {min(mine)}
    busy = subprocess.Popen(["sh", "-c", "while :; do :; done"], preexec_fn=lambda: os.sched_setaffinity(0, place))
    try:
        os.sched_setaffinity(0, place)
        clock = stopwatch.undisturbed()
        begun = clock() / 1e9, time.perf_counter()
        compute(0.15)
        time.sleep(0.05)
        undisturbed, elapsed = clock() / 1e9 - begun[0], time.perf_counter() - begun[1]
    finally:
        os.sched_setaffinity(0, mine)
        busy.kill()
        busy.wait()
    assert elapsed > 0.26
    # A machine that shares its processors with others takes some of the time, too, and does not tell.
    assert 0.19 < undisturbed < 0.2 + (elapsed - 0.2) / 3


@pytest.mark.parametrize("running", [True, False])
def test_a_switch_takes_a_few_microseconds_at_most_and_a_watch_that_does_not_run_tells_nothing(running):
    watch = Stopwatch("a", running=running)
    start = time.thread_time()
    for _ in range(1000):
        watch.switch("b")
    assert time.thread_time() - start < 0.01
    watch.blocked_for(1.0)
    assert bool(watch.read()) is running


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """Time that passes only when it is told to."""
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(stopwatch, "time", clock)
    return clock


def waited(clock, seconds: float, stops: dict[int, float], looks: tuple[int, ...] = ()) -> float:
    """Seconds until the wait is over; some parts, by number, take longer, in others somebody ``looks``, debugging."""
    began = clock.now
    for number, until in enumerate(parts_of(seconds)):
        assert until > clock.now
        with suspended() if number in looks else contextlib.nullcontext():
            clock.now = until + stops.get(number, 0.0)
    return clock.now - began


@pytest.mark.parametrize("seconds", [0.3, 1.5, 60.0, 3600.5])
def test_time_in_which_a_process_was_stopped_or_looked_at_does_not_count_and_all_other_does(clock, seconds):
    assert waited(clock, seconds, {}) == pytest.approx(seconds, abs=0.02)
    part = seconds / max(8, math.ceil(seconds))
    stopped, looks = {1: 100.0, 3: 5000.0}, (0, 2, 5)
    assert waited(clock, seconds, stopped, looks) == pytest.approx(seconds + 5100.0 + 5 * part, abs=0.02)
    a_little_late = dict.fromkeys(range(4000), 0.2)
    assert waited(clock, seconds, a_little_late) == pytest.approx(seconds, abs=0.4)


def test_a_debugger_that_is_left_before_a_part_has_ended_has_held_it_up_all_the_same(clock):
    parts = parts_of(1.0)
    for _ in range(100):
        until = next(parts)
        with suspended():
            pass
        clock.now = until


@pytest.mark.parametrize("text", ["linger_s", "burst=0.5", "linger_s=-1"])
def test_a_test_chooses_constants_and_what_is_none_is_refused(text):
    assert repr(parse_constants("window_bytes=4096,linger_s=0.1")) == repr(Constants(window_bytes=4096, linger_s=0.1))
    with pytest.raises(ValueError, match=r"must be a number .*, and not below 0"):
        parse_constants(text)


def test_a_process_with_an_unknown_constant_does_not_start():
    command = [sys.executable, "-c", "import sheafgossip.transport.environment"]
    done = subprocess.run(command, env=os.environ | {TEST_CONSTANTS: "windows=1"}, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"error: {TEST_CONSTANTS}: 'windows=1': no such constant; allowed are window_bytes")
