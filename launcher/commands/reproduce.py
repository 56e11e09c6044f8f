"""``sheafgossip reproduce``."""

from collections.abc import Sequence
from pathlib import Path

from ...metrics.terminal import say, show
from ..prepare.preparation import Prepared
from ..run.display import Display, manner
from ..studies.reproduction.parts import Part, names, parts_of, titles, with_data
from ..studies.reproduction.pictures import draw
from ..studies.reproduction.runs import Planned, planned, results, run_missing
from ..studies.reproduction.table import remarks, render
from ..studies.session import Finished
from .ending import INTERRUPTED, exit_code, relative, tell


def listing() -> int:
    for name in names():
        for title in titles(name):
            say(f"{name:<9}{title}")
    return 0


def reproduce(
    what: str,
    small: bool,
    data_root: Path | None,
    seeds: int | None,
    rounds: int | None,
    out: Path,
    overrides: Sequence[str],
    quiet: bool,
) -> int:
    """Makes the runs that are missing of a table or figure and shows it beside the paper's. Returns the exit code."""
    overrides = [*overrides, *([f"rounds={rounds}"] if rounds else [])]
    parts, left_out = with_data(what, parts_of(what, small=small, data_root=data_root, overrides=overrides))
    runs = planned(parts, seeds, out.resolve())
    ended = _run_missing(runs, quiet)
    for result in ended:
        tell(result.prepared.folder, result.outcome, result.prepared.config.label)
    code = exit_code(result.outcome for result in ended)
    if code == INTERRUPTED:
        say("the same command goes on with the runs that are left", err=True)
        return code
    for part in parts:
        _show(part, runs, overrides, out.resolve())
    for line in left_out:
        say(line)
    show(f"run folders in: {relative(out.resolve())}")
    return code


def _run_missing(runs: Sequence[Planned], quiet: bool) -> list[Finished]:
    with Display(manner(quiet=quiet)) as display:

        def watch(prepared: Prepared) -> Display:
            display.follow(prepared.folder)
            return display

        def done(finished: Finished) -> None:
            display.end()
            if finished.outcome.status == "finish":
                display.tell(f"{finished.prepared.folder.name}: finished")

        return run_missing(runs, watch, done)


def _show(part: Part, runs: Sequence[Planned], overrides: list[str], out: Path) -> None:
    found = results(part, runs)
    say(part.about.title)
    show(render(part, found))
    say(remarks(part, found, overrides))
    for path in draw(part, found, out):
        say(f"written: {relative(path)}")
    say("")
