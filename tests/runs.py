"""Runs of tests: how they are started, looked at, cut off and taken up. Its fixtures are there for every test."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

import collecting
from chaos.records import Records, differences, number_of, same_arrays
from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.config.sections import RunConfig
from sheafgossip.launcher.processes.engine import Engine, EngineName, open_engine, private_folder
from sheafgossip.launcher.studies import runner
from sheafgossip.launcher.studies.folders import planned_in
from sheafgossip.launcher.studies.runner import Finished, Means, resume, run_each

ROOT = Path(__file__).parents[1]
CLI = [sys.executable, "-m", "sheafgossip.launcher.cli"]


def small(
    *lines: str,
    clients: int = 4,
    rounds: int = 3,
    samples: int = 100,
    topology: str = "ring",
    algorithm: str = "d-psgd",
) -> str:
    """The configuration of a small run; ``lines`` say more. Those that are "" or 0 have their defaults."""
    keys = {"clients": clients, "rounds": rounds, "data.samples": samples}
    keys |= {"topology.kind": topology, "algorithm.name": algorithm}
    return "\n".join([*(f"{key} = {value!r}" for key, value in keys.items() if value), *lines, ""])


# -- looking at a run --------------------------------------------------------------------------------------------------


class RunFolder(Records):
    def theta(self, round: int) -> dict[int, np.ndarray]:
        return {node: arrays["theta"] for node, arrays in self.states(round).items()}

    def thetas(self, round: int) -> np.ndarray:
        """(clients, size), where all have one size."""
        return np.stack(list(self.theta(round).values()))

    def states(self, round: int) -> dict[int, dict[str, np.ndarray]]:
        return self._arrays(f"state/round-{round:06d}")

    def shards(self) -> dict[int, dict[str, np.ndarray]]:
        return self._arrays("shards")

    def _arrays(self, folder: str) -> dict[int, dict[str, np.ndarray]]:
        return {number_of(file): load_file(file) for file in sorted(self.path.glob(f"{folder}/node-*.safetensors"))}

    def edges(self) -> list[tuple[int, int]]:
        hellos = self.rows("SELECT src, dst FROM overhead WHERE kind = 'hello'")
        return sorted({(min(pair), max(pair)) for pair in hellos})

    def payload(self) -> dict[tuple[int, int, int], tuple]:
        """{(src, dst, round): (messages, payload bytes, message bytes, wire bytes)}"""
        rows = self.rows("SELECT src, dst, round, messages, payload_bytes, message_bytes, wire_bytes FROM traffic")
        return {row[:3]: row[3:] for row in rows}

    def sent(self) -> dict[tuple[int, int, int], tuple[int, int]]:
        """{(src, dst, round): (messages, payload bytes)}"""
        return {key: row[:2] for key, row in self.payload().items()}

    def runs(self) -> dict[str, RunFolder]:
        return {path.name: RunFolder(path) for path in sorted(self.path.iterdir()) if path.is_dir()}

    def copy(self, path: Path) -> RunFolder:
        return RunFolder(Path(shutil.copytree(self.path, path)))

    def alter(self, script: str) -> None:
        with contextlib.closing(sqlite3.connect(self.path / "run.sqlite")) as records, records:
            records.executescript(script)

    def cut_after(self, round: int) -> None:
        """Makes it what it would be if it had been interrupted after this round."""
        tables = ("round", "traffic", "used", "edge")
        self.alter(";".join(f"DELETE FROM {table} WHERE round > {round}" for table in tables))
        self.alter("DELETE FROM event WHERE kind = 'finish'")
        for folder in (self.path / "state").glob("round-*"):
            if int(folder.name.partition("-")[2]) > round:
                shutil.rmtree(folder)


def assert_same_states(one: RunFolder, other: RunFolder, round: int | None = None) -> None:
    """To the bit, of all clients: after a round, or at every checkpoint."""
    ours, theirs = (each.files("state" if round is None else f"state/round-{round:06d}") for each in (one, other))
    assert ours.keys() == theirs.keys() != set()
    assert [name for name in ours if not same_arrays(ours[name], theirs[name])] == []


def assert_same(one: RunFolder, other: RunFolder) -> None:
    """All that a seed decides, whatever engine ran them and however often, to the bit."""
    assert list(differences(one, other, interrupted=True)) == []


# -- running to the end ------------------------------------------------------------------------------------------------


def command(*words: object, code: int | None = 0, timeout: float = 150, **options) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own; it must end with ``code``."""
    done = subprocess.run([*CLI, *map(str, words)], capture_output=True, text=True, timeout=timeout, **options)
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done


