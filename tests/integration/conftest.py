"""Real runs: the command line in a process of its own, its clients, its sockets, its files."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from sheafgossip.launcher.config.sections import RunConfig, load
from sheafgossip.launcher.studies.runner import Finished, run_all


@pytest.fixture(scope="session")
def ray_folder() -> Iterator[Path]:
    """Where all of Ray's files go, the address of its latest cluster included: a user's own stay as they are. It goes
    with all processes that know of it."""
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))  # short, for the paths of Ray's sockets must be
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(folder))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        try:
            yield folder
        finally:
            end_all_of(folder)
            shutil.rmtree(folder, ignore_errors=True)


def end_all_of(ray_folder: Path) -> None:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get("RAY_TMPDIR") == str(ray_folder):
                process.kill()
                process.wait(10)


@dataclass
class RunFolder:
    path: Path

    def rows(self, query: str) -> list[tuple]:
        connection = sqlite3.connect(self.path / "run.sqlite", timeout=10)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    def theta(self, round: int) -> dict[int, np.ndarray]:
        return {node: arrays["theta"] for node, arrays in self.states(round).items()}

    def states(self, round: int) -> dict[int, dict[str, np.ndarray]]:
        files = sorted((self.path / "state" / f"round-{round:06d}").glob("node-*.safetensors"))
        return {int(file.stem.removeprefix("node-")): load_file(file) for file in files}

    def shards(self) -> dict[int, dict[str, np.ndarray]]:
        files = sorted((self.path / "shards").glob("node-*.safetensors"))
        return {int(file.stem.removeprefix("node-")): load_file(file) for file in files}

    def edges(self) -> list[tuple[int, int]]:
        hellos = self.rows("SELECT src, dst FROM overhead WHERE kind = 'hello'")
        return sorted({(min(pair), max(pair)) for pair in hellos})

    def payload(self) -> dict[tuple[int, int, int], tuple]:
        rows = self.rows("SELECT src, dst, round, messages, payload_bytes, message_bytes, wire_bytes FROM traffic")
        return {row[:3]: row[3:] for row in rows}

    def resume(self, code: int = 0) -> str:
        """Takes the run up; it must end with ``code``. Returns what it says on stderr."""
        done = subprocess.run([*CLI, "resume", str(self.path)], capture_output=True, text=True, timeout=150)
        assert done.returncode == code, done.stderr
        return done.stderr


CLI = [sys.executable, "-m", "sheafgossip.launcher.cli"]


def _command(config: Path, folder: Path, *options: str) -> list[str]:
    return [*CLI, "run", str(config), "--out", str(folder), *options]


ROOT = Path(__file__).parents[2]


@pytest.fixture
def with_algorithm(tmp_path: Path) -> Callable[[str, str], dict[str, str]]:
    """Makes a copy of the package that knows one more algorithm: its source, and its line in the table. Returns the
    environment in which ``python -m sheafgossip...`` is that copy."""

    def add(source: str, line: str) -> dict[str, str]:
        package = tmp_path / "sheafgossip"
        package.mkdir()
        for room in ("launcher", "metrics", "topology", "transport"):
            (package / room).symlink_to(ROOT / room)
        shutil.copytree(ROOT / "node", package / "node")
        algorithms = package / "node" / "algorithms"
        (algorithms / "added.py").write_text(source)
        table = (algorithms / "__init__.py").read_text()
        name = line.partition(": ")[2]
        table = table.replace("from .local", f"from .added import {name}\nfrom .local")
        (algorithms / "__init__.py").write_text(table.replace("] = {\n", f"] = {{\n    {line},\n"))
        return os.environ | {"PYTHONPATH": str(tmp_path)}

    return add


@pytest.fixture
def run(whole_run: Callable[..., RunFolder]) -> Callable[..., RunFolder]:
    return whole_run


@pytest.fixture
def whole_run(tmp_path: Path) -> Callable[..., RunFolder]:
    """Runs a configuration text to its end, which must be a good one.

    This process is its launcher: half of a small run is a launcher's imports. One with options, or with variables of
    this program in its environment, has a launcher of its own.
    """
    count = 0

    def run(text: str, *options: str) -> RunFolder:
        nonlocal count
        count += 1
        config, folder = tmp_path / f"config-{count}.toml", tmp_path / f"run-{count}"
        config.write_text(text)
        if options or any(name.startswith("SHEAFGOSSIP_") for name in os.environ):
            done = subprocess.run(_command(config, folder, *options), capture_output=True, text=True, timeout=150)
            assert done.returncode == 0, done.stdout + done.stderr
        else:
            finished = run_here(load(config), folder)
            assert all(each.outcome.status == "finish" for each in finished), [each.outcome for each in finished]
        return RunFolder(folder)

    return run


def run_here(configs: Sequence[RunConfig], folder: Path) -> list[Finished]:
    """With this process as launcher, whose handlers of signals are afterwards those that it had before."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        return run_all(configs, folder)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def assert_same_states(one: RunFolder, other: RunFolder, round: int) -> None:
    """To the bit, of all clients."""
    ours, theirs = one.states(round), other.states(round)
    assert ours.keys() == theirs.keys()
    for node in ours:
        assert ours[node].keys() == theirs[node].keys()
        for name in ours[node]:
            assert np.array_equal(ours[node][name], theirs[node][name]), (round, node, name)


