"""Draws docs/pictures/maps-*.svg from benchmarks/results/maps.csv: what dense and factored maps cost, over rounds."""

import csv

from common import RESULTS
from drawing import save
from matplotlib import pyplot as plt
from matplotlib.ticker import LogLocator

SCENES = {"maps-large": (34_826, 6, (0.01, 0.03)), "maps-small": (1_000, 6, (0.01, 0.1))}
COLOURS = {"dense": "#D55E00", "factored": "#0072B2"}  # of Okabe and Ito: apart for all kinds of colour vision
MARKERS = {"dense": "s", "factored": "o"}
DASHES = ("-", "--")


def draw(name: str, rows: list[dict[str, str]]) -> None:
    d, degree, gammas = SCENES[name]
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
    for gamma, dash in zip(gammas, DASHES, strict=True):
        chosen = [
            row
            for row in rows
            if (int(row["d"]), int(row["degree"]), float(row["gamma"])) == (d, degree, gamma)
            and row["start"] == "orthogonal"
        ]
        rounds = [int(row["K"]) for row in chosen]
        for storage in COLOURS:
            look = {
                "color": COLOURS[storage],
                "marker": MARKERS[storage],
                "linestyle": dash,
                "label": f"{storage}, gamma {gamma:g}",
            }
            axes[0].plot(rounds, [float(row[f"{storage}_ms"]) for row in chosen], **look)
            axes[1].plot(rounds, [float(row[f"{storage}_bytes"]) / 1e6 for row in chosen], **look)
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
    plt.rcParams["font.size"] = 11
    with (RESULTS / "maps.csv").open() as file:
        rows = list(csv.DictReader(file))
    for name in SCENES:
        draw(name, rows)


if __name__ == "__main__":
    main()
