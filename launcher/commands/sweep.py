"""``sheafgossip sweep``."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import mean

from ...metrics.comparison import Comparison, summarize_all
from ...metrics.export import write_groups, write_runs
from ...metrics.terminal import say, show
from ...metrics.text import duration
from ..run.banner import Banner
from ..run.earlier import is_finished
from ..run.folder import relative
from ..studies.crew import Crew, Ended, alone_in, prepare
from ..studies.folders import new_folder
from ..studies.sweep import parse_grids
from ..studies.sweep import plan as plan_sweep
from .ending import exit_code, tell
from .results import show_comparison

_HOW = {"finish": "finished", "failure": "failed", "interrupt": "was interrupted"}


def sweep(
    file: Path, grids: Sequence[str], seeds: int, jobs: int, overrides: Sequence[str], out: Path | None, quiet: bool
) -> int:
    """Makes the runs that are missing of a sweep and shows means over seeds. Returns the exit code."""
    with ExitStack() as stack:
        root = stack.enter_context(new_folder(None, file)) if out is None else out.resolve()
        planned = plan_sweep(file, overrides, parse_grids(grids), seeds, root)
        claim = stack.enter_context(alone_in(root))
        missing = planned.missing()
        for prepared in prepare(missing)[:1]:  # what is told of the first holds for all, but for what is swept
            if not quiet:
                say("\n".join(Banner().lines(prepared)), err=True)
        lines = _Lines(len(planned.runs), len(missing), jobs, silent=quiet)
        with Crew(jobs, claim.descriptor) as crew:
            ended = crew.run_all(missing, lines)
        folders = [run.folder for run in planned.runs]
        finished = Comparison.of(summarize_all([folder for folder in folders if is_finished(folder)]), planned.keys)
        write_groups(root / "sweep.csv", finished)
        write_runs(root / "runs.csv", folders, planned.keys)
    for each in ended:
        tell(each.run.folder, each.outcome, each.run.name)
    if finished.groups:
        show_comparison(finished)
    show(f"run folders, sweep.csv and runs.csv in: {relative(root)}")
    if code := exit_code(each.outcome for each in ended):
        say(f"the same command with --out {relative(root)} goes on with what is missing", err=True)
    return code


class _Lines:
    """Tells of ``missing`` runs of ``total``, as ``jobs`` at once end."""

    def __init__(self, total: int, missing: int, jobs: int, *, silent: bool = False):
        self._silent = silent
        self._total, self._left, self._jobs = total, missing, jobs
        self._seconds: list[float] = []
        there = f", {total - missing} finished before" if missing < total else ""
        self._say(f"{total} runs{there}")

    def __call__(self, ended: Ended) -> None:
        self._left -= 1
        self._seconds.append(ended.seconds)
        number = self._total - self._left
        line = f"{number} of {self._total}: {ended.run.name} {_HOW[ended.outcome.status]} after {ended.seconds:.1f} s"
        self._say(line + (f", about {duration(self._time_left())} left" if self._left else ""))

    def _time_left(self) -> float:
        return mean(self._seconds) * self._left / min(self._jobs, self._left)

    def _say(self, line: str) -> None:
        if not self._silent:
            print(line, file=sys.stderr, flush=True)
