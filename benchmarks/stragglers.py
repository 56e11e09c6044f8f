"""Accuracy against virtual time when a fifth of the clients are ten times slower: what each staleness buys, and costs.

Sheaf-FMTL with forty clients on an Erdős–Rényi graph (p = 0.15) and one set of settings for every staleness, in three
scenes: clients with four different tasks, of whom the same eight are always slow; clients with one task, of whom the
same eight are always slow; clients with one task, each of whom is slow a fifth of the time. Writes a Markdown table and
a CSV file to benchmarks/results/, and docs/pictures/stragglers.svg.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import options, table, write, write_csv
from drawing import Panels, keep, kept, plt, save
from pandas import DataFrame
from study import Changes, over_seeds, run_grid

from sheafgossip.metrics import open_run

ROUNDS = 200
LONGER = 5 * ROUNDS

LEARNED = {"name": "sheaf-fmtl", "gamma": 0.1, "lam": 0.3, "eta": 0.03, "start": "orthogonal"}
FIXED = {"name": "sheaf-fmtl", "gamma": 0.5, "lam": 0.1, "eta": 0.0, "start": "shared"}
ALWAYS = {"kind": "fixed", "fraction": 0.2, "factor": 10}
AT_TIMES = {"kind": "on-off", "fraction": 1.0, "factor": 10, "on_s": 1, "off_s": 4}


@dataclass(frozen=True)
class Scene:
    title: str
    rotations: tuple[int, ...]
    algorithm: dict[str, Any]
    stragglers: dict[str, Any]
    longer: bool = True
    """Also a run that never waits, of as many rounds as it needs to fill the synchronous run's time."""


SCENES = {
    "rotated": Scene("Four tasks, 8 of 40 clients always slow", (0, 90, 180, 270), LEARNED, ALWAYS),
    "upright": Scene("One task, 8 of 40 clients always slow", (0,), FIXED, ALWAYS),
    "transient": Scene("One task, each client slow a fifth of the time", (0,), FIXED, AT_TIMES, longer=False),
}
STALENESS: tuple[int | str, ...] = (0, 1, 4, 16, "inf")
ALONE = "alone"
ENDED = ", ended"
NEVER_WAITS_LONGER = f"inf, {LONGER:,} rounds"


def variants(scene: Scene) -> dict[str, Changes]:
    """{label: what it changes}; the first one is synchronous."""
    found: dict[str, Changes] = {str(s): {"time": {"clock": "virtual", "staleness": s}} for s in STALENESS}
    if scene.longer:
        found[NEVER_WAITS_LONGER] = {"time": {"clock": "virtual", "staleness": "inf"}, "rounds": LONGER}
    return found | {ALONE: {"algorithm": {"name": "local"}}}


def problem(scene: Scene, seed: int) -> dict[str, Any]:
    return {
        "clients": 40,
        "rounds": ROUNDS,
        "topology": {"kind": "erdos-renyi", "p": 0.15},
        "data": {"dataset": "digits", "rotations": scene.rotations},
        "training": {"work": "full", "alpha": 0.5},
        "algorithm": scene.algorithm,
        "time": {"clock": "virtual"},
        "compute": {"step_s": 0.1},
        "links": {"latency_s": 0.01},
        "stragglers": scene.stragglers,
    }


@dataclass(frozen=True)
class Course:
    """One run over virtual time. ``accuracy[k]``, in %, holds from ``moments[k]`` on: the mean over all clients of each
    one's latest evaluation."""

    moments: np.ndarray
    accuracy: np.ndarray
    sent: DataFrame
    """virtual_s at the end of a client's round, and the wire bytes that it sent in the round."""
    end_s: float
    idle_share: float

    @property
    def final(self) -> float:
        return self.accuracy[-1]

    def at(self, moment: float) -> float:
        return self.accuracy[np.searchsorted(self.moments, moment, side="right") - 1]

    def reaches(self, accuracy: float) -> float:
        """When for the first time; inf: never."""
        return min(self.moments[self.accuracy >= accuracy - 1e-9], default=math.inf)

    def sent_mb(self, until: float) -> float:
        return self.sent.wire_bytes[self.sent.virtual_s <= until].sum() / 1e6


def read(folder: Path) -> Course:
    run = open_run(folder)
    progress = run.virtual_progress
    sent = run.sql("SELECT virtual_s, wire_bytes FROM traffic JOIN round ON node = src AND round.round = traffic.round")
    clients = run.sql("SELECT max(virtual_s) AS end_s, sum(idle_s) AS idle_s FROM round GROUP BY node")
    return Course(
        moments=progress["virtual_s"].to_numpy(),
        accuracy=100 * progress["mean_test_metric"].to_numpy(),
        sent=sent,
        end_s=float(clients["end_s"].max()),
        idle_share=float(clients["idle_s"].sum() / clients["end_s"].sum()),
    )


def courses(out: Path, seeds: int) -> dict[str, list[dict[str, Course]]]:
    """{scene: {label: its run} with each seed}; runs what is not there yet."""
    found: dict[str, list[dict[str, Course]]] = {}
    for name, scene in SCENES.items():
        grid = run_grid(out / name, seeds, partial(problem, scene), variants(scene))
        found[name] = [{label: read(folders[seed]) for label, folders in grid.items()} for seed in range(seeds)]
    return found


