"""What a process has used so far, as the kernel tells it."""

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from ...metrics.records import ResourceRecord

_SHARE = 0.005
"""Of a process's CPU time: what samples may take, since the kernel walks over all of the memory for each."""


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


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Memory that a client keeps from round to round, by what it is for; see ResourceRecord."""

    theta: int = 0
    maps: int = 0
    history: int = 0
    buffers: int = 0


def sample(node: int, wall_s: float, state: StateBytes | None = None, *, pid: int | None = None) -> ResourceRecord:
    """Memory and CPU time of this process, or of ``pid``. Raises psutil.Error when that process is gone."""
    rss, pss, uss = _memory(pid)
    if pid is None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        cpu_s = time.process_time()
    else:
        times = psutil.Process(pid).cpu_times()
        peak, cpu_s = rss, times.user + times.system
    state = state or StateBytes()
    return ResourceRecord(
        node=node,
        wall_s=wall_s,
        rss=rss,
        pss=pss,
        uss=uss,
        peak_rss=peak,
        cpu_s=cpu_s,
        state_bytes=state.theta + state.maps + state.history + state.buffers,
        theta_bytes=state.theta,
        map_bytes=state.maps,
        history_bytes=state.history,
        buffer_bytes=state.buffers,
    )


def _memory(pid: int | None) -> tuple[int, int, int]:
    """RSS, PSS and USS, in bytes. A client reads its own without psutil: what that touches would be more than these."""
    if pid is not None or sys.platform != "linux":
        memory = psutil.Process(pid).memory_full_info()
        return memory.rss, getattr(memory, "pss", memory.rss), memory.uss
    fields = Path("/proc/self/smaps_rollup").read_bytes().split()
    kilobytes = {name: int(fields[place + 1]) for place, name in enumerate(fields) if name.endswith(b":")}
    uss = kilobytes[b"Private_Clean:"] + kilobytes[b"Private_Dirty:"] + kilobytes[b"Private_Hugetlb:"]
    return kilobytes[b"Rss:"] * 1024, kilobytes[b"Pss:"] * 1024, uss * 1024
