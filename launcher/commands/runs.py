"""``sheafgossip run``, ``resume``, ``watch``, ``plan``, ``sweep``, ``reproduce``: runs are planned, made and shown."""

import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from statistics import mean
from typing import Any

from ...metrics import lock
from ...metrics.comparison import Comparison, summarize_all
from ...metrics.export import write_groups, write_runs
from ...metrics.reader import runs_in
from ...metrics.text import Pace, remaining, say, show, width
from ...metrics.watch.screen import Place
from ...metrics.watch.snapshot import Snapshot
from ...node.algorithms.base import work_of
from ...topology.errors import UserError
from ...topology.picture import check_format
from ..config.files import load
from ..config.sections import SCENARIO_TABLES, ConfigError, RunConfig
from ..planner.timeline import draw as draw_timeline, figures, lines_of
from ..prepare.assignments import Site
from ..prepare.preparation import once_for_alike, work_out
from ..prepare.prepared import Prepared, need_of
from ..processes.engine import open_engine
from ..run.display import Banner, Display
from ..run.earlier import PlannedRun, begin_anew, is_finished, load_code, missing_of
from ..run.folder import relative
from ..studies import reproduction, reproduction_list
from ..studies.encoders import train_encoders
from ..studies.folders import begun_folder, names_of, new_folder, planned_in
from ..studies.reproduction import Part
from ..studies.runner import Finished, Means, Observer, resume as take_up, run_each
from ..studies.scheduled import opened
from ..studies.sweep import Ended, Plan as Sweep, alone_in, parse_grids, plan as plan_sweep, prepare
from .outcomes import FAILED, FINISHED, INTERRUPTED, show_runs, tell
from .results import show_comparison
from .web import serve

Words = Sequence[str] | None
Number = int | None

_LOOK_EVERY_S = 0.5
_CATCH_UP_S = 0.2
_ASK_EVERY_S = 2.0


def run(file: Path, overrides: Words, out: Path | None, quiet: bool, plain: bool, **means: Any) -> int:
    made = make(load(file, overrides or ()), file, out, Means(**means), quiet=quiet, plain=plain)
    return show_runs(made.folders, made.ended, made.root)


def demo(out: Path | None, quiet: bool, plain: bool) -> int:
    file = Path(str(files("sheafgossip.demo"))) / "demo.toml"  # also where it was installed from a wheel
    made = make(load(file, ()), file, out, Means(), quiet=quiet, plain=plain)
    if not (code := show_runs(made.folders, made.ended, made.root)):
        called = Path(sys.argv[0]).resolve()
        found = called.name != "sheafgossip" or shutil.which("sheafgossip")
        program = "sheafgossip" if found else relative(called)
        show(f"next, all of it as a page for your browser: {program} report {relative(made.root)}")
    return code


@dataclass(frozen=True)
class Made:
    """Runs in the folders of ``root``: those that have ended now, and those that had finished before."""

    root: Path
    folders: list[Path]
    ended: Sequence[Finished]


def make(
    configs: Sequence[RunConfig],
    file: Path,
    out: Path | None,
    means: Means,
    *,
    quiet: bool,
    plain: bool = False,
    live: bool = False,
) -> Made:
    """Makes the runs in ``out``, or in a new folder called as the file is; those that are there already are kept."""
    before = begun_folder(out, configs)
    root_folder = nullcontext(before) if before else new_folder(out, file)
    with root_folder as root, Display(quiet=quiet, plain=plain or means.engine == "threads", live=live) as display:
        runs = planned_in(root, configs)
        folders = [run.folder for run in runs]
        if before:
            runs = begin_anew(missing_of(runs))
            display.tell(f"{len(folders) - len(runs)} of {len(folders)} runs finished before")
        ended = run_each(runs, Follower(display, folders), means)
    not_begun = {run.folder for run in runs} - {result.prepared.folder for result in ended}
    return Made(root, [folder for folder in folders if folder not in not_begun], ended)


def resume(folder: Path, rounds: Number, quiet: bool, plain: bool, own_code: bool, **means: Any) -> int:
    if own_code:
        load_code(folder.resolve())
    result = go_on(folder, rounds, Means(**means), quiet=quiet, plain=plain)
    return show_runs([result.prepared.folder], [result], result.prepared.folder)


