"""Times of the parts of a process's work: exclusive, complete, and cheap to take."""

import threading
import time

import pytest

from sheafgossip.transport.channel import Channel
from sheafgossip.transport.endpoint import NeighbourTimeout
from sheafgossip.transport.stopwatch import Stopwatch


def compute(seconds: float) -> None:
    """Takes so much CPU time of this thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_the_parts_add_up_to_the_whole_and_a_part_within_a_part_has_its_own_time():
    cpu, wall = time.thread_time(), time.perf_counter()
    watch = Stopwatch("first")
    with watch.during("outer"):
        compute(0.02)
        with watch.during("inner"):
            compute(0.05)
        compute(0.02)
    watch.switch("last")
    compute(0.01)
    spent = watch.read()
    cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
    assert spent.keys() == {"first", "outer", "inner", "last", "io"}
    assert sum(part.cpu_s for name, part in spent.items() if name != "io") == pytest.approx(cpu, abs=1e-3)
    assert sum(part.elapsed_s for part in spent.values()) == pytest.approx(wall, abs=1e-3)
    assert spent["inner"].cpu_s == pytest.approx(0.05, abs=5e-3)
    assert spent["outer"].cpu_s == pytest.approx(0.04, abs=5e-3)
    assert spent["last"].cpu_s == pytest.approx(0.01, abs=5e-3)


def test_cpu_time_of_other_threads_is_io():
    watch = Stopwatch("a")
    thread = threading.Thread(target=compute, args=(0.05,))
    thread.start()
    thread.join()
    spent = watch.read()
    assert spent["io"].cpu_s == pytest.approx(0.05, rel=0.3)
    assert spent["io"].elapsed_s == 0
    assert spent["a"].cpu_s < 0.03


def test_a_watch_that_does_not_run_tells_nothing():
    watch = Stopwatch("a", running=False)
    watch.blocked_for(1.0)
    assert watch.read() == {}


def test_waiting_for_a_neighbour_is_wall_time_without_cpu_time(network):
    first, _ = network.linked(2, [(0, 1)])
    first.endpoint.stopwatch = watch = Stopwatch("maps")
    start = time.monotonic()
    with pytest.raises(NeighbourTimeout):
        first.peers({1: Channel((), (3,))}, timeout=0.3).receive()
    assert 0.299 <= time.monotonic() - start < 5
    spent = watch.read()
    assert spent["waiting"].elapsed_s == pytest.approx(0.3, rel=0.2)
    assert spent["waiting"].cpu_s == 0
    assert spent["exchange"].cpu_s < 0.03  # blocked in the kernel, not turning in circles
    assert spent["exchange"].elapsed_s < 0.15


def test_a_switch_takes_a_few_microseconds_at_most():
    watch = Stopwatch("a")
    start = time.thread_time()
    for _ in range(1000):
        watch.switch("b")
    assert time.thread_time() - start < 0.01
