"""Memory that steps free is kept from one to the next, and given back while a client waits."""

import platform
import subprocess
import sys

import pytest

STEPS = """
import resource, time
from pathlib import Path

import numpy as np

from sheafgossip.node.process.heap import Heap

PAGE = resource.getpagesize()

def step():
    layers = [np.ones(2 << 17) for _ in range(8)]  # of 2 MB

def faults_of(steps):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE

heap = Heap() if {own} else None
step()
print(faults_of(10) * PAGE >> 20)
if heap:
    while time.process_time() < 0.3:  # of work
        step()
    before = resident()
    heap.give_back()
    print(before - resident() >> 20)
    step()
    before = resident()
    heap.give_back()  # so soon it is not worth it
    print(before - resident() >> 20)
"""


def measured(own: bool) -> list[int]:
    script = STEPS.replace("{own}", str(own))
    return [int(word) for word in subprocess.check_output([sys.executable, "-c", script], text=True).split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_steps_keep_what_they_free_until_the_client_waits():
    (taken_anew,) = measured(own=False)
    assert taken_anew >= 100  # MB, of ten steps with 16 MB each
    taken_anew, given_back, given_back_soon = measured(own=True)
    assert taken_anew <= 1
    assert given_back >= 12
    assert given_back_soon == 0
