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
    """Shows the runs in the folder one after the other, each until it has ended, or Ctrl-C ends the looking.

    Returns the exit code of the worst. A run that nobody works at any more counts as interrupted.
    """
    folders = runs_in(folder)
    worst: State = "finished"
    cause = ""
    try:
        with Display(style(plain=plain)) as display:
            for number, each in enumerate(folders, 1):
                display.follow(each, Place(number, len(folders)))
                ended = _follow(folders, display)
                display.end(stay=len(folders) == 1)
                if not ended.has_ended:
                    worst, cause = "interrupted", f"{ended.name}: no process of this run is left"
                    break
                if worst == "finished" or ended.state == "failed":
                    worst, cause = ended.state, f"{ended.name}: {ended.cause}" if ended.cause else ""
    except KeyboardInterrupt:
        say("no longer watching; the run goes on", err=True)
        return INTERRUPTED
    if cause:
        say(f"error: {cause}", err=True)
    return {"finished": 0, "failed": 1}.get(worst, INTERRUPTED)


def _follow(folders: Sequence[Path], display: Display) -> Snapshot:
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
            # Somebody may work at one of the runs, or at the folder of all of them, as a sweep does
            if not any(lock.is_held(each) for each in {*folders, *(each.parent for each in folders)}):
                return display.look()  # what it may have said last
            asked = time.monotonic()
        time.sleep(_LOOK_EVERY_S)
