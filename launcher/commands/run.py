"""``sheafgossip run`` and ``sheafgossip resume``."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from ...metrics.seeds import summarize_all
from ...metrics.summary_table import render
from ...metrics.terminal import say, show, width
from ...metrics.watch.progress import Place
from ...topology.errors import UserError
from ..config.sections import load
from ..prepare.memory import need_of
from ..prepare.preparation import Prepared
from ..processes.engines import EngineName
from ..run.banner import Banner
from ..run.display import Display, manner
from ..run.earlier import Left, left_of
from ..studies.session import Finished, begun_folder, folders_of, new_folder, run_each
from ..studies.session import resume as take_up
from .ending import INTERRUPTED, exit_code, relative, tell


def run(
    file: Path,
    overrides: Sequence[str],
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
    configs = load(file, overrides)
    before = begun_folder(out, configs)
    root_folder = nullcontext(before) if before else new_folder(out, file)
    with root_folder as root, _display(quiet, plain, engine) as display:
        folders = folders_of(configs, root)
        left = left_of(configs, folders) if before else list(map(Left, configs, folders))
        if before:
            display.tell(f"{len(folders) - len(left)} of {len(folders)} runs finished before")
        results = run_each(
            [run.config for run in left],
            [run.folder for run in left],
            _Follower(display, folders),
            lambda _: display.end(),
            [run.folder for run in left if run.begun],
            force=force,
            engine=engine,
            address=address,
        )
    not_begun = {run.folder for run in left} - {result.prepared.folder for result in results}
    return _show([folder for folder in folders if folder not in not_begun], results, root, several=len(configs) > 1)


def resume(folder: Path, rounds: int | None, quiet: bool, plain: bool, engine: EngineName, address: str | None) -> int:
    """Takes up an interrupted run, shows it and its result. Returns the exit code."""
    with _display(quiet, plain, engine) as display:

        def watch(prepared: Prepared) -> Display:
            display.tell(f"going on after round {prepared.resumed_at} of {prepared.config.rounds}")
            display.tell("\n".join(Banner().lines(prepared)))
            display.follow(prepared.folder, anew=True)
            return display

        result = take_up(folder.resolve(), watch, engine, address, rounds=rounds)
        display.end()
    return _show([result.prepared.folder], [result], result.prepared.folder, several=False)


def _display(quiet: bool, plain: bool, engine: EngineName) -> Display:
    return Display(manner(quiet=quiet, plain=plain or engine == "threads"))  # what threads print comes in between


class _Follower:
    """Tells of each run that starts, one of those in ``folders``, and shows it from then on."""

    def __init__(self, display: Display, folders: Sequence[Path]):
        self._display, self._folders, self._banner = display, folders, Banner()

    def __call__(self, prepared: Prepared) -> Display:
        display = self._display
        display.tell("\n".join(self._banner.lines(prepared)))
        if (need := need_of(prepared)).worth_telling:
            display.tell(need.text)
        if prepared.resumed_at:
            display.tell(f"{prepared.folder.name}: going on after round {prepared.resumed_at}")
        place = Place(1 + self._folders.index(prepared.folder), len(self._folders))
        display.follow(prepared.folder, place, anew=bool(prepared.resumed_at))
        return display


def _show(folders: Sequence[Path], results: Sequence[Finished], root: Path, *, several: bool) -> int:
    show(render(summarize_all(folders), width=width()))
    show(f"{'run folders in' if several else 'run folder'}: {relative(root)}")
    for result in results:
        tell(result.prepared.folder, result.outcome, result.prepared.config.label if several else "")
    code = exit_code(result.outcome for result in results)
    if code == INTERRUPTED and several:
        say(f"the same command with --out {relative(root)} goes on with what is missing", err=True)
    return code
