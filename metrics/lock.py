"""The lock of a folder, held by who works in it. The kernel's lock on a file ends with the last process that holds it,
however that ends, and counts for all processes of a machine, in whichever container they are."""

import fcntl
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

NAME = "lock"
_RETRY_S = 0.02
_NO_SURPRISE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def acquire(folder: Path, wait_s: float) -> int:
    """Returns a descriptor that holds the lock until it is closed, here and in every process that has inherited it.
    Raises BlockingIOError where another holds it for longer than ``wait_s``, or any other OSError."""
    deadline = time.monotonic() + wait_s
    while True:
        descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | _NO_SURPRISE, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):  # who had it before may have removed the file meanwhile
                if os.path.samestat((folder / NAME).lstat(), os.fstat(descriptor)):
                    return descriptor
        except OSError as error:
            if not isinstance(error, BlockingIOError) or time.monotonic() >= deadline:
                os.close(descriptor)
                raise
            time.sleep(_RETRY_S)
        os.close(descriptor)


def release(folder: Path, descriptor: int) -> None:
    with suppress(OSError):
        (folder / NAME).unlink()
    os.close(descriptor)


def remove(folder: Path) -> None:
    """Removes a folder and what is in it, as far as it can, and the lock last: where whoever does so is killed, others
    still tell that nobody holds it."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != NAME:
                path.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def is_held(folder: Path) -> bool:
    """Tells whether anybody holds it. Asking keeps others from the lock for less than a moment, for which they wait."""
    with suppress(OSError):
        descriptor = os.open(folder / NAME, os.O_RDONLY | _NO_SURPRISE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False
