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
        self._case, self._place, self._kills = case, place, case.kills
        self._on_wall_clock = case.config["time"]["clock"] == "wall"
        self.refused = False
        self.resumed = 0

    def problems(self) -> list[str]:
        one, other = Records(self._place.path / "one"), Records(self._place.path / "other")
        going, killed = Going(self._place, one.path), frozenset[int]()
        if self._kills.what == "clients":
            killed = self._kill_clients(going)
        code = self._end(going)
        took = time.monotonic() - going.began
        if code == 2 and not one.begun:
            self.refused = True
            lines = going.said.strip().splitlines()
            if len(lines) != 1 or not lines[0].startswith("error: "):
                return [f"refused with {len(lines)} lines: {going.said[-500:]}"]
            return [f"refused, and left {going.folder.name}"] if going.folder.exists() else self._place.left()
        problems = _of_end(code, going) or [*Checker(one, killed).differences(), *self._place.left()]
        if problems or self._kills.what == "clients":
            return problems
        if not (problems := self._again(other, took)):
            problems = [f"the second run: {line}" for line in Checker(other).differences()]
            if not self._on_wall_clock:
                problems += differences(one, other, interrupted=self.resumed > 0)
        return problems + self._place.left()

    def _again(self, other: Records, took: float) -> list[str]:
        """Runs the case once more, through its kills where it has some."""
        going = Going(self._place, other.path)
        for moment in self._kills.moments:
            if going.ended_before(moment * took):
                break
            going.kill(everything=self._kills.what == "everything")
            if left := [line for line in self._place.left() if "process" in line]:
                return [f"after the launcher was killed: {line}" for line in left]
            self.resumed += 1
            if not (again := other.can_be_resumed):
                shutil.rmtree(other.path, ignore_errors=True)
            going = Going(self._place, other.path, again=again)
        code = self._end(going)
        return [] if code == 2 and self.resumed and "this run is finished" in going.said else _of_end(code, going)

    def _kill_clients(self, going: Going) -> frozenset[int]:
        """Once they have begun; returns those that are dead."""
        while not going.clients() and not going.ended_before(time.monotonic() - going.began + 0.05):
            if time.monotonic() - going.began > LIMIT_S:
                going.end(0)
        begun, killed = time.monotonic() - going.began, set[int]()
        for number, moment in enumerate(sorted(self._kills.moments)):
            if going.ended_before(begun + moment):
                break
            if (node := going.kill_client((moment * 7 + number * 0.3) % 1)) is not None:
                killed.add(node)
        return frozenset(killed)

    def _end(self, going: Going) -> int:
        """The exit code. Raises Hung."""
        if self._on_wall_clock and not going.ended_before(LIMIT_S):
            return going.end(LIMIT_S + 2 * Records(going.folder).planned_end_s)
        return going.end(LIMIT_S)


def _of_end(code: int, going: Going) -> list[str]:
    """What is said from the error on, if there is one."""
    if code == 0:
        return []
    start = going.said.find("error: ")
    return [f"exit code {code}: {(going.said[start:][-1500:] if start >= 0 else going.said[-500:]).strip()}"]