@dataclass
class Going:
    """A run in progress, to be disturbed."""

    process: subprocess.Popen[str]
    folder: RunFolder

    def until_round(self, round: int, seconds: float = 150, away: int = 0) -> None:
        """Waits until every client has completed a round, but for those that are ``away`` in it."""

        def done() -> bool:
            with contextlib.suppress(sqlite3.Error):
                of = "FROM node WHERE role = 'client'"
                ((clients, far),) = self.folder.rows(
                    f"SELECT count(*), sum(node IN (SELECT node FROM round WHERE round = {round})) {of}"
                )
                return clients > 0 and far >= max(1, clients - away)
            return False

        self.until(done, seconds)

    def until(self, reached: Callable[[], bool], seconds: float = 150) -> None:
        """Waits for it, while the run goes on."""
        deadline = time.monotonic() + seconds
        while not reached():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, f"the run did not come so far within {seconds} s"
            time.sleep(0.05)

    def pid(self, node: int, seconds: float = 150) -> int:
        """Others may be rounds ahead before a client's own records are stored."""
        end = time.monotonic() + seconds
        while not (found := self.folder.rows(f"SELECT pid FROM node WHERE node = {node}")):
            assert time.monotonic() < end, f"client {node} was not recorded within {seconds} s"
            time.sleep(0.05)
        return found[0][0]

    def processes(self) -> list[psutil.Process]:
        """Everything that belongs to the run: the launcher and all its descendants."""
        launcher = psutil.Process(self.process.pid)
        return [launcher, *launcher.children(recursive=True)]

    def kill(self) -> None:
        """The launcher, and with it all others."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def end(self, seconds: float) -> tuple[int, str]:
        """(exit code, everything printed) of a run that ends by itself within ``seconds``."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out + err


def heeding_signals() -> None:
    """In a process that is about to begin: SIGINT is ignored where tests run in the background, SIGHUP under nohup."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Going]]:
    """Starts a configuration text and returns at once; what is left of it at the end is killed and fails the test."""
    started: list[Going] = []

    def start(text: str, *options: str) -> Going:
        config, folder = tmp_path / "going.toml", tmp_path / f"going-{len(started)}"
        config.write_text(text)
        process = subprocess.Popen(
            _command(config, folder, *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=heeding_signals,
        )
        started.append(Going(process, RunFolder(folder)))
        return started[-1]

    yield start
    for going in started:
        if going.process.poll() is None:
            for process in going.processes():  # some may be suspended
                process.kill()
            going.process.communicate()
            pytest.fail("the run did not end")


@pytest.fixture
def cut(start: Callable[..., Going], monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunFolder]:
    """Runs a configuration text until its launcher is killed while client 0 stands at its checkpoint of a round, and
    the one before is on record of all clients, but for those that are ``away`` then."""

    def cut(text: str, round: int, away: int = 0) -> RunFolder:
        every = int("".join(*re.findall(r"\[checkpoints\]\nevery = (\d+)|checkpoints\.every = (\d+)", text)))
        number = 1 + round // every  # there is one of round 0
        monkeypatch.setenv("SHEAFGOSSIP_FAILPOINTS", f"state renamed@node-0000:{number}=delay 150")
        monkeypatch.setenv("SHEAFGOSSIP_TEST_CONSTANTS", "gather_s=0")  # client 0 keeps no records to itself then
        going = start(text)
        monkeypatch.delenv("SHEAFGOSSIP_FAILPOINTS")
        monkeypatch.delenv("SHEAFGOSSIP_TEST_CONSTANTS")
        going.until(lambda: (going.folder.path / f"state/round-{round:06d}/node-0000.safetensors").exists())
        going.until_round(round - every, away=away)
        going.kill()
        return going.folder

    return cut


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have neither ended nor do so at this moment; zombies have."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


_ADDED = '''
"""One that does what a test wants."""

from dataclasses import dataclass
from typing import Literal

from .base import Algorithm


@dataclass(frozen=True)
class Settings:
    name: Literal["added"] = "added"


class Added(Algorithm):
    Settings = Settings

    @classmethod
    def vectors(cls, settings, d_i, d_j, common=0):
        return (d_i,)

    def round(self, client, peers):
'''


@pytest.fixture
def with_round(with_algorithm: Callable[[str, str], dict[str, str]]) -> Callable[[str], dict[str, str]]:
    """The environment of runs that have an algorithm "added", of which this is a round."""
    return lambda body: with_algorithm(_ADDED + textwrap.indent(body, 8 * " "), '"added": Added')
