"""What restriction maps cost: matrices against start and history, over sizes, edges and rounds.

Times are CPU time of one thread, medians of rounds in which all contenders take turns: on a busy machine trust the
ratios. Results: a Markdown table on the terminal and in benchmarks/results/maps.md, the same as maps.csv, and
docs/pictures/maps-*.svg.
"""

import csv
import math
import platform
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from statistics import median
from time import thread_time

import numpy as np
import scipy
from common import RESULTS, options, table, write_csv
from drawing import plt, save
from matplotlib.ticker import LogLocator
from scipy.fft import dct, next_fast_len
from threadpoolctl import threadpool_limits

from sheafgossip.node.maps import Maps, MatrixStart, StartingMaps, StartKind, starting_maps
from sheafgossip.node.stored_maps import StoredMaps, dense_cost, factored_cost

GAMMAS = {1_000: (0.01, 0.1), 10_000: (0.01, 0.1), 34_826: (0.01, 0.03, 0.1), 212_146: (0.01, 0.1)}
DEGREES = (3, 6, 20)
HISTORIES = (10, 50, 100, 500)
LENGTHS = (1_000, 1_009, 16_384, 16_411, 32_768, 34_560, 34_826, 34_843, 131_072, 212_146, 212_161)

LARGEST = 4e9  # bytes; larger maps are not made
SMALL = np.float32(1e-3)

COLUMNS = "d|gamma|degree|start|K|dense ms|factored ms|times faster|dense MB|factored MB|times smaller|auto|over better"
EXPLANATION = f"""\
One client, float32, one thread. A time is the maps' whole work in a round of Algorithm 1 (project, pull back, project,
update), in milliseconds of CPU time; a size is what the maps hold after K rounds, in MB (10^6 bytes). "-": more than
{LARGEST / 1e9:g} GB, not made. `auto` is what storage = "auto" holds after K rounds, followed by its time over that of
the better one."""


SCENES = {"maps-large": (34_826, 6, (0.01, 0.03)), "maps-small": (1_000, 6, (0.01, 0.1))}
LOOKS = {"dense": ("#D55E00", "s"), "factored": ("#0072B2", "o")}  # of Okabe and Ito: apart for all colour vision


@dataclass(frozen=True, order=True)
class Case:
    size: int
    gamma: float
    degree: int
    start: StartKind = "orthogonal"

    def starting_maps(self) -> StartingMaps:
        rows = dict.fromkeys(range(1, self.degree + 1), max(1, int(self.gamma * self.size + 1e-9)))
        if self.start == "gaussian":  # random numbers take long to draw, and any do for timing
            orthogonal = Case(self.size, self.gamma, self.degree).starting_maps()
            return MatrixStart(any_matrix(orthogonal.stacking.height, self.size), orthogonal.stacking)
        dtype = np.dtype(np.float32)
        return starting_maps(self.start, seed=0, node=0, rows=rows, theta=np.empty(self.size, dtype), scale=1.0)


@dataclass(frozen=True)
class Row:
    """A line of the table: one client's maps, after K rounds. Times are nan where the maps were not made."""

    d: int
    gamma: float
    degree: int
    start: str
    K: int
    dense_ms: float
    factored_ms: float
    dense_bytes: int
    factored_bytes: int
    auto: str

    @property
    def faster(self) -> float:
        return self.dense_ms / self.factored_ms

    @property
    def smaller(self) -> float:
        return self.dense_bytes / self.factored_bytes

    @property
    def auto_over_better(self) -> float:
        both = self.dense_ms, self.factored_ms
        return both[self.auto == "factored"] / np.min(both)