def in_a_terminal(*words: object, typed: Sequence[tuple[str, str]] = (), **environment: str) -> tuple[int, str]:
    """(exit code, all that was written) of a command in a terminal of 80 columns; of each pair in ``typed`` the second
    is typed when the first has been written after those before."""
    pid, terminal = pty.fork()
    if not pid:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ |= {"TERM": "xterm-256color", "PYTHONUTF8": "1", "COLUMNS": "80", "LINES": "24"} | environment
        os.execv(sys.executable, [*CLI, *map(str, words)])
    written, looked_at, left = b"", 0, list(typed)
    with contextlib.suppress(OSError):  # the other end is closed
        while True:
            written += os.read(terminal, 1 << 16)
            while left and left[0][0].encode() in written[looked_at:]:
                awaited, answer = left.pop(0)
                looked_at = written.index(awaited.encode(), looked_at) + len(awaited)
                os.write(terminal, answer.encode())
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), written.decode()


@contextlib.contextmanager
def _signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@_signals_as_before()
def run_here(configs: Sequence[RunConfig], folder: Path, engine: EngineName = "local") -> list[Finished]:
    """With this process as launcher, and as collector, too, where clients are threads."""
    with collecting.in_a_thread() if engine == "threads" else contextlib.nullcontext():
        return run_each(planned_in(folder, configs), means=Means(engine))


@_signals_as_before()
def run_here_again(folder: RunFolder, engine: EngineName = "local", rounds: int | None = None) -> Finished:
    with collecting.in_a_thread() if engine == "threads" else contextlib.nullcontext():
        finished = resume(folder.path, means=Means(engine), rounds=rounds)
    assert finished.outcome.status == "finish", finished.outcome
    return finished


def _to_a_good_end(place: Path, text: str, overrides: Sequence[str], engine: EngineName) -> RunFolder:
    """Half of a small run is a launcher's imports: this process is it, unless variables ask for something else."""
    config, folder = place / "config.toml", place / "run"
    config.write_text(text)
    if any(name.startswith("SHEAFGOSSIP_") for name in os.environ):
        options = [word for override in overrides for word in ("--set", override)]
        command("run", config, "--out", folder, "--engine", engine, *options)
    else:
        outcomes = [each.outcome for each in run_here(load(config, overrides), folder, engine)]
        assert all(outcome.status == "finish" for outcome in outcomes), outcomes
    return RunFolder(folder)


@pytest.fixture(scope="module")
def one_fork_server() -> Iterator[None]:
    """Runs that this process launches one after the other share a fork server, as those of a sweep do: to start it is
    half of a small run. Another environment has another."""
    kept: dict[object, Engine] = {}

    def end() -> None:
        while kept:
            kept.popitem()[1].__exit__()

    def open_kept(name: EngineName, *others) -> contextlib.AbstractContextManager[Engine]:
        if name != "local":
            return open_engine(name, *others)
        environment = frozenset(each for each in os.environ.items() if each[0] != "PYTEST_CURRENT_TEST")
        if environment not in kept:
            end()
            with contextlib.chdir(ROOT):  # a test's own folder goes with it
                kept[environment] = open_engine(name, *others)
        return contextlib.nullcontext(kept[environment])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "open_engine", open_kept)
        yield
        end()


@pytest.fixture(scope="module")
def run_in_processes(tmp_path_factory) -> Callable[..., RunFolder]:
    """Runs a configuration text, changed by overrides KEY=VALUE, to its end, which must be a good one."""
    return lambda text, *overrides: _to_a_good_end(tmp_path_factory.mktemp("run"), text, overrides, "local")


@pytest.fixture(scope="module")
def run_in_threads(tmp_path_factory) -> Callable[..., RunFolder]:
    """Does so with threads as clients: they have the bits of processes, in half the time. Runs that are the same are
    run once a module, so their folders must stay as they are."""
    known: dict[tuple[str, ...], RunFolder] = {}

    def run(*asked: str) -> RunFolder:
        if asked not in known:
            text, *overrides = asked
            known[asked] = _to_a_good_end(tmp_path_factory.mktemp("threads"), text, overrides, "threads")
        return known[asked]

    return run


@pytest.fixture
def load_cores() -> Iterator[Callable[[], None]]:
    """Called, keeps every core busy until the test ends."""
    busy: list[subprocess.Popen] = []
    yield lambda: busy.extend(subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2))
    for process in busy:
        process.kill()
        process.wait()


# -- runs that are disturbed -------------------------------------------------------------------------------------------


def until(
    reached: Callable[[], object], process: subprocess.Popen | None = None, seconds: float = 150, every_s: float = 0.02
) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"not reached within {seconds} s"
        time.sleep(every_s)