def rows(name: str, seed: int, found: dict[str, Course]) -> list[dict[str, Any]]:
    synchronous = found["0"]
    lines = []
    for label, course in found.items():
        line = {
            "scene": name,
            "staleness": label,
            "seed": seed,
            "final": course.final,
            "end_s": course.end_s,
            "idle_share": course.idle_share,
            "wire_mb": course.sent_mb(math.inf),
            "above_synchronous": course.final - synchronous.final,
            "synchronous_final": synchronous.final,
            "synchronous_end_s": synchronous.end_s,
            "at_half_time": course.at(synchronous.end_s / 2),
        }
        for what, target in (("final", synchronous.final), ("point_less", synchronous.final - 1)):
            moment = course.reaches(target)
            line |= {f"{what}_s": moment, f"{what}_share": moment / synchronous.end_s}
            line |= {f"{what}_wire_mb": course.sent_mb(moment) if moment < math.inf else math.inf}
        lines.append({key: round(value, 4) if isinstance(value, float) else value for key, value in line.items()})
    return lines


def spread(values: Sequence[float], digits: int = 0, scale: float = 1) -> str:
    """Mean ± standard error over the seeds; how many got there, where not all did."""
    finite = [value * scale for value in values if value < math.inf]
    if len(finite) < len(values):
        found = f"{len(finite)} of {len(values)}"
        return f"{found}: {', '.join(f'{value:.{digits}f}' for value in finite)}" if finite else "never"
    return over_seeds(finite, digits)


COLUMNS = {  # title: column of the CSV file, digits, factor
    "final accuracy %": ("final", 1, 1),
    "points above synchronous": ("above_synchronous", 1, 1),
    "total virtual s": ("end_s", 0, 1),
    "idle %": ("idle_share", 0, 100),
    "virtual s to target": ("final_s", 0, 1),
    "in % of the synchronous run": ("final_share", 0, 100),
    "wire MB until then": ("final_wire_mb", 1, 1),
    "virtual s to a point less": ("point_less_s", 0, 1),
    "wire MB to a point less": ("point_less_wire_mb", 1, 1),
    "accuracy % at half time": ("at_half_time", 1, 1),
}


def section(name: str, lines: Sequence[dict[str, Any]]) -> str:
    seeds = len({line["seed"] for line in lines})
    rows = []
    for label in dict.fromkeys(line["staleness"] for line in lines):
        own = [line for line in lines if line["staleness"] == label]
        cells = (spread([line[column] for line in own], digits, scale) for column, digits, scale in COLUMNS.values())
        rows.append((label, *cells))
    target = "target: final accuracy of the same seed's synchronous run"
    head = f"### {SCENES[name].title}\n\nMean ± s.e. over {seeds} seed{'s' * (seeds > 1)}; {target}."
    return f"{head}\n\n{table('|'.join(['staleness', *COLUMNS]), rows)}"


LOOKS = {  # of Okabe and Ito: apart for all kinds of colour vision
    "0": ("#000000", "-"),
    "1": ("#0072B2", "-"),
    "4": ("#009E73", "-"),
    "16": ("#E69F00", "-"),
    "inf": ("#D55E00", "-"),
    NEVER_WAITS_LONGER: ("#D55E00", (0, (4, 1.5))),
    ALONE: ("#999999", (0, (1, 1.2))),
}


def means_of(all_courses: dict[str, list[dict[str, Course]]]) -> Panels:
    """What the picture shows: means over seeds, and when clients had completed their rounds, on average."""
    panels: Panels = {}
    for name, seeds in all_courses.items():
        end, panels[name] = max(found["0"].end_s for found in seeds), {}
        for label in seeds[0]:
            grid = [end * step / 300 for step in range(301)]
            means = [statistics.fmean(found[label].at(moment) for found in seeds) for moment in grid]
            stop = statistics.fmean(found[label].end_s for found in seeds)
            panels[name] |= {label: list(zip(grid, means, strict=True)), f"{label}{ENDED}": [(stop, means[-1])]}
    return panels


def draw() -> None:
    """Draws what is kept."""
    panels = kept("stragglers")
    figure, axes = plt.subplots(len(SCENES), 1, figsize=(8.4, 11), layout="constrained")
    for axis, (name, found) in zip(axes, panels.items(), strict=True):
        curves = {label: points for label, points in found.items() if not label.endswith(ENDED)}
        end, last = curves["0"][-1]
        for label, points in curves.items():
            colour, dash = LOOKS[label]
            axis.plot(*zip(*points, strict=True), color=colour, linestyle=dash, linewidth=1.6, label=label)
            ((stop, height),) = found[f"{label}{ENDED}"]
            if stop < end:
                axis.plot([stop], [height], "o", color=colour, markersize=4.5)
        axis.axhline(last, color="black", linewidth=0.6, linestyle=":")
        half = found[f"0{ENDED}"][0][0] / 2
        axis.axvline(half, color="black", linewidth=0.6, linestyle=":")
        top = 5 * math.ceil((max(y for points in curves.values() for _, y in points) + 1) / 5)
        axis.set(xlim=(0, end), ylim=(40, top), title=SCENES[name].title, ylabel="mean accuracy of all clients, %")
        axis.annotate("half of the synchronous run's time", (half, 40), (4, 4), textcoords="offset points", fontsize=8)
        axis.legend(loc="lower right", frameon=False, fontsize=8, title="staleness")
    axes[-1].set_xlabel("virtual seconds (a dot: all clients have completed their rounds)")
    save(figure, "stragglers")


def main() -> None:
    arguments = options(__doc__, seeds=3, out="bench-stragglers").parse_args()
    found = courses(arguments.out, arguments.seeds)
    lines = [
        line for name, seeds in found.items() for seed, runs in enumerate(seeds) for line in rows(name, seed, runs)
    ]
    write_csv("stragglers", list(lines[0]), (line.values() for line in lines))
    text = "\n\n".join(section(name, [line for line in lines if line["scene"] == name]) for name in SCENES)
    write("stragglers", f"`python benchmarks/stragglers.py --seeds {arguments.seeds}`", text)
    keep("stragglers", means_of(found))
    draw()


if __name__ == "__main__":
    main()