class Contender:
    """Maps, and a model that moves between their two halves of a round."""

    def __init__(self, maps: Maps, size: int):
        rng = np.random.default_rng(1)
        self.maps = maps
        self.theta = rng.standard_normal(size, dtype=np.float32)
        self.step = 0.1 / size  # eta lam ||theta||^2 = 0.1
        self.drift = SMALL * rng.standard_normal(size, dtype=np.float32)
        self.theirs = {j: rng.standard_normal(len(v), dtype=np.float32) for j, v in maps.project(self.theta).items()}
        self.times: list[float] = []

    def round(self) -> None:
        """As in SheafFMTL, exchange = "two-phase"; without the learning and the sending."""
        before = thread_time()
        mine = self.maps.project(self.theta)
        self.maps.pull_back({j: mine[j] - self.theirs[j] for j in mine})
        pulled = thread_time()
        self.theta += self.drift  # the client's own step: not the maps' work
        ready = thread_time()
        mine = self.maps.project(self.theta)
        self.maps.update(mine, {j: mine[j] - self.theirs[j] for j in mine}, self.theta, self.step)
        self.times.append(thread_time() - ready + pulled - before)


def measure(case: Case, histories: Iterable[int] = HISTORIES) -> Iterator[Row]:
    start = case.starting_maps()
    size, height = case.size, start.stacking.height
    dense_bytes = 4 * height * size
    factored_bytes = {k: start.state_bytes + 4 * k * (size + height) for k in histories}
    fitting = [k for k in histories if factored_bytes[k] <= LARGEST]

    total = dense_bytes + sum(factored_bytes[k] for k in fitting)
    passes, rounds = (9, 5) if total < 2e7 else (3, 7) if total < 4e8 else (1, 11)
    times: dict[int | str, list[float]] = {}
    order = np.random.default_rng(5)
    for _ in range(passes):
        contenders: dict[int | str, Contender] = {}
        if dense_bytes <= LARGEST:
            dense = StoredMaps(MatrixStart(any_matrix(height, size), start.stacking), "dense")
            contenders["dense"] = Contender(dense, size)
        for k in fitting:
            contenders[k] = Contender(with_history(start, k - rounds // 2 - 1), size)
        for _ in range(1 + rounds):
            for name in order.permutation(np.array(list(contenders), dtype=object)):
                contenders[name].round()
        for name, contender in contenders.items():
            times.setdefault(name, []).extend(contender.times[1:])
        contenders.clear()

    milliseconds = {name: 1e3 * median(values) for name, values in times.items()}
    for k in histories:
        auto = "dense" if factored_cost(start, k) > dense_cost(start) else "factored"
        both = milliseconds.get("dense", math.nan), milliseconds.get(k, math.nan)
        yield Row(size, case.gamma, case.degree, case.start, k, *both, dense_bytes, factored_bytes[k], auto)


def with_history(start: StartingMaps, rows: int) -> StoredMaps:
    maps = StoredMaps(start)
    rng = np.random.default_rng(2)
    thetas = rng.standard_normal((4, start.size), dtype=np.float32)
    disagreements = SMALL * rng.standard_normal((4, start.stacking.height), dtype=np.float32)
    for k in range(rows):
        maps.history.append(thetas[k % 4], disagreements[k % 4])
    return maps


def any_matrix(height: int, size: int) -> np.ndarray:
    matrix = np.empty((height, size), np.float32)
    matrix[:] = SMALL * np.random.default_rng(3).standard_normal(size, dtype=np.float32)
    return matrix


def transform_ms(length: int) -> float:
    vector = np.random.default_rng(4).standard_normal(length, dtype=np.float32)
    times = []
    for _ in range(15):
        before = thread_time()
        dct(vector, norm="ortho")
        times.append(thread_time() - before)
    return 1e3 * median(times)


def figure(value: float, digits: int = 3) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.{digits}g}"


def cells(row: Row) -> Iterator[object]:
    yield from (f"{row.d:,}", f"{row.gamma:g}", row.degree, row.start, row.K)
    times = row.dense_ms, row.factored_ms, row.faster
    yield from map(figure, (*times, row.dense_bytes / 1e6, row.factored_bytes / 1e6, row.smaller))
    yield from (row.auto, figure(row.auto_over_better))


def report(rows: list[Row], transforms: dict[int, float]) -> str:
    versions = f"Python {platform.python_version()}, numpy {np.__version__}, scipy {scipy.__version__}"
    lengths = (
        [f"{n:,}", "yes" if next_fast_len(n, real=True) == n else "", figure(ms)] for n, ms in transforms.items()
    )
    return "\n\n".join(
        [
            "# Restriction maps: dense against factored",
            f"`make bench-maps`, {versions}.",
            EXPLANATION,
            "## Figures to hold",
            table("what|measured|required", figures_to_hold(rows)),
            "## The transform alone",
            "Orthogonal and shared starts take two of these a round. It is fast where all prime factors are small.",
            table("length|all prime factors are at most 5|ms", lengths),
            "## All cases",
            table(COLUMNS, map(cells, rows)) + "\n",
        ]
    )


def figures_to_hold(rows: list[Row]) -> Iterator[tuple[str, str, str]]:
    def at(gamma: float, k: int) -> Row:
        return next(r for r in rows if (r.d, r.gamma, r.degree, r.start, r.K) == (34_826, gamma, 6, "orthogonal", k))

    yield "d = 34,826, gamma 0.03, degree 6, K = 50: times faster", figure(at(0.03, 50).faster), "at least 25"
    yield "the same: times smaller", figure(at(0.03, 50).smaller), "at least 25"
    for gamma in (0.01, 0.03):
        ms = figure(at(gamma, 100).factored_ms)
        yield f"d = 34,826, gamma {gamma}, degree 6, K = 100: factored ms a round", ms, "at most 15"
    worst = max((row for row in rows if row.auto_over_better >= 1), key=lambda row: row.auto_over_better)
    case = f"d = {worst.d:,}, gamma {worst.gamma:g}, degree {worst.degree}, K = {worst.K}"
    yield f"auto over the better storage, worst case ({case})", f"{worst.auto_over_better:.2f}", "at most 1.3"


def draw(name: str, rows: list[Row]) -> None:
    d, degree, gammas = SCENES[name]
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
    for gamma, dash in zip(gammas, ("-", "--"), strict=True):
        chosen = [r for r in rows if (r.d, r.degree, r.gamma, r.start) == (d, degree, gamma, "orthogonal")]
        rounds = [row.K for row in chosen]
        for storage, (colour, marker) in LOOKS.items():
            look = {"color": colour, "marker": marker, "linestyle": dash, "label": f"{storage}, gamma {gamma:g}"}
            axes[0].plot(rounds, [getattr(row, f"{storage}_ms") for row in chosen], **look)
            axes[1].plot(rounds, [getattr(row, f"{storage}_bytes") / 1e6 for row in chosen], **look)
    for axis, what in zip(axes, ("milliseconds a round", "megabytes"), strict=True):
        axis.set(xscale="log", yscale="log", xlabel="K, rounds so far", ylabel=what)
        axis.set_xticks(rounds, [str(k) for k in rounds])
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.minorticks_off()
        axis.yaxis.set_major_formatter("{x:g}")
    figure.suptitle(f"The maps of one client: {d:,} parameters, {degree} neighbours")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    save(figure, name)


def main() -> None:
    options(__doc__).parse_args()
    cases = [Case(d, gamma, degree) for d, gammas in GAMMAS.items() for gamma in gammas for degree in DEGREES]
    cases.append(Case(34_826, 0.01, 6, "gaussian"))
    rows = []
    for case in sorted(cases):
        print(f"d = {case.size:,}, gamma {case.gamma:g}, degree {case.degree}, {case.start}", flush=True)
        rows += measure(case)
    text = report(rows, {length: transform_ms(length) for length in LENGTHS})
    print(text)
    (RESULTS / "maps.md").write_text(text)
    write_csv("maps", [field.name for field in fields(Row)], map(astuple, rows))
    draw_all()


def draw_all() -> None:
    """Draws what is kept."""
    with (RESULTS / "maps.csv").open(newline="") as file:
        kept = [Row(**{field.name: field.type(line[field.name] or "nan") for field in fields(Row)})
                for line in csv.DictReader(file)]  # fmt: skip
    with plt.rc_context({"font.size": 11}):
        for name in SCENES:
            draw(name, kept)


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
