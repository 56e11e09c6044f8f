"""What a process has used so far, as the kernel tells it."""

from __future__ import annotations

import resource
import time

import psutil

from ..metrics.records import ResourceRecord


def sample(node: int, wall_s: float, state_bytes: int = 0, pid: int | None = None) -> ResourceRecord:
    """Memory and CPU time of this process, or of ``pid``. Raises psutil.Error when that process is gone."""
    process = psutil.Process(pid)
    memory = process.memory_full_info()  # one pass over /proc/PID/smaps_rollup
    if pid is None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        cpu_s = time.process_time()
    else:
        times = process.cpu_times()
        peak, cpu_s = memory.rss, times.user + times.system
    return ResourceRecord(node, wall_s, memory.rss, memory.pss, memory.uss, peak, cpu_s, state_bytes)
