"""A private folder for Unix sockets that goes with the processes that use it, however they end.

It holds a file that is locked for as long as one of them lives. Where all of them were killed at once nobody is left to
remove it: the next one to make such a folder does.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

_PREFIX, _LOCK = "sheafgossip-", "lock"


def make() -> tuple[Path, int]:
    """A new one, and the descriptor that keeps it: to be passed on to each process that uses it."""
    _sweep()
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        with contextlib.suppress(BlockingIOError):
            _take(lock)
            if os.fstat(lock).st_nlink:
                return folder, lock
        os.close(lock)  # somebody swept it away before it was locked


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _sweep() -> None:
    """Removes those of ours that nobody keeps any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if _is_ours(folder) and _is_left(folder / _LOCK):
                remove(folder)


def _is_ours(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == 0o700


def _is_left(lock: Path) -> bool:
    """Raises OSError where that is not known, most of all where somebody keeps it."""
    descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> None:
    """Raises BlockingIOError where another has it. A file system without locks has to do without."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass
