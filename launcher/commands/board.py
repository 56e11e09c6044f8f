"""``sheafgossip board``: methods on problems, tuned alike, on one page; and an entry of it made again and compared."""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from ...metrics.board import Board, Entry, Result, read_board
from ...metrics.config_file import parse
from ...metrics.report.board import DATA, PAGE, write_board
from ...metrics.text import Pace, new_table, say, short, show
from ...topology.errors import UserError
from ..config.files import load_one
from ..config.sections import ConfigError
from ..run.folder import origin, relative
from ..studies.board import Maker, Method, Plan, Problem, board_of, ours, results_of
from ..studies.folders import raised_as, require_empty
from ..studies.search import Budget
from ..studies.sweep import Jobs, alone_in
from .outcomes import FAILED, FINISHED, INTERRUPTED


def board(
    files: list[Path] | None,
    methods: list[str] | None,
    problems: list[str] | None,
    seeds: int,
    trials: int,
    tuning_seeds: int,
    jobs: int,
    out: Path,
    check: str | None,
    of: Path | None,
    quiet: bool,
) -> int:
    if check is not None:
        return check_entry(check, of or out / DATA, jobs)
    plan = plan_of(files or [], methods or [], problems or [], Budget(trials, tuning_seeds), seeds)
    made, whole = make_board(plan, jobs, out, quiet=quiet)
    if made.entries:
        _show(made)
        show(f"{relative(out.resolve() / PAGE)}: {len(made.entries)} entries")
        if there := next((each for each in made.entries if each.results), None):
            where = "" if out == Path("runs/board") else f" --out {out}"
            show(f"each can be made again: sheafgossip board --check {there.name}{where}")
    if not whole:
        say("interrupted: the same command goes on where it was", err=True)
    return FINISHED if whole else INTERRUPTED


def plan_of(files: Sequence[Path], methods: Sequence[str], problems: Sequence[str], budget: Budget, seeds: int) -> Plan:
    """``files`` are methods and problems of one's own, beside ours, or beside those of these names. Raises
    ConfigError."""
    of_methods, of_problems = ours(Method, methods), ours(Problem, problems)
    for path in files:
        with raised_as(f"{path}: cannot be read"):
            is_problem = "algorithm" not in parse(path.read_text(encoding="utf-8"))
        (of_problems if is_problem else of_methods).append((Problem if is_problem else Method).of(path))
    for each in (of_methods, of_problems):
        names = [found.name for found in each]
        if twice := [name for number, name in enumerate(names) if name in names[:number]]:
            raise ConfigError(f"{twice[0]}: two files of the board would share that name; rename yours")
    if not of_methods or not of_problems:
        raise ConfigError(f"board: there is no {'method' if of_problems else 'problem'}; give a file with one")
    return Plan(of_problems, of_methods, budget, seeds)


def make_board(plan: Plan, jobs: int, out: Path, *, quiet: bool) -> tuple[Board, bool]:
    """Makes what is missing in ``out``, and the page after each problem. Returns the board, and whether it is whole:
    False after Ctrl-C. Raises ConfigError."""
    root, pace = out.resolve(), Pace()
    if not (root / DATA).exists():
        require_empty(root)
    pairs = [(problem, method) for problem in plan.problems for method in plan.methods]
    entries, facts = list[Entry](), {"command": origin()["command"]}

    def page() -> Board:
        found = board_of(plan, entries, facts)
        with raised_as(f"--out {out}: cannot be written"):
            write_board(found, root)
        return found

    with ExitStack() as stack:
        claim = stack.enter_context(alone_in(root))
        maker = Maker(plan, root, stack.enter_context(Jobs(jobs, claim.descriptor)))
        there = [maker.made(*pair) for pair in pairs]
        board_of(plan, (), facts).save(root / DATA)
        for number, (problem, method) in enumerate(pairs):
            if not (entry := there[number]):
                try:
                    entry = maker.make(problem, method)
                except KeyboardInterrupt:
                    return page(), False
                if not quiet:
                    left = pace.after_one(there[number + 1 :].count(None))
                    say(f"{number + 1} of {len(pairs)}: {_said(entry)}{left}", err=True)
            entries.append(entry)
            if method is plan.methods[-1]:
                page()
        return page(), True


def _said(entry: Entry) -> str:
    found = entry.estimate("test_metric")
    values = ", ".join(f"{key.rpartition('.')[2]} {short(value) if isinstance(value, float) else value}"
                       for key, value in entry.tuned.items())  # fmt: skip
    return f"{entry.name}: {f'{entry.metric} {short(found.mean)} ({values})' if found else entry.flaw}"


def _show(made: Board) -> None:
    """The first table of the page."""
    from ...metrics.report.board import sections_of

    first = next(sections_of(made))
    table = new_table()
    for number, name in enumerate(first.columns):
        table.add_column(name, justify="right" if number else "left")
    for row in first.rows:
        table.add_row(*row)
    show(table)
    show(first.note)


def check_entry(name: str, of: Path, jobs: int) -> int:
    """Makes the runs of an entry again. Raises UserError."""
    entry = read_board(of).entry(name)
    if not entry.results:
        raise UserError(f"{name}: nothing to compare: {entry.flaw}")
    config = load_one(parse(entry.toml))
    seeds = [each.seed for each in entry.results]
    with (
        tempfile.TemporaryDirectory(prefix="sheafgossip-board-") as folder,
        alone_in(Path(folder)) as claim,
        Jobs(jobs, claim.descriptor) as at_work,
    ):
        results, flaw = results_of(config, seeds, Path(folder) / "runs", at_work)
    if flaw:
        say(f"error: {name}: {flaw}", err=True)
        return FAILED
    table = new_table()
    for title in ("seed", "figure", "on the board", "now"):
        table.add_column(title, justify="left" if title == "figure" else "right")
    different = [pair for pair in zip(entry.results, results, strict=True) if pair[0].digest != pair[1].digest]
    for was, now in different:
        for key, one, other in _differences(was, now):
            table.add_row(f"{was.seed}", key, one, other)
    if not different:
        show(f"{name}: {len(results)} of {len(results)} runs are equal to the bit, in figures, bytes and models")
        return FINISHED
    show(table)
    say(f"error: {name}: {len(different)} of {len(results)} runs differ; another processor or torch rounds "
        "otherwise, see what the board was made with", err=True)  # fmt: skip
    return FAILED


def _differences(was: Result, now: Result) -> list[tuple[str, str, str]]:
    found = [("hash", was.digest[:12], now.digest[:12])]
    for key, value in was.figures.items():
        if key not in ("clients_cpu_s", "clients_pss") and now.figures.get(key) != value:  # the clock's
            found.append((key, f"{value:g}", f"{now.figures.get(key, float('nan')):g}"))
    return found
