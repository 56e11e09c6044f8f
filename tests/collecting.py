"""A run's collector in a thread of the tests: as a process it takes longer to start than a small run takes."""

import contextlib
import os
import socket
import subprocess
import threading
import time
import traceback
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import zmq

from sheafgossip.launcher.processes import collector as launchers_end
from sheafgossip.metrics.collector import Collector
from sheafgossip.metrics.store import Store


class _Collector(Collector):
    def _tell_stored(self) -> None:
        os.write(self.said, b"stored %d\n" % self._taken)


class _Thread:
    """Does what the launcher asks of the process, over Unix sockets and without keys."""

    def __init__(self, words, *, stderr, **_):
        self.pid, self.returncode, self._log = os.getpid(), None, os.dup(stderr)
        self._endpoint, self._database = (words[words.index(option) + 1] for option in ("--endpoint", "--database"))
        self._resources = "--no-resources" not in words
        self.stdin = open(os.devnull, "wb")  # noqa: PTH123, SIM115
        read, self._said = os.pipe()
        self.stdout = open(read, "rb")  # noqa: PTH123, SIM115
        self._stop, self._asked = socket.socketpair()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        code, context = 1, zmq.Context()
        try:
            receiver = context.socket(zmq.PULL)
            receiver.bind(self._endpoint)
            collector = _Collector(receiver, Store(self._database), time.monotonic(), self._resources)
            collector.said = self._said
            collector.run(self._stop)
            code = 0
        except Exception:
            os.write(self._log, traceback.format_exc().encode())
        context.destroy(linger=0)
        for each in (self._said, self._log):
            os.close(each)
        for each in (self._stop, self._asked):
            each.close()
        self.returncode = code

    def poll(self):
        return self.returncode

    def wait(self, seconds=None):
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise subprocess.TimeoutExpired("collector", seconds)

    def terminate(self):
        with contextlib.suppress(OSError):
            self._asked.send(b"!")

    kill = terminate


@contextlib.contextmanager
def in_a_thread() -> Iterator[None]:
    stand_in = SimpleNamespace(Popen=_Thread, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launchers_end, "subprocess", stand_in)
        yield