@dataclass
class Going:
    """A command in progress, and the folder of its run."""

    process: subprocess.Popen
    folder: RunFolder

    def until(self, reached: Callable[[], object], seconds: float = 150) -> None:
        until(reached, self.process, seconds)

    def until_round(self, round: int, away: int = 0) -> None:
        """Waits until every client has completed a round, but for those that are ``away`` in it."""
        far = f"sum(node IN (SELECT node FROM round WHERE round = {round}))"
        all_are = f"SELECT {far} >= max(1, count(*) - {away}) FROM node WHERE role = 'client'"

        def reached() -> bool:
            with contextlib.suppress(sqlite3.Error):
                return self.folder.rows(all_are) == [(1,)]
            return False

        self.until(reached)

    def pid(self, node: int) -> int:
        of_node = f"SELECT pid FROM node WHERE node = {node}"
        until(lambda: self.folder.rows(of_node))
        return self.folder.rows(of_node)[0][0]

    def processes(self) -> list[psutil.Process]:
        """Everything that belongs to the run: the launcher and all its descendants."""
        launcher = psutil.Process(self.process.pid)
        return [launcher, *launcher.children(recursive=True)]

    def process_of(self, module: str) -> psutil.Process:
        (found,) = [each for each in psutil.Process(self.process.pid).children() if module in each.cmdline()]
        return found

    def signal(self, number: int = signal.SIGINT) -> None:
        self.process.send_signal(number)

    def kill(self, *others: psutil.Process) -> None:
        for process in (self.process, *others):
            with contextlib.suppress(psutil.NoSuchProcess):  # clients end by themselves once their launcher has gone
                process.kill()
        self.process.communicate()

    def kill_everything(self) -> None:
        self.kill(*self.processes()[1:])

    def end(self, seconds: float = 100, typed: str | bytes | None = None) -> tuple[int, str]:
        """(exit code, everything printed)"""
        out, err = self.process.communicate(typed, timeout=seconds)
        return self.process.returncode, (out or "") + err if err else out

    def ends(self, code: int, act: Callable[[], object] = lambda: None, seconds: float = 100) -> str:
        """What it has said when it ends by itself, after ``act``, as it must: with ``code``, and leaving no process."""
        processes = self.processes()
        act()
        found, said = self.end(seconds)
        assert found == code, said
        assert "Traceback" not in (said or "")
        until(lambda: not alive(processes), seconds=2)  # what was killed gives back its memory first
        return said


def default_signals() -> None:
    """In a process that is about to begin: SIGINT is ignored where tests run in the background, SIGHUP under nohup."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Going]]:
    """Starts a command and returns at once; what is left of it at the end is killed and fails the test."""
    started: list[Going] = []

    def begin(*words: object, folder: Path | None = None, **options) -> Going:
        """``folder`` is that of its run, below ``cwd``."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "preexec_fn": default_signals}
        process = subprocess.Popen([*CLI, *map(str, words)], **pipes | options)
        started.append(Going(process, RunFolder(folder or tmp_path / "run")))
        return started[-1]

    yield begin
    left = [going for going in started if going.process.poll() is None]
    for going in left:
        going.kill_everything()
    assert not left, "the command did not end"


@pytest.fixture
def start(begin: Callable[..., Going], tmp_path_factory) -> Callable[..., Going]:
    """Starts a run of a configuration text, as ``begin`` does."""

    def start(text: str, *options: str, **more) -> Going:
        place = tmp_path_factory.mktemp("going")
        (place / "going.toml").write_text(text)
        return begin("run", place / "going.toml", "--out", place / "run", *options, folder=place / "run", **more)

    return start


@pytest.fixture
def cut(start: Callable[..., Going], monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunFolder]:
    """Runs a configuration text until its launcher is killed while client 0 stands at its checkpoint of a round, and
    the one before is on record of all clients, but for those that are ``away`` then."""

    def cut(text: str, round: int, away: int = 0) -> RunFolder:
        every = tomllib.loads(text)["checkpoints"]["every"]
        number = 1 + round // every  # there is one of round 0
        with monkeypatch.context() as patch:
            patch.setenv("SHEAFGOSSIP_FAILPOINTS", f"state renamed@node-0000:{number}=delay 150")
            patch.setenv("SHEAFGOSSIP_TEST_CONSTANTS", "gather_s=0")  # client 0 keeps no records to itself then
            going = start(text)
        going.until((going.folder.path / f"state/round-{round:06d}/node-0000.safetensors").exists)
        going.until_round(round - every, away=away)
        going.kill()
        return going.folder

    return cut


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have neither ended nor do so at this moment; zombies have."""

    def lives(process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return False

    return list(filter(lives, processes))


# -- algorithms of tests -----------------------------------------------------------------------------------------------

_ADDED = """
from dataclasses import dataclass

import sheafgossip as sg


@dataclass(frozen=True)
class Added(sg.Algorithm):
    def round(self, client, peers):
"""


@pytest.fixture
def with_round(tmp_path: Path) -> Callable[[str], str]:
    """Returns the line of a configuration whose algorithm has a round of this body."""

    def with_round(body: str) -> str:
        (tmp_path / "added.py").write_text(_ADDED + textwrap.indent(body, 8 * " "))
        return f'algorithm.use = "{tmp_path}/added.py:Added"'

    return with_round


@pytest.fixture(scope="session", autouse=True)
def swept() -> Iterator[None]:
    """What killed runs have left goes when the next run starts, so also after the last one."""
    yield
    folder, lock = private_folder()
    shutil.rmtree(folder)
    os.close(lock)


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
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error, OSError):
                    if process.pid != os.getpid() and process.environ().get("RAY_TMPDIR") == str(folder):
                        process.kill()
                        process.wait(10)
            shutil.rmtree(folder, ignore_errors=True)
