"""A case, tried: run as it is, then once more or through its kills; and all that must hold of it."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .checker import Checker
from .comparison import differences
from .generator import Case
from .records import Records
from .runner import Going, Hung, Place, place_for

LIMIT_S = 90.0
"""Beyond the planned end, on the wall clock."""


@dataclass(frozen=True)
class Verdict:
    verdict: Literal["fine", "refused", "wrong"]
    problems: tuple[str, ...] = ()
    seconds: float = 0.0
    resumed: int = 0
    """How often the run was taken up again."""


def trial(case: Case, keep: Path | None = None) -> Verdict:
    """``keep`` is where the folders of a run that went wrong go."""
    began = time.monotonic()
    with place_for(case) as place:
        tried = _Trial(case, place)
        try:
            problems = tried.problems()
        except Hung as hung:
            problems = [str(hung)]
        if problems and keep is not None:
            shutil.rmtree(keep, ignore_errors=True)
            shutil.copytree(place.path, keep, symlinks=True, ignore=shutil.ignore_patterns("t"))
    verdict: Literal["fine", "refused", "wrong"] = "wrong" if problems else "refused" if tried.refused else "fine"
    return Verdict(verdict, tuple(problems), time.monotonic() - began, tried.resumed)


class _Trial:
    def __init__(self, case: Case, place: Place):
        self._case = case
        self._place = place
        self._killed: set[int] = set()
        self.refused = False
        self.resumed = 0

    def problems(self) -> list[str]:
        kills = self._case.kills
        if kills.what == "clients":
            return self._with_dying_clients()
        one = Records(self._place.path / "one")
        going = Going(self._place, one.path)
        code = self._end(going)
        took = time.monotonic() - going.began
        if code == 2:
            self.refused = True
            return self._of_refusal(going)
        problems = self._of_end(code, going) or [*Checker(one).differences(), *self._place.left()]
        if problems:
            return problems
        other = Records(self._place.path / "other")
        if not (problems := self._again(other, took)):
            problems = [f"the second run: {line}" for line in Checker(other).differences()]
            if one.config["time"]["clock"] == "virtual":
                problems += differences(one, other, interrupted=self.resumed > 0)
        return problems + self._place.left()

    def _again(self, other: Records, took: float) -> list[str]:
        """Runs the case once more, through its kills where it has some."""
        going = Going(self._place, other.path)
        for moment in self._case.kills.moments:
            if going.ended_before(moment * took):
                break
            if self._case.kills.what == "everything":
                going.kill_everything()
            else:
                going.kill_launcher()
            if left := [line for line in self._place.left() if "process" in line]:
                return [f"after the launcher was killed: {line}" for line in left]
            self.resumed += 1
            if other.can_be_resumed:
                going = Going(self._place, other.path, again=True)
            else:
                shutil.rmtree(other.path, ignore_errors=True)
                going = Going(self._place, other.path)
        code = self._end(going)
        if code == 2 and self.resumed and "this run is finished" in going.said:
            return []
        return self._of_end(code, going)

    def _with_dying_clients(self) -> list[str]:
        records = Records(self._place.path / "one")
        going = Going(self._place, records.path)
        while not going.clients() and not going.ended_before(time.monotonic() - going.began + 0.05):
            if time.monotonic() - going.began > LIMIT_S:
                going.end(0)
        begun = time.monotonic() - going.began
        for number, moment in enumerate(sorted(self._case.kills.moments)):
            if going.ended_before(begun + moment):
                break
            if (node := going.kill_client((moment * 7 + number * 0.3) % 1)) is not None:
                self._killed.add(node)
        code = self._end(going)
        if code == 2 and not records.begun:
            self.refused = True
            return self._of_refusal(going)
        problems = self._of_end(code, going)
        return problems or [*Checker(records, frozenset(self._killed)).differences(), *self._place.left()]

    def _end(self, going: Going) -> int:
        """The exit code. Raises Hung."""
        on_wall_clock = self._case.config["time"]["clock"] == "wall"
        if on_wall_clock and not going.ended_before(LIMIT_S):
            return going.end(LIMIT_S + 2 * Records(going.folder).planned_end_s)
        return going.end(LIMIT_S)

    def _of_refusal(self, going: Going) -> list[str]:
        lines = going.said.strip().splitlines()
        if len(lines) != 1 or not lines[0].startswith("error: "):
            return [f"refused with {len(lines)} lines: {going.said[-500:]}"]
        return [f"refused, and left {going.folder.name}"] if going.folder.exists() else self._place.left()

    def _of_end(self, code: int, going: Going) -> list[str]:
        return [] if code == 0 else [f"exit code {code}: {_last_words(going.said)}"]


def _last_words(said: str) -> str:
    """From the error on, if there is one."""
    start = said.find("error: ")
    return said[max(start, 0) :][-1500:].strip() if start >= 0 else said[-500:].strip()
