"""``sheafgossip reproduce``."""

from collections.abc import Sequence
from pathlib import Path

from ...metrics.terminal import say, show
from ..prepare.prepared import Prepared
from ..run.display import Display, style
from ..run.folder import relative
from ..studies.reproduction import names, parts_of, planned, results, titles, with_data
from ..studies.reproduction_output import draw, remarks, render
from ..studies.runner import Finished, Observer, run_missing
from .ending import INTERRUPTED, exit_code, tell


def reproduce(
    what: str | None,
    small: bool,
    data_root: Path | None,
    seeds: int | None,
    rounds: int | None,
    out: Path,
    overrides: Sequence[str] | None,
    listed: bool,
    quiet: bool,
) -> int:
    """Makes the runs that are missing of a table or figure and shows it beside the paper's. Returns the exit code."""
    if what is None or listed:
        say("\n".join(f"{name:<9}{title}" for name in names() for title in titles(name)))
        return 0
    changed = [*(overrides or ()), *([f"rounds={rounds}"] if rounds else [])]
    parts, left_out = with_data(what, parts_of(what, small=small, data_root=data_root, overrides=changed))
    runs = {part.stem: planned(part, seeds, out.resolve()) for part in parts}
    with Display(style(quiet=quiet)) as display:
        ended = run_missing([run for each in runs.values() for run in each], _Follower(display), accept_diverged=True)
    for result in ended:
        tell(result.prepared.folder, result.outcome, result.prepared.config.label)
    code = exit_code(result.outcome for result in ended)
    if code == INTERRUPTED:
        say("the same command goes on with the runs that are left", err=True)
        return code
    for part in parts:
        found = results(part, runs[part.stem])
        say(part.about.title)
        show(render(part, found))
        say(remarks(part, found, changed))
        for path in draw(part, found, out.resolve()):
            say(f"written: {relative(path)}")
        say("")
    for line in left_out:
        say(line)
    show(f"run folders in: {relative(out.resolve())}")
    return code


class _Follower(Observer):
    def __init__(self, display: Display):
        self._display = display

    def begins(self, prepared: Prepared) -> Display:
        self._display.follow(prepared.folder)
        return self._display

    def has_ended(self, finished: Finished) -> None:
        self._display.end()
        if finished.outcome.status == "finish":
            self._display.tell(f"{finished.prepared.folder.name}: finished")
