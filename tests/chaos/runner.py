"""Runs a case in processes of its own: to its end, or until it is killed at some moment, and looks what is left."""

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from .generator import Case
from .records import Records

ENDS_S = 20.0
"""Processes whose launcher was killed have this long to end: they need two seconds, on a machine that is not busy."""


class Hung(Exception):
    """A run that did not end by itself; the text says where each process stood."""


@dataclass
class Place:
    """Where a case runs: its folders, and the processes that belong to it, which all have this temporary folder."""

    path: Path
    environment: dict[str, str]
    killed_at_once: int = field(default=0)
    """How often everything was killed, so that nobody could clean up."""

    @property
    def temporary(self) -> Path:
        return self.path / "t"

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                ours = process.environ().get("TMPDIR") == str(self.temporary)
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def left(self) -> list[str]:
        """What is there, some time after the end, that should not be."""
        deadline = time.monotonic() + ENDS_S
        while True:
            found = [f"process left: {name_of(process)}" for process in self.processes()]
            folders = [f"temporary folder left: {path.name}" for path in sorted(self.temporary.iterdir())]
            found += folders if len(folders) > self.killed_at_once else []
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.1)


@contextlib.contextmanager
def place_for(case: Case) -> Iterator[Place]:
    path = Path(tempfile.mkdtemp(prefix="chaos-"))
    environment = {"SHEAFGOSSIP_TEST_CONSTANTS": case.variable, "PYTHONFAULTHANDLER": "1"}
    place = Place(path, {"TMPDIR": str(path / "t")} | environment)
    place.temporary.mkdir()
    (path / "case.toml").write_text(case.toml)
    try:
        yield place
    finally:
        for process in place.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(path, ignore_errors=True)


class Going:
    """A run in progress, or one that is taken up."""

    def __init__(self, place: Place, folder: Path, *, again: bool = False, failpoints: str = ""):
        self.place, self.folder = place, folder
        words = ["resume", str(folder)] if again else ["run", str(place.path / "case.toml"), "--out", str(folder)]
        self._said = place.path / f"said-{time.monotonic_ns()}"
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sheafgossip.launcher.cli", *words, "--quiet"],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env=os.environ | place.environment | {"SHEAFGOSSIP_FAILPOINTS": failpoints},
                start_new_session=True,
            )
        self.began = time.monotonic()

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def end(self, seconds: float) -> int:
        """The exit code. Raises Hung."""
        try:
            return self.process.wait(max(0.0, self.began + seconds - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Hung(f"no end after {seconds:g} s\n{self._autopsy()}") from None

    def ended_before(self, moment: float) -> bool:
        """Waits until so many seconds after the start, unless it ends before."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, self.began + moment - time.monotonic()))
        return self.process.poll() is not None

    def kill(self, *, everything: bool) -> None:
        """The launcher, or all at once."""
        for process in [*(self._descendants() if everything else ()), psutil.Process(self.process.pid)][::-1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        self.place.killed_at_once += everything

    def kill_client(self, share: float) -> int | None:
        """A client at random, of those at work, ``share`` of the way through their numbers; None: there was none."""
        pids = {process.pid for process in self._descendants()}
        clients = [(node, pid) for node, pid in self.clients() if pid in pids]
        if not clients or self.process.poll() is not None:
            return None
        node, pid = clients[min(int(share * len(clients)), len(clients) - 1)]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return node

    def clients(self) -> list[tuple[int, int]]:
        """(client, process) of those that have begun to learn."""
        records = Records(self.folder)
        return records.rows("SELECT node, pid FROM node WHERE role = 'client' ORDER BY node") if records.begun else []

    def _descendants(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def _autopsy(self) -> str:
        """Which processes there are, where each one stands, what each client has done last."""
        processes = self.place.processes()
        lines = [f"  {name_of(process)}" for process in processes]
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGABRT)  # faulthandler says where it was
        psutil.wait_procs(processes, 5)
        for log in sorted((self.folder / "log").glob("*.log")):
            stack = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.startswith("  File")]
            if stack:
                lines.append(f"  {log.stem}: {' < '.join(stack[:6])}")
        with contextlib.suppress(sqlite3.Error):
            rounds = Records(self.folder).rows("SELECT node, max(round) FROM round GROUP BY node")
            lines.append("  last rounds: " + ", ".join(f"{node}: {round}" for node, round in rounds))
        return "\n".join([*lines, *self.said.splitlines()[-5:]])


def name_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} {' '.join(process.cmdline())[-100:]}"
    return f"{process.pid}"
