"""What a board holds: methods on problems, each a few runs that anybody can make again and compare."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from ..topology.errors import UserError
from .comparison import Estimate
from .config_file import read_text
from .figures import AVERAGED
from .reader import RunReader, open_records
from .store import ALL_EVALUATED
from .summary import mean, standard_error, summarize

FIGURES = ("test_metric", "worst_10", "payload_bytes", "wire_bytes", "virtual_s", "clients_cpu_s", "clients_pss")
"""Keys of what is kept of every run."""
TARGET = 0.9  # of the best accuracy, which it costs bytes and seconds to reach
_FORMAT = 1
_STEP = 0.005  # by which the test metric has to be better for a further point of a curve
_FROM = 0.75  # of a run's best accuracy, where its curve begins: what is worse is no target

Point = tuple[float, float, float]


@dataclass(frozen=True)
class Result:
    """One run. ``digest`` is a SHA-256 of all that does not depend on the clock: see ``digest_of``. A point of
    ``curve`` is (test metric, payload bytes sent by then, virtual seconds), whenever it was better than before."""

    seed: int
    digest: str
    figures: dict[str, float]
    curve: tuple[Point, ...]

    @classmethod
    def of(cls, folder: Path, seed: int) -> "Result":
        """Raises RunFolderError."""
        run = summarize(folder)
        found = {key: AVERAGED[key].of(run) for key in FIGURES}
        figures = {key: float(f"{value:.7g}") for key, value in found.items() if value is not None}
        return cls(seed, digest_of(folder), figures, thinned(curve_of(folder), -1 if run.metric == "mse" else 1))


@dataclass(frozen=True)
class Entry:
    """A method on a problem: ``toml`` is what each run was, but for its seed; ``tuned`` are the values that its trials
    chose. Refused by the method, or given up after ``problem``, it has a ``flaw`` and no results."""

    problem: str
    problem_title: str
    method: str
    title: str
    family: str
    toml: str
    metric: str = "accuracy"
    tuned: dict[str, Any] = field(default_factory=dict)
    trials: dict[str, int] = field(default_factory=dict)  # how many ended how
    results: tuple[Result, ...] = ()
    flaw: str = ""
    key: str = ""  # of all that it came from: with another one it is made again

    @property
    def name(self) -> str:
        return f"{self.problem}/{self.method}"

    def estimate(self, figure: str) -> Estimate | None:
        return _estimate([each.figures.get(figure) for each in self.results])

    def to_reach(self, target: float) -> tuple[Estimate | None, Estimate | None]:
        """Returns payload bytes and virtual seconds until the mean test metric was as good as that; None where some
        seed never was."""
        sign = -1 if self.metric == "mse" else 1
        first = [
            next((point for point in each.curve if sign * point[0] >= sign * target), None) for each in self.results
        ]
        return _estimate([each and each[1] for each in first]), _estimate([each and each[2] for each in first])

    def better(self, other: "Entry") -> bool:
        """Whether its mean is better by more than the standard error of the difference, paired by seed."""
        sign = -1 if self.metric == "mse" else 1
        theirs = {each.seed: each.figures["test_metric"] for each in other.results}
        gains = [sign * (each.figures["test_metric"] - theirs[each.seed]) for each in self.results]
        return mean(gains) > (standard_error(gains) if len(gains) > 1 else 0.0)


@dataclass(frozen=True)
class Board:
    """``facts`` tell how it was made: the command, the machine, the budget of each search."""

    facts: dict[str, str]
    entries: tuple[Entry, ...]

    @property
    def problems(self) -> dict[str, str]:
        """{name: title}"""
        return {each.problem: each.problem_title for each in self.entries}

    @property
    def methods(self) -> dict[str, Entry]:
        """{name: its entry of some problem}, by family in the order of its first method."""
        found = {each.method: each for each in reversed(self.entries)}
        families = list(dict.fromkeys(each.family for each in self.entries))
        order = {each.method: place for place, each in reversed(list(enumerate(self.entries)))}
        return dict(sorted(found.items(), key=lambda item: (families.index(item[1].family), order[item[0]])))

    def of(self, problem: str) -> list[Entry]:
        return [each for each in self.entries if each.problem == problem]

    def entry(self, name: str) -> Entry:
        """Raises UserError."""
        found = {each.name: each for each in self.entries}
        if name not in found:
            some = ", ".join(list(found)[:3])
            raise UserError(f"{name}: no entry of this board; there are {len(found)}, such as {some}")
        return found[name]

    def save(self, path: Path) -> None:
        """Writes an entry a line."""
        head = json.dumps({"format": _FORMAT, "facts": self.facts})[:-1]
        lines = ",\n".join(json.dumps(asdict(each), separators=(",", ":")) for each in self.entries)
        path.write_text(f'{head}, "entries": [\n{lines}\n]}}\n', encoding="utf-8")


def read_board(path: Path) -> Board:
    """Raises UserError."""
    try:
        whole = json.loads(read_text(path))
        if whole["format"] != _FORMAT:
            raise ValueError(f"format {whole['format']!r:.20}; allowed: {_FORMAT}")
        return Board(
            {f"{key}": f"{value}" for key, value in whole["facts"].items()}, tuple(map(_entry, whole["entries"]))
        )
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path}: is no board that this program has written: {error!s:.200}") from None


def _entry(told: dict[str, Any]) -> Entry:
    results = [
        Result(int(each["seed"]), f"{each['digest']}", dict(each["figures"]), tuple(map(tuple, each["curve"])))
        for each in told["results"]
    ]
    if wrong := [each for each in results if not all(math.isfinite(value) for value in each.figures.values())]:
        raise ValueError(f"a figure of seed {wrong[0].seed} is not finite")
    return Entry(**(told | {"results": tuple(results)}))


def best_of(entries: Iterable[Entry]) -> Entry | None:
    """Returns the one with the best mean test metric."""
    there = [(found.mean, each) for each in entries if (found := each.estimate("test_metric"))]
    if not there:
        return None
    return (min if there[0][1].metric == "mse" else max)(there, key=lambda pair: pair[0])[1]


def target_of(entries: Sequence[Entry]) -> float | None:
    """Returns TARGET of the best accuracy, or the error that is as much larger than the least."""
    if (best := best_of(entries)) is None:
        return None
    found = best.estimate("test_metric")
    assert found
    return found.mean / TARGET if best.metric == "mse" else found.mean * TARGET


def front_of(entries: Iterable[Entry]) -> list[Entry]:
    """Returns those of which none other is better in the mean test metric for as few bytes: fewest bytes first."""
    there = []
    for each in entries:
        metric, sent = each.estimate("test_metric"), each.estimate("payload_bytes")
        if metric and sent:
            there.append((sent.mean, metric.mean if each.metric == "mse" else -metric.mean, each))
    front, least = [], math.inf
    for _, worse, each in sorted(there, key=lambda item: item[:2]):
        if worse < least:
            front.append(each)
            least = worse
    return front


def digest_of(folder: Path) -> str:
    """Returns a SHA-256 of each client's training loss, norm and test metric in each round, of the bytes of each
    directed edge in each round, and of all models after the last one: equal runs have equal ones. Raises
    RunFolderError."""
    found = sha256()
    with open_records(folder) as records:
        for query in (
            "SELECT round, node, train_loss, theta_norm, test_metric FROM round ORDER BY round, node",
            "SELECT round, src, dst, messages, payload_bytes, wire_bytes FROM traffic ORDER BY round, src, dst",
        ):
            for row in records.execute(query):
                found.update(repr(row).encode())
    for client, theta in sorted(RunReader(folder).theta().items()):
        found.update(f"{client} {theta.dtype}".encode())
        found.update(np.ascontiguousarray(theta).tobytes())
    return found.hexdigest()


def curve_of(folder: Path) -> Iterator[Point]:
    """By virtual time where the run has it, else by rounds, whose seconds are those of the wall clock."""
    virtual = f"SELECT mean_test_metric, virtual_s FROM virtual_progress WHERE {ALL_EVALUATED} ORDER BY virtual_s"
    sent = """SELECT total(payload_bytes) FROM traffic JOIN round
        ON round.node = src AND round.round = traffic.round WHERE virtual_s <= ?"""
    real = """SELECT mean_test_metric, payload_bytes, wall_s FROM round_cumulative
        WHERE mean_test_metric IS NOT NULL ORDER BY round"""
    with open_records(folder) as records:
        points = records.execute(virtual).fetchall()
        yield from (
            ((metric, *records.execute(sent, (seconds,)).fetchone(), seconds) for metric, seconds in points)
            if points
            else records.execute(real)
        )


def thinned(points: Iterable[Point], sign: int) -> tuple[Point, ...]:
    """Returns those that are better than all before; ``sign`` is -1 where lower is better."""
    found: list[Point] = []
    for point in points:
        if not found or sign * point[0] >= sign * found[-1][0] + _STEP:
            found.append(point)
    if not found:
        return ()
    least = found[-1][0] * _FROM if sign > 0 else found[-1][0] / _FROM
    kept = [point for point in found if sign * point[0] >= sign * least]
    return tuple((float(f"{metric:.6g}"), sent, float(f"{seconds:.6g}")) for metric, sent, seconds in kept)


def _estimate(values: Sequence[float | None]) -> Estimate | None:
    there = [value for value in values if value is not None]
    return Estimate(mean(there), standard_error(there)) if there and len(there) == len(values) else None
