"""Shows a run while it goes on, on stderr: a picture that moves in a terminal, a line now and then elsewhere."""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ...metrics.events import Event
from ...metrics.store import RunFolderError
from ...metrics.text import Plain, new_console, plain
from ...metrics.watch.screen import Place, draw, line
from ...metrics.watch.snapshot import Follower, Snapshot

if TYPE_CHECKING:
    from rich.live import Live

_EVERY_S = {"picture": 0.4, "lines": 10.0}
_SOME_S, _MORE_S, _ALL_S = 0.01, 0.1, 60.0


class Display:
    """Call it often: it looks at the records only when something is to be shown, and never for long. Leaving it as a
    context gives the terminal back as it was, whatever happened."""

    def __init__(self, *, quiet: bool = False, plain: bool = False):
        """Shows nothing if ``quiet``, and lines where those are asked for or stderr leads to no able terminal."""
        encoding = (sys.stderr.encoding or "").lower().replace("-", "")
        able = sys.stderr.isatty() and encoding == "utf8" and os.environ.get("TERM", "dumb") != "dumb"
        self._style = "silent" if quiet else "picture" if able and not plain else "lines"
        self._follower: Follower | None = None
        self._place = Place()
        self._live: Live | None = None
        self._due = 0.0
        self._behind = False
        self._news = ""
        self._told: set[Event] = set()

    def follow(self, folder: Path, place: Place = Place(), *, anew: bool = False) -> None:
        """From here on it shows the run in ``folder``, the one at ``place``; ``anew`` as in Follower."""
        self._follower, self._place = Follower(folder, anew=anew), place
        self._told.clear()
        self._due = time.monotonic() + (_EVERY_S["lines"] if self._style == "lines" else 0.0)

    def __call__(self, news: str = "") -> None:
        """``news``: what the run is busy with, other than its rounds."""
        self._news = news
        if self._style == "silent" or time.monotonic() < self._due:
            return
        with suppress(RunFolderError):  # not being able to look is no reason to end a run; the next may be luckier
            self.show(self.look(_MORE_S if self._behind else _SOME_S))

    def tell(self, text: str) -> None:
        """A line that stays, above what is shown of the run that begins."""
        if self._style != "silent":
            print(plain(text), file=sys.stderr, flush=True)

    def show(self, snapshot: Snapshot, *, at_once: bool = False) -> None:
        """If it is time to, or ``at_once``."""
        now = time.monotonic()
        if self._style == "silent" or (now < self._due and not at_once):
            return
        self._due = now + _EVERY_S[self._style]
        (self._draw if self._style == "picture" else self._write)(snapshot)

    def look(self, seconds: float = _SOME_S) -> Snapshot:
        """Takes about so many seconds of CPU time. Raises RunFolderError."""
        assert self._follower
        snapshot = self._follower.look(seconds=seconds)
        self._behind = snapshot.behind
        return snapshot

    def end(self, *, stay: bool = False) -> None:
        """The run has ended. What remains of it: with ``stay`` the picture, where there are several runs a line."""
        if self._style == "silent" or self._follower is None:
            return
        self._news = ""
        with suppress(RunFolderError):
            snapshot = self.look(_ALL_S)
            stays = self._style == "picture" and stay
            if stays:
                self._draw(snapshot)
            self._clear(stay=stays)
            if self._style == "lines" or (self._place.total > 1 and not stays):
                self._write(snapshot)
        self._clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def _draw(self, snapshot: Snapshot) -> None:
        from rich.live import Live

        if self._live is None:
            console = new_console(stderr=True)
            self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
            self._live.start()
        width, height = self._live.console.size
        self._live.update(Plain(draw(snapshot, self._place, width, height, self._news)), refresh=True)

    def _clear(self, *, stay: bool = False) -> None:
        if self._live is not None:
            self._live.transient = not stay
            self._live.stop()
            self._live = None

    def _write(self, snapshot: Snapshot) -> None:
        for event in snapshot.events:
            if event.kind == "waiting" and event not in self._told:
                self._told.add(event)
                self.tell(f"{snapshot.name}: {event.who} {event.detail}")
        self.tell(line(snapshot, self._place) + (f", {self._news}" if self._news else ""))
