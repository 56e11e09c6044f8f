"""``sheafgossip shrink``: candidates are run as those of a sweep, each verdict is kept, and the smallest shown."""

import csv
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import tomli_w

from ...metrics.figures import AVERAGED, averaged_of
from ...metrics.store import RunFolderError
from ...metrics.summary import RunSummary, summarize
from ...metrics.text import TEST_METRICS, new_table, say, show
from ...node import own_code
from ...topology.errors import UserError
from ..config.effect import tidy
from ..config.files import tables_of, with_paths_from
from ..config.sections import ConfigError, RunConfig, validate
from ..run.earlier import PlannedRun, clear, has_diverged
from ..run.folder import relative
from ..studies.folders import new_folder, rows_kept
from ..studies.shrink import Candidate, Search, Verdict
from ..studies.sweep import Ended, Jobs, alone_in, prepare
from .outcomes import FINISHED, INTERRUPTED

_WORDS = ("diverged", "failed", "refused", "hung")
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq,
}  # fmt: skip
_STEPS, _SMALLEST = "steps.csv", "smallest.toml"
_COLUMNS = ("candidate", "fails", "sound", "seconds", "said", "tried")
Words = Sequence[str] | None


@dataclass(frozen=True)
class Condition:
    """A figure of a finished run held against a number, or one of the words."""

    text: str
    figure: str = ""
    sign: str = "<"
    number: float = math.nan

    @classmethod
    def of(cls, text: str, config: RunConfig, option: str = "--until") -> "Condition":
        """Raises ConfigError."""
        if (word := text.strip()) in _WORDS:
            return cls(word)
        found = re.fullmatch(r"\s*(.+?)\s*(<=|>=|==|<|>)\s*(\S+)\s*", text)
        number = math.nan
        if found:
            with suppress(ValueError):
                number = float(found[3])
        if not found or math.isnan(number):
            raise ConfigError(f"{option} {text}: write FIGURE < NUMBER (or <=, >, >=, ==), or {', '.join(_WORDS)}")
        names = [*TEST_METRICS, *AVERAGED, *(f"metric.{each.name}" for each in config.evaluation.metrics)]
        if found[1] not in names:
            raise ConfigError(f"{option} {text}: there is no figure {found[1]}; allowed: {', '.join(names)}")
        return cls(f"{found[1]} {found[2]} {number:g}", found[1], found[2], number)

    def judge(self, ended: Ended) -> Verdict:
        folder = ended.run.folder
        said, holds = "; ".join(ended.outcome.causes[:1]), ended.outcome.status == "failure"
        if ended.hung:
            return Verdict(self.text == "hung", said, round(ended.seconds, 2))
        with suppress(RunFolderError):
            run = summarize(folder)
            if self.figure:
                is_whole = run.status == "finished" and run.gone < run.clients  # whom all have left has no figures
                value = self._value(run) if is_whole else None
                holds = value is not None and _COMPARE[self.sign](value, self.number)
                said = said or f"{self.figure} {'not known' if value is None else f'{value:.6g}'}"
            elif self.text == "diverged":
                grown = run.divergence is not None and run.divergence.kind == "diverged"
                holds, said = grown or has_diverged(folder), said or f"{run.divergence or run.status}"
            said = said or run.status
        holds = holds and self.text not in ("refused", "hung")
        return Verdict(holds, " ".join(said.split())[:300], round(ended.seconds, 2))

    def _value(self, run: RunSummary) -> float | None:
        if self.figure in TEST_METRICS:
            return run.final.mean if run.final and run.metric == self.figure else None
        figure = averaged_of([run]).get(self.figure)
        return figure.of(run) if figure else None


@dataclass(frozen=True)
class _Wanted:
    """``fails`` is what is searched for; ``without_faults`` what a run is to be without faults and conditions."""

    fails: Condition
    without_faults: Condition | None
    timeout_s: float

    @property
    def text(self) -> str:
        found = f"until {self.fails.text}"
        if self.without_faults:
            found += f", without faults {self.without_faults.text}"
        return found + (f", in {self.timeout_s:g} s" if self.timeout_s < math.inf else "")

    def judge(self, ended: Ended) -> Verdict:
        found = self.fails.judge(ended)
        if self.without_faults is None:
            return found
        other = self.without_faults.judge(ended)
        return replace(found, sound=other.fails, said="; ".join(dict.fromkeys([found.said, other.said])))


