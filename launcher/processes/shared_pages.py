"""Keeps more of the fork server's memory shared with its clients. A page of 4 kB becomes a client's own as soon as it
writes there, and CPython writes even to what it only reads: counts of references, and counters in code that it
specializes. So the code that clients run is moved together here, away from all other code between which it was loaded,
and what they allocate later finds no gaps between what they only read.

Linux, CPython and glibc; elsewhere, pages are shared as they come."""

import contextlib
import ctypes
import gc
import threading
from collections.abc import Collection, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

PAYS_FROM = 16  # clients: it takes 0.1 s
_SMALLEST, _LARGEST = 24, 1 << 16  # bytes that malloc hands out in one piece: its least, and more than gaps have


@contextlib.contextmanager
def code_run() -> Iterator[set[CodeType]]:
    """The code of all Python functions that threads begun meanwhile call."""
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    threading.setprofile(note)
    try:
        yield codes
    finally:
        threading.setprofile(None)


def move_together(codes: Collection[CodeType]) -> None:
    """Gives every function whose code is among ``codes`` a copy of it; the copies lie side by side."""
    thread = threading.Thread(target=_copy, args=[codes])  # malloc has a new thread begin in memory of its own
    thread.start()
    thread.join()


def _copy(codes: Collection[CodeType]) -> None:
    copies: dict[int, CodeType] = {}  # by the original's address: code that is equal need not be the same

    def copy(code: CodeType) -> CodeType:
        if id(code) not in copies:
            inner = tuple(copy(part) if id(part) in wanted else part for part in code.co_consts)
            copies[id(code)] = code.replace(co_consts=inner)
        return copies[id(code)]

    wanted = {id(code) for code in codes}
    gc.unfreeze()
    for function in gc.get_objects():
        if type(function) is FunctionType and id(function.__code__) in wanted:
            function.__code__ = copy(function.__code__)
    gc.freeze()


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
    size, end = _LARGEST, 0
    while not end:
        before, piece, after = usage(), malloc(size), usage()
        if (after.keepcost, after.arena) != (before.keepcost, before.arena):
            end = piece  # no gap was as large
            free(piece)
    while size >= _SMALLEST:
        if (piece := malloc(size)) >= end:
            free(piece)
            size = size * 7 // 8
