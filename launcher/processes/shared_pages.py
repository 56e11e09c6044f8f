"""Keeps more of the fork server's memory shared with its clients. A page of 4 kB becomes a client's own as soon as it
writes there, and CPython writes even to what it only reads: counts of references, and counters in code that it
specializes. So references to what is there before a client is are no longer counted, where the interpreter can do
without (from Python 3.12 on); the code that clients run is moved together, away from all other code between which it
was loaded; and what they allocate later finds no gaps between what they only read.

Linux, CPython and glibc; elsewhere, pages are shared as they come."""

import contextlib
import ctypes
import gc
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, FunctionType
from typing import Any

PAYS_FROM = 16  # clients: it takes 0.2 s
_SMALLEST, _LARGEST = 24, 1 << 16  # bytes that malloc hands out in one piece: its least, and more than most gaps have
_TRIES = 256  # so many gaps may be larger


@contextlib.contextmanager
def code_run() -> Iterator[dict[int, CodeType]]:
    """The code of all Python functions that threads begun meanwhile call, by its address, as equal code need not be the
    same."""
    codes: dict[int, CodeType] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            codes[id(frame.f_code)] = frame.f_code

    threading.setprofile(note)
    try:
        yield codes
    finally:
        threading.setprofile(None)


def move_together(codes: Mapping[int, CodeType]) -> None:
    """Gives every function whose code is among ``codes`` a copy of it; the copies lie side by side."""
    thread = threading.Thread(target=_copy, args=[codes])  # malloc has a new thread begin in memory of its own
    thread.start()
    thread.join()


def _copy(codes: Mapping[int, CodeType]) -> None:
    copies: dict[int, CodeType] = {}

    def copy(code: CodeType) -> CodeType:
        if id(code) not in copies:
            constants = tuple(copy(part) if id(part) in codes else part for part in code.co_consts)
            copies[id(code)] = code.replace(co_consts=constants)
        return copies[id(code)]

    gc.unfreeze()
    for function in gc.get_objects():
        if type(function) is FunctionType and id(function.__code__) in codes:
            function.__code__ = copy(function.__code__)
    gc.freeze()


def make_immortal() -> None:
    """Makes all objects that are there immortal (PEP 683), as None is: nobody counts references to them any more, so
    none of them is written to by being read, and none is ever freed. What was frozen has to be so anew."""
    if not knows_immortal_objects():
        return
    counts, count, never = ctypes.c_uint32.from_address, sys.getrefcount, sys.getrefcount(None)
    of_none = counts(id(None)).value
    gc.unfreeze()
    found = gc.get_objects()
    found += gc.get_referents(*found)
    while found:
        mortal = []
        for each in found:
            if count(each) != never:
                counts(id(each)).value = of_none
                mortal.append(each)
        found = gc.get_referents(*mortal)


def knows_immortal_objects() -> bool:
    """Whether an object begins with a number that counts its references, and that of None makes it immortal."""
    counts_otherwise = sysconfig.get_config_var("Py_GIL_DISABLED")
    if sys.implementation.name != "cpython" or sys.version_info < (3, 12) or counts_otherwise:
        return False
    probe = object()
    held = [probe] * 1000
    return len(held) <= ctypes.c_uint32.from_address(id(probe)).value <= len(held) + 10


class _Usage(ctypes.Structure):
    """struct mallinfo2 of glibc, bytes."""

    _names = "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names]


def fill_gaps() -> None:
    """Takes the free memory between pieces in use, a fraction of a megabyte, for good: malloc of a client then goes on
    behind them, where nothing is shared yet."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        return
    usage, malloc, free = library.mallinfo2, library.malloc, library.free
    usage.restype, malloc.restype = _Usage, ctypes.c_void_p
    malloc.argtypes, free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
    free_bytes = usage().fordblks  # no more than that is taken, whatever malloc is at work
    if (end := _end_of_heap(usage, malloc, free)) is None:
        return
    size = _LARGEST
    while size >= _SMALLEST and free_bytes > 0:
        piece = malloc(size)
        if piece is None or piece >= end:  # no gap is as large
            free(piece)
            size = size * 7 // 8
        else:
            free_bytes -= size


def _end_of_heap(usage: Any, malloc: Any, free: Any) -> int | None:
    """The address behind all gaps; None where memory is not handed out as by glibc without changes to its settings."""
    taken: list[int | None] = []
    while len(taken) < _TRIES:
        before = usage()
        taken.append(malloc(_LARGEST))
        after = usage()
        if (after.keepcost, after.arena) != (before.keepcost, before.arena):  # what is left at the end has become less
            free(taken[-1])
            return taken[-1]
    for piece in taken:
        free(piece)
    return None
