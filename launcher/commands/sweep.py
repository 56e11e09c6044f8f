"""``sheafgossip sweep``."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import mean

from ...metrics.comparison import Comparison, summarize_all
from ...metrics.export import write_groups, write_runs
from ...metrics.terminal import say, show
from ...metrics.text import duration
from ..prepare.prepared import Prepared
from ..run.banner import Banner
from ..run.earlier import is_finished
from ..run.folder import relative
from ..studies.crew import Ended, alone_in, prepare, run_in_jobs
from ..studies.folders import new_folder
from ..studies.sweep import parse_grids
from ..studies.sweep import plan as plan_sweep
from .ending import exit_code, tell
from .results import show_comparison

_HOW = {"finish": "finished", "failure": "failed", "interrupt": "was interrupted"}


def sweep(
    file: Path,
    grid: Sequence[str] | None,
    seeds: int,
    jobs: int,
    overrides: Sequence[str] | None,
    out: Path | None,
    quiet: bool,
) -> int:
    """Makes the runs that are missing of a sweep and shows means over seeds. Returns the exit code."""
    with ExitStack() as stack:
        root = stack.enter_context(new_folder(None, file)) if out is None else out.resolve()
        planned = plan_sweep(file, overrides or (), parse_grids(grid or ()), seeds, root)
        claim = stack.enter_context(alone_in(root))
        missing = planned.missing()
        prepared = prepare(missing)
        progress = None if quiet else _Progress(prepared, len(planned.runs), len(missing), jobs)
        ended = run_in_jobs(missing, jobs, claim.descriptor, progress or (lambda _: None))
        folders = [run.folder for run in planned.runs]
        finished = Comparison(summarize_all([folder for folder in folders if is_finished(folder)]), planned.keys)
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


class _Progress:
    """Tells of ``missing`` runs of ``total``, as ``jobs`` at once end, on standard error."""

    def __init__(self, prepared: Sequence[Prepared], total: int, missing: int, jobs: int):
        self._total, self._left, self._jobs = total, missing, jobs
        self._seconds: list[float] = []
        for first in prepared[:1]:  # what is told of the first holds for all, but for what is swept
            say("\n".join(Banner().lines(first)), err=True)
        say(f"{total} runs{f', {total - missing} finished before' if missing < total else ''}", err=True)

    def __call__(self, ended: Ended) -> None:
        self._left -= 1
        self._seconds.append(ended.seconds)
        line = f"{self._total - self._left} of {self._total}: {ended.run.name} {_HOW[ended.outcome.status]} after "
        line += f"{ended.seconds:.1f} s"
        if self._left:
            line += f", about {duration(mean(self._seconds) * self._left / min(self._jobs, self._left))} left"
        say(line, err=True)
