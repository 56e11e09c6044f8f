"""A private folder for Unix sockets that goes with the processes that use it, however they end.

It holds a file that is locked for as long as one of them lives. Where all of them were killed at once nobody is left to
remove it: the next one to make such a folder does.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

_PREFIX, _LOCK = "sheafgossip-", "lock"


def make() -> tuple[Path, int]:
    """A new one, and the descriptor that keeps it: to be passed on to each process that uses it."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # most of all where somebody keeps it
            found = folder.lstat()
            ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if ours and stat.S_IMODE(found.st_mode) == 0o700:
                lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                finally:
                    os.close(lock)
                remove(folder)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = False
        except OSError as error:  # a file system without locks has to do without
            taken = error.errno == errno.EWOULDBLOCK
        if not taken and os.fstat(lock).st_nlink:
            return folder, lock
        os.close(lock)  # somebody swept it away before it was locked


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
