"""Where a run comes from: the versions of what computes it, the machine, the command line, and when that was."""

import os
import platform
import shlex
import socket
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ...metrics.schema import PREPARED

_PACKAGES = {"sheafgossip": "sheafgossip", "torch": "torch", "numpy": "numpy", "zmq": "pyzmq"}
_OURS = ("cli.py", "__main__.py", "sheafgossip")


def origin() -> dict[str, str]:
    """Facts for table ``meta``."""
    return machine() | {"command": _command(), PREPARED: datetime.now(UTC).isoformat(timespec="microseconds")}


def machine() -> dict[str, str]:
    """What another machine, or another installation, would have otherwise."""
    versions = {name: _version(package) for name, package in _PACKAGES.items()}
    return versions | {"python": platform.python_version(), "host": socket.gethostname(), "cpu": _cpu()}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "?"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(named, platform.processor() or platform.machine())}, {os.cpu_count()} logical cores"


def _command() -> str:
    program, *arguments = sys.argv or [""]
    return shlex.join(["sheafgossip" if Path(program).name in _OURS else program, *arguments])
