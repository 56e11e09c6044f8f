"""``sheafgossip run`` and ``sheafgossip resume``."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from ...metrics.comparison import summarize_all
from ...metrics.tables import render_summary
from ...metrics.terminal import say, show, width
from ...metrics.watch.progress import Place
from ...topology.errors import UserError
from ..config.files import load
from ..prepare.memory import need_of
from ..prepare.prepared import Prepared
from ..processes.engine import EngineName
from ..run.banner import Banner
from ..run.display import Display, style
from ..run.earlier import PlannedRun, begin_anew, missing_of
from ..run.folder import relative
from ..studies.folders import begun_folder, folders_of, new_folder
from ..studies.runner import Finished, Means, Observer, run_each
from ..studies.runner import resume as take_up
from .ending import INTERRUPTED, exit_code, tell


def run(
    file: Path,
    overrides: Sequence[str] | None,
    out: Path | None,
    quiet: bool,
    plain: bool,
    force: bool,
    engine: EngineName,
    address: str | None,
) -> int:
    """Makes the runs of a configuration file one after the other and shows their results. Returns the exit code."""
    if address is not None and engine != "ray":
        raise UserError(f"--address {address}: is where a Ray cluster is; add --engine ray, or leave it out")
    configs = load(file, overrides or ())
    before = begun_folder(out, configs)
    root_folder = nullcontext(before) if before else new_folder(out, file)
    with root_folder as root, _display(quiet, plain, engine) as display:
        folders = folders_of(configs, root)
        runs = list(map(PlannedRun, configs, folders))
        if before:
            runs = missing_of(runs)
            begin_anew(runs)
            display.tell(f"{len(folders) - len(runs)} of {len(folders)} runs finished before")
        results = run_each(runs, _Follower(display, folders), Means(engine, address, force))
    not_begun = {run.folder for run in runs} - {result.prepared.folder for result in results}
    return _show([folder for folder in folders if folder not in not_begun], results, root, several=len(configs) > 1)


def resume(folder: Path, rounds: int | None, quiet: bool, plain: bool, engine: EngineName, address: str | None) -> int:
    """Takes up an interrupted run, shows it and its result. Returns the exit code."""
    with _display(quiet, plain, engine) as display:
        result = take_up(folder.resolve(), _Follower(display), Means(engine, address), rounds=rounds)
    return _show([result.prepared.folder], [result], result.prepared.folder, several=False)


def _display(quiet: bool, plain: bool, engine: EngineName) -> Display:
    return Display(style(quiet=quiet, plain=plain or engine == "threads"))  # what threads print comes in between


class _Follower(Observer):
    """Tells of each run that starts, one of those in ``folders``, and shows it from then on; without folders, of the
    one that ``sheafgossip resume`` takes up."""

    def __init__(self, display: Display, folders: Sequence[Path] = ()):
        self._display, self._folders, self._banner = display, folders, Banner()

    def begins(self, prepared: Prepared) -> Display:
        display, resumed_at, place = self._display, prepared.resumed_at, Place()
        banner = "\n".join(self._banner.lines(prepared))
        if not self._folders:
            display.tell(f"going on after round {resumed_at} of {prepared.config.rounds}\n{banner}")
        else:
            display.tell(banner)
            if (need := need_of(prepared)).worth_telling:
                display.tell(need.text)
            if resumed_at:
                display.tell(f"{prepared.folder.name}: going on after round {resumed_at}")
            place = Place(1 + self._folders.index(prepared.folder), len(self._folders))
        display.follow(prepared.folder, place, anew=bool(resumed_at) or not self._folders)
        return display

    def has_ended(self, finished: Finished) -> None:
        self._display.end()


def _show(folders: Sequence[Path], results: Sequence[Finished], root: Path, *, several: bool) -> int:
    show(render_summary(summarize_all(folders), width=width()))
    show(f"{'run folders in' if several else 'run folder'}: {relative(root)}")
    for result in results:
        tell(result.prepared.folder, result.outcome, result.prepared.config.label if several else "")
    code = exit_code(result.outcome for result in results)
    if code == INTERRUPTED and several:
        say(f"the same command with --out {relative(root)} goes on with what is missing", err=True)
    return code
