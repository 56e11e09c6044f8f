"""How runs have ended is told: their figures, warnings, why they failed, and the exit code."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from ...metrics.comparison import render_summary, summarize_all
from ...metrics.events import remarks_on
from ...metrics.store import RunFolderError
from ...metrics.text import say, show, width
from ..run.folder import relative
from ..run.run import Outcome
from ..studies.runner import Finished

FINISHED, FAILED, INTERRUPTED = 0, 1, 130
_EXIT_CODES = {"finish": FINISHED, "failure": FAILED, "interrupt": INTERRUPTED}
_CAUSES_SHOWN = 3
_NAMES_SHOWN = 3


def show_runs(folders: list[Path], ended: Sequence[Finished], root: Path) -> int:
    several = folders != [root]
    unreadable = ""
    try:
        show(render_summary(summarize_all(folders), width=width()))
    except RunFolderError as error:
        if all(each.outcome.status == "finish" for each in ended):
            raise
        unreadable = str(error)  # on a full disk, say; why a run failed matters more
    show(f"{'run folders in' if several else 'run folder'}: {relative(root)}")
    code = tell((each.prepared.folder, each.outcome, each.prepared.config.label if several else "") for each in ended)
    if unreadable:
        say(f"error: {unreadable}", err=True)
    if code == INTERRUPTED and several:
        say(f"the same command with --out {relative(root)} goes on with what is missing", err=True)
    return code


def tell(ended: Iterable[tuple[Path, Outcome, str]]) -> int:
    """Tells warnings and causes of failure on standard error, once where several runs have the same. Returns the exit
    code of the worst outcome, 0 of none."""
    code, told = FINISHED, dict[tuple[str, str], list[str]]()  # {(what comes before the names, and after): names}
    for folder, outcome, name in ended:
        code = max(code, _EXIT_CODES[outcome.status])
        causes, more = outcome.causes[:_CAUSES_SHOWN], len(outcome.causes) - _CAUSES_SHOWN
        causes += (f"and {more} more; see table event of run.sqlite",) * (more > 0)
        lines = [("", line) for line in _remarks(folder)] + [("error: ", cause) for cause in causes]
        lines += [("", "interrupted: the records so far are kept")] * (outcome.status == "interrupt")
        for line in dict.fromkeys(lines):
            told.setdefault(line, []).append(name)
    for (before, text), names in told.items():
        others = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        whose = ", ".join(filter(None, names[:_NAMES_SHOWN])) + others
        say(f"{before}{whose}{': ' if whose else ''}{text}", err=True)
    return code


def _remarks(folder: Path) -> list[str]:
    """Returns none where a run's records cannot be read."""
    with suppress(RunFolderError):
        return remarks_on(folder)
    return []
