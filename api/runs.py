"""Runs from Python: made, taken up, planned, swept, read and compared, as the commands of the same names do it."""

import html
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from .given import Folder, How, Source, Where, With, means_of, path_of, read, tables, with_own
from .launcher import ONE_THREAD, interrupts
from .launcher.commands import runs as commands
from .launcher.commands.replay import make_replay, sameness
from .launcher.commands.twin import make_twins, twins_of
from .launcher.commands.verify import compared_with_kernel
from .launcher.config.files import load, load_one
from .launcher.config.sections import SCENARIO_TABLES
from .launcher.planner.plan import Plan
from .launcher.processes.engine import open_engine
from .launcher.run.earlier import load_code
from .launcher.run.folder import facts
from .launcher.run.run import Outcome
from .launcher.studies.calibration import Calibration, calibrate as measure
from .launcher.studies.runner import Finished, Observer
from .launcher.studies.sweep import parse_grids, plan as plan_sweep
from .metrics.comparison import Comparison, render_comparison, summarize_all
from .metrics.export import rows_of_groups
from .metrics.reader import RunReader, runs_in
from .metrics.store import MODELS
from .metrics.summary import RunSummary, summarize
from .metrics.text import as_text, width
from .metrics.twins import Twins
from .metrics.verification import Verified
from .node import own_code
from .node.algorithms.base import Algorithm
from .node.model.architecture import of_process
from .topology.errors import UserError

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch.nn import Module


class RunError(UserError):
    """A run failed. Each line is a cause, as the command line prints it; ``run`` has what was recorded until then."""

    def __init__(self, run: "Run", causes: Sequence[str]):
        super().__init__(*causes)
        self.run = run


class Run(RunReader):
    """What a run recorded. Its tables and views are pandas frames: ``rounds``, ``traffic``, ``edges``, ``resources``,
    ``events``, ``metrics``, ``nodes`` and more, described below, and views as ``round_total``. Each access reads what
    is there at that moment. A folder of several runs is read as one: then ``run`` and the keys that differ are further
    columns."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        from .metrics.report.inline import inline

        return inline(runs_in(self.folder))

    @property
    def summary(self) -> RunSummary:
        """Every figure of ``sheafgossip summary --all``."""
        return summarize(self._only("summary"))

    @property
    def models(self) -> dict[int, Any]:
        """{client: its parameters (d,)} after the last round with state."""
        return self.theta()

    def module(
        self,
        client: int,
        round: int | None = None,
        *,
        model: Callable[..., Any] | None = None,
        own_code: bool = False,
    ) -> "Module":
        """Returns a client's model as a torch.nn.Module in evaluation mode, with theta and buffers as after ``round``,
        by default the last one with state. It takes samples as they are in ``shard``, as torch tensors.

        A model of one's own (model.use) is made by the function ``model``, which then has to be that of the run; by
        default by the one that the configuration names, where this program has executed it before, or with
        ``own_code``: then its file is executed from where it is, unless it has changed since the run began. Nothing in
        the run's folder is ever executed. Raises Error."""
        from .node.model.module import module_of

        states, folder = self.state(round), self._only("model")
        if client not in states:
            raise UserError(f"{folder}: no state of client {client!r}; there are {', '.join(map(str, states))}")
        kind, config = of_process(facts(folder).get(MODELS, "null"), client), self.config
        make = None
        if kind.own:
            make = model or _own_model(folder, kind.own.use, may_execute=own_code)
        try:
            seed, own_draw = int(config["seed"]), [] if config["model"]["same_start"] else [client]
        except (KeyError, TypeError, ValueError):
            raise UserError(f"{folder}: config.toml is none that a run has written") from None
        with _errors_told():
            return module_of(kind, states[client], make, seed, *own_draw)

    def report(self, out: Folder | None = None) -> "Page":
        """Writes the HTML page, by default report.html in the run's folder; a notebook shows what this returns."""
        from .metrics.report.page import write_report

        path = self.folder / "report.html" if out is None else path_of(out)
        write_report(runs_in(self.folder), path)
        return Page(path)


def _own_model(folder: Path, use: str, *, may_execute: bool) -> Callable[..., Any]:
    """Returns the function that made the run's models. Raises Error."""
    if not may_execute and not own_code.is_loaded(use, "model.use"):
        raise UserError(
            f"{folder}: model.use = {use!r}: what a run's folder names is executed with own_code=True only; "
            "or give the function as model=..."
        )
    load_code(folder, use)
    return own_code.load(use, "model.use")


class Sweep(Run):
    """The runs of a sweep, and ``table``: a line a setting, with every figure and its standard error over seeds."""

    def __init__(self, folder: Path, comparison: Comparison):
        super().__init__(folder)
        self.comparison = Table(comparison)

    @property
    def table(self) -> "DataFrame":
        return self.comparison.frame


@dataclass(frozen=True)
class Page:
    path: Path

    def _repr_html_(self) -> str:
        text = html.escape(self.path.read_text(encoding="utf-8"))
        how = 'sandbox="allow-scripts" style="width: 100%; height: 40em; border: none"'  # apart from the notebook
        return f'<iframe srcdoc="{text}" {how}></iframe>'