class _Judge:
    """Runs candidates in folders that go again, and keeps what was said of them in steps.csv."""

    def __init__(self, wanted: _Wanted, root: Path, jobs: Jobs, *, quiet: bool):
        self._wanted, self._root, self._jobs, self._quiet = wanted, root, jobs, quiet
        self.cause = ""  # of the first failure, or refusal: with another cause it would be another one

    def __call__(self, candidates: Sequence[Candidate]) -> list[Verdict]:
        """Raises KeyboardInterrupt."""
        found, ready = dict[str, Verdict](), dict[Path, tuple[Candidate, PlannedRun]]()
        for each in candidates:
            folder = self._root / each.key
            try:
                run = PlannedRun(validate(each.tree), folder)
                prepare([run])
                ready[folder] = each, run
            except UserError as error:
                said = f"refused: {f'{error}'.removeprefix(f'{folder.name}: ')}"
                sound = None if self._wanted.without_faults is None else False
                refused = Verdict(self._wanted.fails.text == "refused", said, sound=sound)
                found[each.key] = self._keep(each, refused)

        def done(ended: Ended) -> None:
            candidate, _ = ready[ended.run.folder]
            found[candidate.key] = self._keep(candidate, self._wanted.judge(ended))
            clear(ended.run.folder)

        self._jobs.make([run for _, run in ready.values()], done, self._wanted.timeout_s)
        if len(found) < len(candidates):
            raise KeyboardInterrupt
        return [found[each.key] for each in candidates]

    def _keep(self, candidate: Candidate, verdict: Verdict) -> Verdict:
        if self._wanted.fails.text in ("failed", "refused") and self.cause:
            verdict = replace(verdict, fails=verdict.fails and _cause(verdict.said) == _cause(self.cause))
        with (self._root / _STEPS).open("a", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerow(_row(candidate, verdict))
        if not self._quiet:
            say(f"{'fails' if verdict.fails else 'does not'}: {candidate.tried} ({verdict.said})", err=True)
        return verdict


def _cause(said: str) -> str:
    return re.sub(r"\d+", "#", said)


def shrink(
    file: Path,
    until: str,
    without_faults: str | None,
    runs: int,
    jobs: int,
    timeout: float | None,
    overrides: Words,
    out: Path | None,
    quiet: bool,
) -> int:
    tree = tidy(tables_of(file, overrides or ()))
    config = validate(tree)
    if config.times_a_step:
        raise ConfigError("compute.step_s is not set: all candidates must count time alike")
    sound = None if without_faults is None else Condition.of(without_faults, config, "--without-faults")
    wanted = _Wanted(Condition.of(until, config), sound, timeout or math.inf)
    if wanted.fails.text == "hung" and timeout is None:
        raise ConfigError("--until hung: say with --timeout after how many seconds a run is taken to hang")
    code = "".join(f" (code {digest[:8]})" for digest in own_code.digests(config.uses).values())
    start = Candidate(f"as it is, {wanted.text}{code}", tree)
    with ExitStack() as stack:
        called = file.with_name(f"{file.stem}-shrunk")
        root = stack.enter_context(new_folder(None, called)) if out is None else out.resolve()
        claim = stack.enter_context(alone_in(root))
        known = _known(root, start)
        _clear_candidates(root)  # of a search that was killed
        judge = _Judge(wanted, root, stack.enter_context(Jobs(jobs, claim.descriptor)), quiet=quiet)

        def improved(best: Candidate) -> None:
            text = tomli_w.dumps(with_paths_from(root, best.tree))
            (root / _SMALLEST).write_text(f"# {wanted.text}\n{text}", encoding="utf-8")

        search = Search(start, judge, runs, jobs, known, improved)
        try:
            first = search.begin()
            rest = first if sound is None or not first.fails else search.without_faults()
            if not first.fails or rest.sound is False:
                (root / _STEPS).unlink()
                told = f"without faults and conditions {sound.text}" if first.fails and sound else wanted.fails.text
                raise ConfigError(f"{file}: there is nothing to shrink, {told} is not so: {rest.said}")
            judge.cause = first.said
            improved(start)
            whole = search()
        except KeyboardInterrupt:
            _clear_candidates(root)
            say(f"interrupted: the same command with --out {relative(root)} goes on where it was", err=True)
            return INTERRUPTED
        _tell(search, root, whole=whole)
    return FINISHED


def _clear_candidates(root: Path) -> None:
    for folder in root.iterdir():
        if re.fullmatch("[0-9a-f]{12}", folder.name):
            clear(folder)


def _tell(search: Search, root: Path, *, whole: bool) -> None:
    table = new_table()
    for name in ("step", "left out or tried", "which came to"):
        table.add_column(name)
    for number, (candidate, verdict) in enumerate(search.taken.values()):
        if candidate.key in search.kept:
            table.add_row(f"{number}", candidate.tried, verdict.said)
    show(table)
    tree, count = search.best.tree, len(search.taken)
    sizes = f"clients {tree['clients']}, rounds {tree['rounds']}, faults {len(tree.get('faults', []))}"
    show(f"{sizes}, after {count} candidates, of which {search.runs} ran: {relative(root / _STEPS)}")
    show("nothing that was tried can be left out" if whole else "a larger --runs may leave less")
    show(f"sheafgossip run {relative(root / _SMALLEST)}")


def _row(candidate: Candidate, verdict: Verdict) -> list[str]:
    seconds = "" if verdict.seconds is None else f"{verdict.seconds:g}"
    fails, sound = ("" if each is None else "yes" if each else "no" for each in (verdict.fails, verdict.sound))
    return [candidate.key, fails, sound, seconds, verdict.said, candidate.tried]


def _known(root: Path, start: Candidate) -> dict[str, Verdict]:
    """Returns what steps.csv tells by a candidate's key; a line that was being written goes. Raises ConfigError."""
    columns, *rows = rows_kept(root, _STEPS, _COLUMNS)
    if columns != [*_COLUMNS] or (rows and [rows[0][0], rows[0][-1]] != [start.key, start.tried]):
        raise ConfigError(f"--out {root}: holds the steps of another search; choose another name")
    told = {"yes": True, "no": False}
    return {
        key: Verdict(told[fails], said, float(seconds) if seconds else None, told.get(sound))
        for key, fails, sound, seconds, said, _ in rows
    }