def go_on(
    folder: Path, rounds: int | None, means: Means, *, quiet: bool, plain: bool = False, live: bool = False
) -> Finished:
    with Display(quiet=quiet, plain=plain or means.engine == "threads", live=live) as display:
        return take_up(folder.resolve(), Follower(display), means, rounds=rounds)


class Follower(Observer):
    """Tells of each run that starts and shows it from then on; without ``folders`` a single one that is taken up."""

    def __init__(self, display: Display, folders: Sequence[Path] = ()):
        self._display, self._folders, self._banner = display, folders, Banner()

    def begins(self, prepared: Prepared) -> Display:
        display, resumed_at, place = self._display, prepared.resumed_at, Place()
        banner = "\n".join(self._banner.lines(prepared))
        if not self._folders:
            display.tell(f"going on after round {resumed_at} of {prepared.config.rounds}\n{banner}")
        else:
            display.tell(banner)
            need = need_of(prepared)
            if need.seconds > 120 or need.memory > 2e9:
                display.tell(need.text)
            if resumed_at:
                display.tell(f"{prepared.folder.name}: going on after round {resumed_at}")
            place = Place(1 + self._folders.index(prepared.folder), len(self._folders))
        display.follow(prepared.folder, place, anew=bool(resumed_at) or not self._folders)
        return display

    def has_ended(self, finished: Finished) -> None:
        self._display.end()


def watch(folder: Path, plain: bool, web: bool, port: int | None) -> int:
    """Returns the exit code of the worst run; one that nobody works at any more counts as interrupted."""
    if web:
        return serve(folder.resolve(), port or 0)
    if port is not None:
        raise ConfigError("--port: is for --web")
    folders, code, cause = runs_in(folder), FINISHED, ""
    try:
        with Display(plain=plain) as display:
            for number, each in enumerate(folders, 1):
                display.follow(each, Place(number, len(folders)))
                ended = _follow(folders, display)
                display.end(stay=len(folders) == 1)
                if not ended.has_ended:
                    code, cause = INTERRUPTED, f"{ended.name}: no process of this run is left"
                    break
                if code == FINISHED or ended.state == "failed":
                    code = {"finished": FINISHED, "failed": FAILED}.get(ended.state, INTERRUPTED)
                    cause = f"{ended.name}: {ended.cause}" if ended.cause else ""
    except KeyboardInterrupt:
        say("no longer watching; the run goes on", err=True)
        return INTERRUPTED
    if cause:
        say(f"error: {cause}", err=True)
    return code


def _follow(folders: Sequence[Path], display: Display) -> Snapshot:
    """Returns when the run has ended, or it is clear that it never will."""
    attached, asked = False, 0.0
    while not (snapshot := display.look(_CATCH_UP_S)).has_ended:
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
    return snapshot


def plan(file: Path, overrides: Words, picture: Path | None, lines: int) -> None:
    """Shows the timelines of a file's runs, and draws each in a file of its own if asked."""
    if picture is not None:
        check_format(picture)
    configs = load(file, overrides or ())
    if not any(config.has_scenario for config in configs):
        raise ConfigError(f"nothing to plan: without one of {SCENARIO_TABLES} a run takes as long as it takes")
    several = len(configs) > 1
    names = [f"-{name}" for name in names_of(configs)] if several and picture else [""] * len(configs)
    with Display(), ExitStack() as stack:
        engine = cache(lambda: stack.enter_context(open_engine()))  # takes a second or two, only to time a step
        calibrate = once_for_alike(lambda assignment, steps: engine().time_a_step(assignment, steps))
        for config, name in zip(configs, names, strict=True):
            path = picture and picture.with_name(f"{picture.stem}{name}{picture.suffix}")
            told = _planned(config, calibrate, path, lines) if config.has_scenario else "no scenario, nothing to plan"
            say(f"== {config.label} ==\n{told}\n" if several else told)