class Table:
    """Runs side by side, those that differ only in seed and name as one line. ``frame`` has every figure, with its
    standard error in a column of its own; printed, it is what ``sheafgossip compare`` shows."""

    def __init__(self, comparison: Comparison, target: float | None = None):
        self.comparison, self.target = comparison, target

    @property
    def frame(self) -> "DataFrame":
        import pandas

        return pandas.DataFrame(rows_of_groups(self.comparison))

    def __str__(self) -> str:
        return "\n".join(map(as_text, render_comparison(self.comparison, self.target, width())))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.frame.to_html(index=False)


def run(
    config: Source,
    changes: Mapping[str, Any] | None = None,
    *,
    algorithm: Algorithm | None = None,
    model: Callable[..., Any] | None = None,
    data: Callable[[], Any] | None = None,
    live: bool = False,
    **how: Unpack[How],
) -> Run:
    """Makes the run, or the runs of [[compare]] tables, and returns what was recorded.

    ``changes`` are {key with dots: value}; ``algorithm`` takes the place of [algorithm], ``model`` and ``data`` are
    functions for model.use and data.use. ``out`` is the run's folder, by default a new one in runs/; where it holds
    some of the runs of [[compare]] tables, the others are made. Progress goes to sys.stderr, unless ``quiet``; with
    ``live`` a notebook's cell draws curves as the run goes on, and elsewhere nothing is different.
    ``engine`` is "local", "ray", whose cluster is at ``address``, or "threads"; ``force`` tries what needs more memory
    than is free.

    Raises Error where something is wrong with what was asked for, before anything is started, RunError where a run
    fails, and KeyboardInterrupt, after a clean stop, where it is interrupted."""
    source, name = read(config)
    out, quiet, means = means_of(how, How)
    all_changes = with_own(tables(changes or {}, "changes"), algorithm, model, data)
    with _inside_a_program():
        made = commands.make(load(source, all_changes), name, out, means, quiet=quiet, live=live)
    return _result(made.root, made.ended)


def resume(
    folder: Folder, rounds: int | None = None, *, own_code: bool = False, live: bool = False, **how: Unpack[With]
) -> Run:
    """Takes up an interrupted run after its last complete checkpoint; with ``rounds``, a finished one too, until it has
    so many. ``own_code``: the files of yours that the run uses, which its folder names, are executed. ``live`` as in
    ``run``, which raises the same."""
    _, quiet, means = means_of(how, With)
    place = path_of(folder)
    if rounds is not None and type(rounds) is not int:
        raise UserError(f"rounds = {rounds!r}: must be a whole number")
    with _inside_a_program():
        if own_code:
            load_code(place)
        ended = commands.go_on(place, rounds, means, quiet=quiet, live=live)
    return _result(ended.prepared.folder, [ended])


def replay(folder: Folder, *, own_code: bool = False, **how: Unpack[How]) -> Run:
    """Makes a run that has ended again, in the folder ``out``, with the messages that it used. Raises RunError where
    that is not equal to the bit, and otherwise as ``run`` does; ``own_code`` as in ``resume``."""
    out, quiet, means = means_of(how, How)
    place = path_of(folder).resolve()
    with _inside_a_program():
        if own_code:
            load_code(place)
        ended = make_replay(place, out, means, quiet=quiet)
    made = _result(ended.prepared.folder, [ended])
    if difference := sameness(place, made.folder).difference:
        raise RunError(made, [f"not what was recorded: {difference}"])
    return made


def twin(
    configs: Source | Sequence[Source],
    changes: Mapping[str, Any] | None = None,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    **how: Unpack[How],
) -> Twins:
    """Plans each configuration, with all combinations of the values in ``grid``, runs it on the wall clock, and returns
    planned and measured seconds. Where ``out`` holds some of the runs, the others are made. Raises as ``run`` does."""
    sources: Sequence[Any] = configs if isinstance(configs, list | tuple) else [configs]
    if not sources:
        raise UserError("twin: needs a configuration")
    out, quiet, means = means_of(how, How)
    grids, given = parse_grids(tables(grid or {}, "grid")), tables(changes or {}, "changes")
    with _inside_a_program():
        made = make_twins([read(each)[0] for each in sources], grids, given, out, means, quiet=quiet)
    _require_success([(each.prepared.config.label, each.outcome) for each in made.ended], made.root)
    return twins_of(made)


def open_run(folder: Folder) -> Run:
    """Reads what is there, and writes and executes nothing. Raises Error where the folder is none of a run, or of
    several."""
    return Run(path_of(folder))


