"""How many more processes and threads the system lets this user, and this container, have."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_ADMINISTRATES = 1 << 24 | 1 << 21  # CAP_SYS_RESOURCE, CAP_SYS_ADMIN: whom the kernel counts no processes for


@dataclass(frozen=True)
class Allowance:
    """``most`` processes and threads, of which so many are ``used``; ``where`` it is set, for people."""

    most: int
    used: int
    where: str

    @property
    def free(self) -> int:
        return max(0, self.most - self.used)


def allowances(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Iterator[Allowance]:
    """Every limit that holds for what this process starts."""
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if most != resource.RLIM_INFINITY and not _is_exempt(proc):
        yield Allowance(most, _tasks_of_user(), f"ulimit -u {most}")
    for folder in _groups(proc, cgroups):
        with contextlib.suppress(OSError, ValueError):  # "max", or no limit here
            most, used = (int((folder / name).read_text()) for name in ("pids.max", "pids.current"))
            yield Allowance(most, used, f"{folder / 'pids.max'} is {most}")


def _is_exempt(proc: Path) -> bool:
    if os.getuid() == 0:
        return True
    with contextlib.suppress(OSError, IndexError, ValueError):
        return bool(int((proc / "self/status").read_text().split("CapEff:")[1].split()[0], 16) & _ADMINISTRATES)
    return False


def _tasks_of_user() -> int:
    """Threads of all processes of this user."""
    used, uid = 0, os.getuid()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            used += process.num_threads() if process.uids().real == uid else 0
    return used


def _groups(proc: Path, cgroups: Path) -> Iterator[Path]:
    """The folders of the control groups, of version 1 or 2, that limit this process; the nearest first.

    In a container they may be those of the container though their names are those of the host.
    """
    with contextlib.suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers and "pids" not in controllers.split(","):
                continue
            roots = [cgroups / "pids"] if controllers else [cgroups, cgroups / "unified"]
            for root in roots:
                within = root / name.lstrip("/")
                yield from (folder for folder in (within, *within.parents) if folder.is_relative_to(root))
