"""What every figure of a report is, and the look that they share."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...topology.picture import COLOURS, INK, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from pandas import DataFrame

PALETTE = tuple("#B5A800" if colour == "#F0E442" else colour for colour in COLOURS)  # that yellow is too pale for lines
FORMATS = ("svg", "png", "pdf")
GRID = "#d9dadd"
SOFT = "#8a8d93"
PAPER = "#fdfdfe"
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_ON_DARK = {  # what each colour of a figure becomes on a dark page
    INK.lower(): "var(--ink)",
    GRID: "var(--grid)",
    SOFT: "var(--soft)",
    PAPER: "var(--paper)",
} | {colour.lower(): f"var(--c{number})" for number, colour in enumerate(PALETTE)}


@dataclass(frozen=True)
class Drawn:
    """A figure with what it shows. ``name`` is that of its files, ``caption`` says how to read it."""

    name: str
    title: str
    caption: str
    figure: Figure
    data: DataFrame

    def __post_init__(self) -> None:
        """Lays the figure out once; its engine would do it each time that the figure is written."""
        engine = self.figure.get_layout_engine()
        assert engine is not None
        with _look():
            engine.execute(self.figure)
        self.figure.set_layout_engine(None)

    def save(self, folder: Path) -> list[Path]:
        """The figure in every format, and its data as CSV."""
        files = [folder / f"{self.name}.csv"]
        self.data.to_csv(files[0], index=False, float_format="%.8g")
        with _look():
            for ending in FORMATS:
                files.append(folder / f"{self.name}.{ending}")
                dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(ending)
                options: Any = {"pil_kwargs": {"compress_level": 3}} if ending == "png" else {}
                self.figure.savefig(files[-1], dpi=300, facecolor="white", metadata=dates, **options)
        return files

    def inline_svg(self) -> str:
        """Returns it to stand in a page that sets the colours; names within are its own."""
        text = io.StringIO()
        with _look():
            self.figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
        svg = re.sub(r"^.*?(?=<svg )", "", text.getvalue(), flags=re.DOTALL)
        svg = re.sub(r" *<metadata>.*?</metadata>\n?", "", svg, flags=re.DOTALL)
        svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{self.name}-", svg)
        svg = re.sub(r"#[0-9a-f]{6}", lambda found: _ON_DARK.get(found[0], found[0]), svg)
        svg = re.sub(r' width="[\d.]+pt" height="[\d.]+pt"', "", svg, count=1)
        width = self.figure.get_figwidth() * 96
        return svg.replace(
            "<svg ", f'<svg role="img" aria-label="{escape(self.title)}" style="max-width:{width:.0f}px" ', 1
        )


@contextmanager
def _look() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(
        {
            "svg.hashsalt": "sheafgossip",
            "svg.fonttype": "none",  # text stays text
            "pdf.fonttype": 42,
            "font.family": "sans-serif",
            "font.sans-serif": ["DejaVu Sans"],
            "mathtext.fontset": "dejavusans",
        }
    ):
        yield


def new_figure(width: float, height: float, columns: int = 1, rows: int = 1, **options) -> tuple[Figure, list[Axes]]:
    """Inches; the axes row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, list(grid.flat)


def literal(text: str) -> str:
    """Without formulas: matplotlib sets what stands between two dollar signs, and fails where it is none."""
    return text.replace("$", r"\$")


def plain(axes: Axes, grid: Literal["both", "x", "y", "none"] = "both") -> None:
    """Two spines, a light grid, quiet ticks."""
    axes.set_axisbelow(True)
    if grid != "none":
        axes.grid(axis=grid, color=GRID, lw=0.7)
    axes.tick_params(colors=INK, labelsize=8.5, length=3)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(color=INK, fontsize=9.5)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(SOFT)


def legend_below(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        longest = max(map(len, labels))
        columns = max(1, min(len(labels), int(figure.get_figwidth() * 11 / (longest + 8))))
        figure.legend(
            handles, labels, loc="outside lower center", ncols=columns, frameon=False, labelcolor=INK, fontsize=9
        )


def list_rows(axes: Axes, names: Sequence[str]) -> None:
    """Names the rows 0, 1, ... of a chart, the first at the top."""
    axes.set_yticks(range(len(names)), [literal(name) for name in names])
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    plain(axes, grid="x")
    axes.tick_params(axis="y", length=0)


def colour_bar(image: AxesImage, axes: Axes, label: str, **options) -> Colorbar:
    bar = axes.get_figure().colorbar(image, ax=axes, pad=0.02, **options)  # type: ignore[union-attr]
    bar.set_label(label, color=INK)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=INK, labelsize=8.5)
    return bar


def colour(number: int) -> str:
    return PALETTE[number % len(PALETTE)]


def line_look(number: int) -> dict:
    """Colour, dash and marker: any one of them tells up to five methods apart."""
    return {
        "color": colour(number),
        "ls": DASHES[number // len(PALETTE) % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        "ms": 4,
        "lw": 1.7,
    }