def prepared_for_a_plan(config: RunConfig, calibrate: Callable) -> tuple[Prepared, str]:
    """Prepares the run in a folder that goes again. Returns what memory it needs, too, in a line for the user."""
    with tempfile.TemporaryDirectory(prefix="sheafgossip-plan-") as folder:
        prepared = work_out(config, Path(folder), Site(Path(folder), "ipc:///nowhere"), calibrate)
        return prepared, need_of(prepared).text


def _planned(config: RunConfig, calibrate: Callable, picture: Path | None, lines: int) -> str:
    """Returns what there is to say of the run's plan, and draws it if asked."""
    prepared, need = prepared_for_a_plan(config, calibrate)
    plan = prepared.plan
    assert plan
    roughly = "" if config.time.clock == "virtual" else "; on the wall clock, the run follows this only roughly"
    step_s, sample_s = prepared.config.compute.step_s, prepared.config.compute.sample_s
    told = [f"a local step takes {step_s or sample_s:.4g} s{' a sample' if sample_s else ''}{roughly}"]
    first, samples = prepared.assignments[0], prepared.data.clients[0].train_samples
    most = max(work_of(config.algorithm, first, samples, round)[0] for round in range(1, config.rounds + 1))
    if most != (count := config.training.count(samples)):
        steps = f"{count} local step{'s' if count > 1 else ''}"
        told.append(
            f"a round of client 0 has {steps}; all that {config.algorithm.name} computes takes as long as {most:.4g}"
        )
    told.append("")
    told += [f"{name:<36}{value}".rstrip() for name, value in figures(plan)]
    told += ["", *lines_of(plan, min(100, width()), lines), f"{need} on this machine"]
    if picture is not None:
        draw_timeline(plan, picture, f"{config.label}, {plan.clients} clients")
        told.append(f"picture: {picture}")
    return "\n".join(told)


def sweep(
    file: Path, grid: Words, seeds: int, jobs: Number, overrides: Words, out: Path | None, quiet: bool, **how: Any
) -> int:
    grids = parse_grids(grid or ())
    ended, finished, root = sweep_over(
        lambda root: plan_sweep(file, overrides or (), grids, seeds, root), file, jobs, out, quiet=quiet, **how
    )
    code = tell((each.run.folder, each.outcome, each.run.folder.name) for each in ended)
    if finished.groups:
        show_comparison(finished)
    show(f"run folders, sweep.csv and runs.csv in: {relative(root)}")
    if code:
        say(f"the same command with --out {relative(root)} goes on with what is missing", err=True)
    return code


def sweep_over(
    planned_in: Callable[[Path], Sweep], file: Path, jobs: Number, out: Path | None, *, quiet: bool, **how: Any
) -> tuple[list[Ended], Comparison, Path]:
    """Makes the runs that are missing in ``out``, or in a new folder called as the file is, and its two tables. ``how``
    is of ``scheduled.opened``. Returns those that ended, a comparison of all that have finished, and the folder."""
    with ExitStack() as stack:
        root = stack.enter_context(new_folder(None, file)) if out is None else out.resolve()
        plan = planned_in(root)
        claim = stack.enter_context(alone_in(root))
        missing = plan.missing()
        makers = opened(claim, jobs, len(missing), **how)
        prepared, total, seconds = prepare(missing), len(plan.runs), list[float]()

        def told(ended: Ended) -> None:
            seconds.append(ended.seconds)
            left = len(missing) - len(seconds)
            how = {"finish": "finished", "failure": "failed", "interrupt": "was interrupted"}[ended.outcome.status]
            more = f", {remaining(mean(seconds) * left / min(makers.size, left))}" if left else ""
            say(f"{total - left} of {total}: {ended.run.folder.name} {how} after {ended.seconds:.1f} s{more}", err=True)

        if not quiet:
            for first in prepared[:1]:  # what is told of the first holds for all, but for what is swept
                say("\n".join(Banner().lines(first)), err=True)
            before = f", {total - len(missing)} finished before" if len(missing) < total else ""
            say(f"{total} runs{before}", err=True)
        with makers:
            ended = makers.make(missing, (lambda _: None) if quiet else told)
        folders = [run.folder for run in plan.runs]
        finished = Comparison(summarize_all([folder for folder in folders if is_finished(folder)]), plan.keys)
        write_groups(root / "sweep.csv", finished)
        write_runs(root / "runs.csv", folders, plan.keys)
    return ended, finished, root


