"""Where a run comes from: the versions of what computes it, the machine, the command line, and when that was."""

import os
import platform
import shlex
import socket
import sys
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ...metrics.store import PREPARED

_PACKAGES = {"sheafgossip": "sheafgossip", "torch": "torch", "numpy": "numpy", "zmq": "pyzmq"}
_OURS = ("cli.py", "__main__.py", "sheafgossip")


def origin() -> dict[str, str]:
    """Facts for table ``meta``."""
    program, *arguments = sys.argv or [""]
    command = shlex.join(["sheafgossip" if Path(program).name in _OURS else program, *arguments])
    return machine() | {"command": command, PREPARED: datetime.now(UTC).isoformat(timespec="microseconds")}


def machine() -> dict[str, str]:
    """What another machine, or another installation, would have otherwise."""
    facts = dict.fromkeys(_PACKAGES, "?")
    for name, package in _PACKAGES.items():
        with suppress(PackageNotFoundError):
            facts[name] = version(package)
    processor = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):  # not Linux
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    cpu = f"{processor}, {os.cpu_count()} logical cores"
    return facts | {"python": platform.python_version(), "host": socket.gethostname(), "cpu": cpu}
