"""``sheafgossip watch``: shows runs that go on in another terminal, which take no notice of it."""

import time
from collections.abc import Sequence
from pathlib import Path

from ...metrics import lock
from ...metrics.reader import runs_in
from ...metrics.terminal import say
from ...metrics.watch.progress import Place
from ...metrics.watch.snapshot import Snapshot, State
from ..run.display import Display, style
from .ending import INTERRUPTED

_LOOK_EVERY_S = 0.5
_CATCH_UP_S = 0.2
_ASK_EVERY_S = 2.0


def watch(folder: Path, plain: bool) -> int:
    """Shows the runs in the folder until they end, or Ctrl-C ends the looking. Returns the exit code of the worst."""
    try:
        with Display(style(plain=plain)) as display:
            state, cause = follow(runs_in(folder), display)
    except KeyboardInterrupt:
        say("no longer watching; the run goes on", err=True)
        return INTERRUPTED
    if cause:
        say(f"error: {cause}", err=True)
    return {"finished": 0, "failed": 1}.get(state, INTERRUPTED)


def follow(folders: Sequence[Path], display: Display) -> tuple[State, str]:
    """One run after the other, each until it has ended: the worst end, and the reason where it is a failure.

    A run that nobody works at any more counts as interrupted. Raises RunFolderError.
    """
    worst: tuple[State, str] = "finished", ""
    for number, folder in enumerate(folders, 1):
        display.follow(folder, Place(number, len(folders)))
        ended = _follow(folder, folders, display)
        display.end(stay=len(folders) == 1)
        if not ended.has_ended:
            return "interrupted", f"{ended.name}: no process of this run is left"
        if worst[0] == "finished" or ended.state == "failed":
            worst = ended.state, f"{ended.name}: {ended.cause}" if ended.cause else ""
    return worst


def _follow(folder: Path, folders: Sequence[Path], display: Display) -> Snapshot:
    """The run when it has ended, or when it is clear that it never will."""
    attached, asked = False, 0.0
    while True:
        snapshot = display.look(_CATCH_UP_S)
        if snapshot.has_ended:
            return snapshot
        if snapshot.behind:
            continue
        display.show(snapshot, at_once=not attached)
        attached = True
        if time.monotonic() - asked > _ASK_EVERY_S:
            if not _at_work(folders):
                return display.look()  # what it may have said last
            asked = time.monotonic()
        time.sleep(_LOOK_EVERY_S)


def _at_work(folders: Sequence[Path]) -> bool:
    """Whether anybody works at one of the runs, or at the folder of all of them, as a sweep does."""
    return any(lock.is_held(folder) for folder in {*folders, *(folder.parent for folder in folders)})