def reproduce(
    what: str | None, listed: bool, seeds: Number, rounds: Number, out: Path, overrides: Words, quiet: bool, **size: Any
) -> int:
    if what is None or listed:
        titles = [f"{name:<11}{title}" for name in reproduction.names() for title in reproduction.titles(name)]
        titles.append(f"{reproduction.ALL_PAPERS:<11}all of these but `all`, in turn")
        say("\n".join(reproduction_list.lines(what, out.resolve()) if listed else titles))
        return FINISHED
    changed = [*(overrides or ()), *([f"rounds={rounds}"] if rounds else [])]
    parts, left_out = reproduction.with_data(what, reproduction.parts_of(what, overrides=changed, **size))
    planned = {part.stem: reproduction.planned(part, seeds, out.resolve()) for part in parts}
    missing_of([run for runs in planned.values() for run in runs], accept_diverged=True)  # refuses before any starts
    make = partial(_reproduced, planned=planned, out=out.resolve(), changed=changed, quiet=quiet)
    code, told = _in_turn(parts, make) if what == reproduction.ALL_PAPERS else (make(parts)[0], [])
    if code == INTERRUPTED:
        say("the same command goes on with the runs that are left", err=True)
        return code
    for line in [*told, *left_out]:
        say(line)
    show(f"run folders in: {relative(out.resolve())}")
    return code


def _reproduced(
    parts: Sequence[Part], planned: Mapping[str, Sequence[PlannedRun]], out: Path, changed: list[str], quiet: bool
) -> tuple[int, Counter[str]]:
    """Makes the runs that are missing and shows all. Returns the exit code, and how many ended in which way."""
    missing = begin_anew(missing_of([run for part in parts for run in planned[part.stem]], accept_diverged=True))
    for line in train_encoders([encoder for part in parts for encoder in part.about.encoders], missing):
        say(line)
    with Display(quiet=quiet) as display:
        made = run_each(missing, _OneByOne(display))
    code, ends = tell((each.prepared.folder, each.outcome, each.prepared.config.label) for each in made), Counter[str]()
    for part in parts if code != INTERRUPTED else ():
        results = reproduction.results(part, planned[part.stem])
        ends.update(result.ended for result in results)
        say(part.about.title)
        show(reproduction.render(part, results))
        say(reproduction.remarks(part, results, changed))
        for path in reproduction.draw(part, results, out):
            say(f"written: {relative(path)}")
        say("")
    return code, ends


def _in_turn(parts: Sequence[Part], make: Callable[..., tuple[int, Counter[str]]]) -> tuple[int, list[str]]:
    """Goes on where a part fails; one of which runs diverge has not. Returns the exit code, and a line for each."""
    code, told, pace = FINISHED, [f"{len(parts)} parts:"], Pace()
    for number, part in enumerate(parts, 1):
        began = time.monotonic()
        try:
            part_code, ends = make([part])
            why = f"{ends['failed']} of {ends.total()} runs" if ends["failed"] else ""
        except Exception as error:
            part_code, ends, why = FAILED, Counter(), str(error) or type(error).__name__
            if not isinstance(error, UserError):
                traceback.print_exc()
        if part_code == INTERRUPTED:
            return part_code, []
        code = max(code, FAILED if why else FINISHED)
        diverged = f", {ends['diverged']} of {ends.total()} runs diverged" if ends["diverged"] else ""
        how = f"failed: {why}" if why else f"finished{diverged}"
        told.append(f"  {part.stem:<20} {(time.monotonic() - began) / 60:5.1f} min  {how}")
        say(f"{number} of {len(parts)}: {part.stem} {how}{pace.after_one(len(parts) - number)}", err=True)
    return code, told


class _OneByOne(Follower):
    """Shows each run; what stays of it is a line."""

    def begins(self, prepared: Prepared) -> Display:
        self._display.follow(prepared.folder)
        return self._display

    def has_ended(self, finished: Finished) -> None:
        super().has_ended(finished)
        if finished.outcome.status == "finish":
            self._display.tell(f"{finished.prepared.folder.name}: finished")
