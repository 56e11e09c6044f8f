"""The folders that this program works in: one process at a time, nothing but its own files, none of anybody else's."""

import errno
import os
import platform
import re
import shlex
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ...metrics import lock
from ...metrics.reader import open_records
from ...metrics.store import PREPARED, RunFolderError

MOMENT_S = 1.0  # how long who wants to work in a folder waits for those who only ask whether anybody does
STORING_S = 5.0  # the same for a launcher that was killed: for so long its collector may store what it has

_ATTEMPTS = 100
_ROOMS = ("shards", "plan", "log", "state", "vectors", "sent", "code")
_OWN = re.compile(  # all that a run writes; reports and the like are made later, by the user
    r"config\.toml(\.part)?|run\.sqlite(-wal|-shm|-journal)?|"
    r"((shards|plan)/node-\d{4,}|plan/links)\.safetensors(\.part)?|"
    r"(state/round-\d{6,}/(node|sent)-\d{4,}|sent/node-\d{4,}\.\d+)\.(safetensors|safetensors\.part|part)|"
    r"vectors/round-\d{6,}/node-\d{4,}\.safetensors(\.part)?|"
    r"log/(node-\d{4,}\.(log|used)|(collector|tracking)\.log)|code/([^/.][^/]*/)*[^/.][^/]*\.py"
)
_FOLDERS = re.compile(r"shards|plan|log|sent|code(/[^/.][^/]*(?<!\.py))*|(state|vectors)(/round-\d{6,})?")


class Claim(AbstractContextManager["Claim"]):
    """A folder that this process alone works in, until it leaves this as a context; it is made, and goes again if it is
    empty then. Raises ``taken`` where another is at work in it for longer than ``wait_s``, or OSError."""

    def __init__(self, folder: Path, taken: Exception, wait_s: float = MOMENT_S):
        self.folder = folder
        self._made: list[Path] = []
        try:
            self.descriptor = self._acquire(wait_s)
        except OSError as error:
            remove_empty(*self._made)
            if isinstance(error, BlockingIOError):
                raise taken from None
            raise

    def _acquire(self, wait_s: float) -> int:
        for _ in range(_ATTEMPTS):
            self._made += make(self.folder)
            with suppress(FileNotFoundError):  # another had made it, and has just removed it again
                return lock.acquire(self.folder, wait_s)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.folder))

    def clear(self) -> None:
        """Removes what runs write, and folders that are empty then."""
        for path in own_files(self.folder):
            path.unlink(missing_ok=True)  # SQLite removes its own when whoever read last ends
        several = [*_entries(self.folder / "state"), *_entries(self.folder / "vectors")]
        rounds = (path for path in several if path.name.startswith("round-"))
        remove_empty(*rounds, *(self.folder / room for room in _ROOMS))

    def __exit__(self, *_: object) -> None:
        lock.release(self.folder, self.descriptor)
        remove_empty(*self._made)


def make(folder: Path) -> list[Path]:
    """Makes the folder. Returns what was missing: itself first, then those above it."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        for each in reversed(missing):
            with suppress(FileExistsError):  # made by another meanwhile
                each.mkdir()
    except OSError:
        remove_empty(*missing)
        raise
    return missing


def remove_empty(*folders: Path) -> None:
    """In this order; those that hold something stay."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def own_files(folder: Path) -> list[Path]:
    """What runs have written in the folder; other files, links, and what lies behind links, are nobody's here."""
    named = [path for path in _below(folder) if _OWN.fullmatch(path.relative_to(folder).as_posix())]
    return [path for path in named if stat.S_ISREG(_mode(path) or 0)]


def remove_unfinished(folder: Path) -> None:
    """Removes what processes that were killed had begun to write."""
    for path in own_files(folder):
        if path.suffix == ".part":
            path.unlink()


def require_plain(folder: Path) -> None:
    """Raises RunFolderError where a path that a run writes to leads elsewhere, or is neither file nor folder."""
    for path in _below(folder):
        name = path.relative_to(folder).as_posix()
        if (kind := _mode(path)) is None:
            continue
        if stat.S_ISLNK(kind):
            wrong = "a symbolic link"
        elif not stat.S_ISDIR(kind) and _FOLDERS.fullmatch(name):
            wrong = "no folder"
        elif not stat.S_ISREG(kind) and (not stat.S_ISDIR(kind) or name == lock.NAME or _OWN.fullmatch(name)):
            wrong = "no file"
        else:
            continue
        raise RunFolderError(f"{folder}: {name} is {wrong}; a run has files and folders of its own there")


def _mode(path: Path) -> int | None:
    """None where it is gone: a run that goes on gives its files other names, and SQLite removes its own in the end."""
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return None


def _below(folder: Path) -> Iterator[Path]:
    """What lies where a run writes, without a look behind links."""
    for path in _entries(folder):
        if path.name in _ROOMS:
            yield path
            yield from _within(path, deeply=path.name in ("state", "vectors", "code"))
        elif path.name == lock.NAME or _OWN.fullmatch(path.name):
            yield path


def _within(folder: Path, *, deeply: bool) -> Iterator[Path]:
    for path in _entries(folder):
        yield path
        if deeply:
            yield from _within(path, deeply=True)


def _entries(folder: Path) -> list[Path]:
    """Returns what a folder holds; a link to one holds nothing."""
    return [] if folder.is_symlink() or not folder.is_dir() else list(folder.iterdir())


def relative(path: Path) -> Path:
    """Returns the path as seen from the working directory, where it lies below that."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


# -- facts about a run -------------------------------------------------------------------------------------------------


def recorded(folder: Path, query: str, *values: object) -> list[tuple]:
    """Raises RunFolderError."""
    with open_records(folder) as records:
        return records.execute(query, values).fetchall()


def facts(folder: Path) -> dict[str, str]:
    """What table ``meta`` tells of the run; of old versions' runs less. Raises RunFolderError."""
    return dict(recorded(folder, "SELECT key, value FROM meta"))


def origin() -> dict[str, str]:
    """Returns where a run comes from, for table ``meta``: versions, machine, command line and time."""
    program, *arguments = sys.argv or [""]
    ours = Path(program).name in ("cli.py", "__main__.py", "sheafgossip")
    command = shlex.join(["sheafgossip" if ours else program, *arguments])
    return machine() | {"command": command, PREPARED: datetime.now(UTC).isoformat(timespec="microseconds")}


def machine() -> dict[str, str]:
    """What another machine, or another installation, would have otherwise."""
    facts = {"sheafgossip": "?", "torch": "?", "numpy": "?", "zmq": "?"}
    for name in facts:
        with suppress(PackageNotFoundError):
            facts[name] = version("pyzmq" if name == "zmq" else name)
    processor = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):  # not Linux
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    cpu = f"{processor}, {os.cpu_count()} logical cores"
    return facts | {"python": platform.python_version(), "host": socket.gethostname(), "cpu": cpu}
