"""Memory that a network's gradients have freed: kept for the next step, and given back while the client waits.

Each step takes and frees the same few megabytes. By itself glibc gives memory back as soon as enough lies free at the
end of its heap, to take it anew in the next step, page by page. Other C libraries go on as they do by themselves."""

import contextlib
import ctypes
import time

from ...transport.limits import give_memory_back

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_KEPT, _MAPPED = 64 << 20, 32 << 20  # bytes; the largest that glibc comes to by itself, as blocks grow
_WORTH_S = 0.2  # of work: to take the memory anew costs about as much as one step


class Heap:
    """That of this process, for where it is a client's alone."""

    def __init__(self) -> None:
        self._given_back = 0.0
        library = ctypes.CDLL(None)
        with contextlib.suppress(AttributeError):
            library.mallopt(_TRIM_THRESHOLD, _KEPT)
            library.mallopt(_MMAP_THRESHOLD, _MAPPED)

    def give_back(self) -> None:
        """Before a wait that is not short: all pages on which nothing is left, if there was much work since."""
        worked = time.process_time()
        if worked - self._given_back >= _WORTH_S:
            self._given_back = worked
            give_memory_back()
