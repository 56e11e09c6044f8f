"""What the pictures of benchmarks have in common; pyplot is to be taken from here."""

from typing import Any

import matplotlib
from common import PICTURES

matplotlib.use("svg")
matplotlib.rcParams |= {"font.size": 10, "svg.hashsalt": "sheafgossip"}
from matplotlib import pyplot as plt  # noqa: E402


def save(figure: Any, name: str) -> None:
    """Writes docs/pictures/NAME.svg, the same for the same data."""
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    PICTURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURES / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)
