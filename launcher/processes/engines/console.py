"""Python's debugger in clients that are threads: the main thread asks for them, as the terminal is its own.

One client at a time stops there. While one does, the others' waits for their neighbours do not count.
"""

import contextlib
import pdb
import socket
import sys
import threading
from queue import SimpleQueue
from typing import Any

from ....transport import waiting
from ....transport.endpoint import Stopped
from ... import interrupts

with contextlib.suppress(ImportError):
    import readline  # noqa: F401  (``input`` then edits its line, and remembers those before)

_QUIT = None  # in place of a question: the user has left the debugger


class Console:
    """Readable when somebody has a question: then the main thread is to ``answer``.

    As long as it is there, ``breakpoint()`` and ``pdb.set_trace()`` in other threads lead to it, and threads print
    whole lines.
    """

    def __init__(self) -> None:
        self._turn, self._guard = threading.Lock(), threading.Lock()
        self._ours, self._theirs = socket.socketpair()
        self._questions: SimpleQueue[str | None] = SimpleQueue()
        self._answers: SimpleQueue[str | None] = SimpleQueue()
        self._is_open = False
        self._set_trace, self._stdout = pdb.set_trace, sys.stdout
        pdb.set_trace = self._stop_here
        sys.stdout = WholeLines(sys.stdout)

    def fileno(self) -> int:
        return self._ours.fileno()

    def open(self) -> None:
        self._is_open = True

    def close(self) -> None:
        """Who has a question, or comes with one later, is stopped."""
        with self._guard:
            self._is_open = False
            while not self._questions.empty():
                if self._questions.get() is not _QUIT:
                    self._answers.put(None)

    def leave(self) -> None:
        """For good."""
        self.close()
        pdb.set_trace, sys.stdout = self._set_trace, self._stdout
        self._ours.close()
        self._theirs.close()

    def answer(self) -> None:
        """Raises KeyboardInterrupt when the user has left the debugger, or asked for the end of the run."""
        self._ours.recv(1)
        if self._questions.empty():  # its run has ended
            return
        question = self._questions.get()
        if question is _QUIT:
            raise interrupts.Interrupted
        answer = None
        try:
            with interrupts.heard_at_a_prompt():
                answer = input(question) + "\n"
        except EOFError:
            answer = ""
        finally:
            self._answers.put(answer)

    def ask(self, question: str | None) -> str:
        """Blocks until the main thread has read a line; empty at the end of the input. Raises Stopped; without a
        question it does so at once, and the run ends as by Ctrl-C."""
        with self._guard:
            if not self._is_open:
                raise Stopped("the run ends")
            self._questions.put(question)
            self._theirs.send(b"?")
        if question is _QUIT:
            raise Stopped("the debugger was left")
        if (answer := self._answers.get()) is None:
            raise Stopped("the run ends")
        return answer

    @contextlib.contextmanager
    def turn(self) -> Any:
        with self._turn, waiting.suspended():
            yield

    def _stop_here(self, *, header: object = None, **options: Any) -> None:
        """In place of ``pdb.set_trace``, which ``breakpoint()`` calls."""
        is_main = threading.current_thread() is threading.main_thread()
        (pdb.Pdb() if is_main else _Debugger(self)).set_trace(sys._getframe().f_back, **options)


class WholeLines:
    """A text stream for several threads: what one prints comes out line by line, and at once."""

    def __init__(self, stream: Any):
        self._stream = stream
        self._begun = threading.local()

    def write(self, text: str) -> int:
        begun = getattr(self._begun, "line", "") + text
        end = begun.rfind("\n") + 1
        self._begun.line = begun[end:]
        if end:
            self._stream.write(begun[:end])
            self._stream.flush()
        return len(text)

    def flush(self) -> None:
        self._stream.write(getattr(self._begun, "line", ""))
        self._begun.line = ""
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Debugger(pdb.Pdb):
    """The debugger of one thread."""

    def __init__(self, console: Console):
        self._console = console
        answers: Any = self
        super().__init__(stdin=answers, stdout=sys.stdout, nosigint=True)
        self.prompt = ""  # it is part of the question
        self._question = f"(Pdb {threading.current_thread().name}) "

    def readline(self) -> str:
        return self._console.ask(self._question)

    def interaction(self, *about: Any) -> None:
        with self._console.turn():
            super().interaction(*about)

    def do_quit(self, arg: str) -> None:
        """Ends the run."""
        self._console.ask(_QUIT)

    do_q = do_exit = do_EOF = do_quit
