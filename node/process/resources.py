"""What a process has used so far, as the kernel tells it."""

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from ...metrics.records import ResourceRecord

_SHARE = 0.005  # of a process's CPU time: what samples may take, since the kernel walks over all of the memory for each


class Pace:
    """When to take samples: every so many seconds, and not more often than their share allows."""

    def __init__(self, every: float):
        self._every = every
        self._last_s = 0.0
        self._last_cpu_s = time.thread_time()
        self._cost_s = 0.003  # on a server, for the memory of a client

    def due(self, now: float) -> bool:
        return now - self._last_s >= self._every and time.thread_time() - self._last_cpu_s >= self._cost_s / _SHARE

    @contextmanager
    def sampling(self, now: float) -> Iterator[None]:
        start = time.thread_time()
        yield
        self._last_s, self._last_cpu_s = now, time.thread_time()
        self._cost_s = self._last_cpu_s - start


def sample(
    node: int, wall_s: float, state: tuple[int, int, int, int] = (0, 0, 0, 0), *, pid: int | None = None
) -> ResourceRecord:
    """Memory and CPU time of this process, or of ``pid``. Raises psutil.Error when that process is gone.

    ``state`` are the bytes that a client keeps from round to round: theta, maps, their history, buffers.
    """
    if pid is None and sys.platform == "linux":  # without psutil: what that touches would be more than these
        fields = Path("/proc/self/smaps_rollup").read_bytes().split()
        kilobytes = {name: int(fields[place + 1]) for place, name in enumerate(fields) if name.endswith(b":")}
        private = kilobytes[b"Private_Clean:"] + kilobytes[b"Private_Dirty:"] + kilobytes[b"Private_Hugetlb:"]
        rss, pss, uss = (number * 1024 for number in (kilobytes[b"Rss:"], kilobytes[b"Pss:"], private))
    else:
        memory = psutil.Process(pid).memory_full_info()
        rss, pss, uss = memory.rss, getattr(memory, "pss", memory.rss), memory.uss
    if pid is None:
        peak, cpu_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, time.process_time()
    else:
        times = psutil.Process(pid).cpu_times()
        peak, cpu_s = rss, times.user + times.system
    return ResourceRecord(node, wall_s, rss, pss, uss, peak, cpu_s, sum(state), *state)
