"""What the pictures of benchmarks have in common; pyplot is to be taken from here. What a picture shows is kept in
benchmarks/results/, so that ``make gallery`` draws it without what it took to measure it."""

import csv
from collections.abc import Sequence
from typing import Any

import matplotlib
from common import PICTURES, RESULTS, write_csv

matplotlib.use("svg")
matplotlib.rcParams |= {"font.size": 10, "svg.hashsalt": "sheafgossip"}
from matplotlib import pyplot as plt  # noqa: E402

Panels = dict[str, dict[str, Sequence[tuple[float, float]]]]
"""{panel: {curve: its points}}"""


def keep(name: str, panels: Panels) -> None:
    """Writes benchmarks/results/NAME-picture.csv."""
    rows = [
        (panel, curve, f"{x:.7g}", f"{y:.7g}")
        for panel, curves in panels.items() for curve, points in curves.items() for x, y in points
    ]  # fmt: skip
    write_csv(f"{name}-picture", ("panel", "curve", "x", "y"), rows)


def kept(name: str) -> Panels:
    panels: dict[str, dict[str, Any]] = {}
    with (RESULTS / f"{name}-picture.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            points = panels.setdefault(row["panel"], {}).setdefault(row["curve"], [])
            points.append((float(row["x"]), float(row["y"])))
    return panels


def save(figure: Any, name: str) -> None:
    """Writes docs/pictures/NAME.svg, the same for the same data."""
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    PICTURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURES / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)