def sweep(
    config: Source,
    grid: Mapping[str, Sequence[Any]] | None = None,
    changes: Mapping[str, Any] | None = None,
    *,
    seeds: int = 1,
    jobs: int = 1,
    **where: Unpack[Where],
) -> "Sweep":
    """Makes all combinations of the values in ``grid``, {key with dots: values}, each with so many seeds, ``jobs`` runs
    at once. Where ``out`` holds some of them, the others are made. Raises as ``run`` does."""
    source, name = read(config)
    out, quiet, _ = means_of(where, Where)
    for key, value in (("seeds", seeds), ("jobs", jobs)):
        if type(value) is not int or value < 1:
            raise UserError(f"{key} = {value!r}: must be a whole number of at least 1")
    grids, given = parse_grids(tables(grid or {}, "grid")), tables(changes or {}, "changes")
    with _inside_a_program():
        ended, finished, root = commands.sweep_over(
            lambda root: plan_sweep(source, given, grids, seeds, root), name, jobs, out, quiet=quiet
        )
    _require_success([(each.run.folder.name, each.outcome) for each in ended], root)
    return Sweep(root, finished)


def plan(config: Source, changes: Mapping[str, Any] | None = None) -> Plan:
    """Returns what will happen in a run with a scenario, in virtual seconds, and starts nothing; printed, its figures.
    Raises Error."""
    source, _ = read(config)
    with _inside_a_program(), ExitStack() as stack:
        configs = load(source, tables(changes or {}, "changes"))
        if len(configs) > 1 or not configs[0].has_scenario:
            raise UserError(f"plan: needs one run, with one of {SCENARIO_TABLES}")
        engine = cache(lambda: stack.enter_context(open_engine()))  # takes a second or two, only to time a step
        prepared, _ = commands.prepared_for_a_plan(configs[0], lambda own, steps: engine().time_a_step(own, steps))
    assert prepared.plan
    return prepared.plan


def calibrate(config: Source, changes: Mapping[str, Any] | None = None, **how: Unpack[With]) -> Calibration:
    """Measures what local work, messages and links of a run take here. ``calibrate(config).tables`` are [compute] and
    [links]. Raises Error."""
    source, _ = read(config)
    _, quiet, means = means_of(how, With)
    with _inside_a_program():
        return measure(
            load_one(source, tables(changes or {}, "changes")),
            means,
            lambda text: None if quiet else print(f"measuring {text}", file=sys.stderr),
        )


def verify(floats: Sequence[int] | None = None) -> list[Verified]:
    """Holds the recorded bytes of small runs over TCP against the kernel's own counters, for vectors of these lengths.
    Raises RunError where they differ, and Error where the kernel does not count."""
    if wrong := [each for each in floats or () if type(each) is not int or each < 1]:
        raise UserError(f"floats = {wrong[0]!r}: must be whole numbers of at least 1")
    with _inside_a_program(), tempfile.TemporaryDirectory(prefix="sheafgossip-verify-") as folder:
        out = Path(folder) / "runs"
        verified, ended = compared_with_kernel(floats, out, Observer())
        _require_success([(each.prepared.config.label, each.outcome) for each in ended], out)
        if complaints := [complaint for each in verified for complaint in each.complaints]:
            raise RunError(Run(out), complaints)
    return verified


def compare(runs: Sequence[Run | Folder], target: float | None = None) -> Table:
    """Returns runs side by side. With a ``target``, a test metric, there are also figures of what it took to reach it.
    Raises Error."""
    if target is not None and not isinstance(target, int | float):
        raise UserError(f"target = {target!r}: must be a number")
    if isinstance(runs, str | os.PathLike | RunReader) or not (folders := [path_of(each) for each in runs]):
        raise UserError(f"compare needs a list of runs, or of their folders; this is {runs!r:.80}")
    return Table(Comparison(summarize_all([run for folder in folders for run in runs_in(folder)], target)), target)


@contextmanager
def _inside_a_program() -> Iterator[None]:
    """A program has signal handlers of its own, and may have loaded libraries that compute with several threads, whose
    bits would be others."""
    with ExitStack() as stack:
        stack.enter_context(interrupts.handled())
        stack.enter_context(_errors_told())
        if not ONE_THREAD.items() <= os.environ.items():
            from threadpoolctl import threadpool_limits

            stack.enter_context(threadpool_limits(1))
            if torch := sys.modules.get("torch"):
                stack.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(1)
            before = {name: os.environ.get(name) for name in ONE_THREAD}  # for what is loaded only now
            os.environ.update(ONE_THREAD)
            stack.callback(_restore, before)
        yield


def _restore(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@contextmanager
def _errors_told() -> Iterator[None]:
    """Raises what comes from a line of the user's own code as an Error that shows the line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if line := own_code.blamed(error):
            raise UserError(line) from error
        raise


def _result(root: Path, ended: Sequence[Finished]) -> Run:
    several = len(ended) > 1
    _require_success([(each.prepared.config.label if several else "", each.outcome) for each in ended], root)
    return Run(root)


def _require_success(outcomes: Sequence[tuple[str, Outcome]], root: Path) -> None:
    """Raises KeyboardInterrupt where a run was interrupted, RunError where one failed."""
    if any(outcome.status == "interrupt" for _, outcome in outcomes):
        raise KeyboardInterrupt
    failed = [(name, cause) for name, outcome in outcomes if outcome.status == "failure" for cause in outcome.causes]
    if failed:
        raise RunError(Run(root), [f"{name}: {cause}" if name else cause for name, cause in failed])
