"""What every figure of a report is, and the look that they share."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...topology.picture import COLOURS, GRID, INK, LOOK, MARKERS, PAPER, SOFT, literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from pandas import DataFrame

REPORT_LOOK = LOOK | {"axes.grid": True}
PALETTE = tuple("#B5A800" if colour == "#F0E442" else colour for colour in COLOURS)  # that yellow is too pale for lines
FORMATS = ("svg", "png", "pdf")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_ON_DARK = {  # what each colour of a figure becomes on a dark page
    **{INK: "var(--ink)", GRID: "var(--grid)", SOFT: "var(--soft)", PAPER: "var(--paper)"},
    **{colour.lower(): f"var(--c{number})" for number, colour in enumerate(PALETTE)},
}


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
        engine.execute(self.figure)
        self.figure.set_layout_engine(None)

    def save(self, folder: Path) -> list[Path]:
        """The figure in every format, and its data as CSV."""
        files = [folder / f"{self.name}.csv"]
        self.data.to_csv(files[0], index=False, float_format="%.8g")
        for ending in FORMATS:
            files.append(folder / f"{self.name}.{ending}")
            dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(ending)
            options: Any = {"pil_kwargs": {"compress_level": 3}} if ending == "png" else {}
            self.figure.savefig(files[-1], dpi=300, facecolor="white", metadata=dates, **options)
        return files

    def inline_svg(self) -> str:
        """Returns it to stand in a page that sets the colours; names within are its own."""
        text = io.StringIO()
        self.figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
        svg = re.sub(r"^.*?(?=<svg )", "", text.getvalue(), flags=re.DOTALL)
        svg = re.sub(r" *<metadata>.*?</metadata>\n?", "", svg, flags=re.DOTALL)
        svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{self.name}-", svg)
        svg = re.sub(r"#[0-9a-f]{6}", lambda found: _ON_DARK.get(found[0], found[0]), svg)
        width = self.figure.get_figwidth() * 96
        head = f'<svg role="img" aria-label="{escape(self.title)}" style="max-width:{width:.0f}px" '
        return re.sub(r' width="[\d.]+pt" height="[\d.]+pt"', "", svg, count=1).replace("<svg ", head, 1)


def list_rows(axes: Axes, names: Sequence[str]) -> None:
    """Names the rows 0, 1, ... of a chart, the first at the top."""
    axes.set_yticks(range(len(names)), [literal(name) for name in names])
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def colour_bar(image: AxesImage, axes: Axes, label: str, **options) -> Colorbar:
    axes.grid(visible=False)
    bar = axes.get_figure().colorbar(image, ax=axes, pad=0.02, label=label, **options)  # type: ignore[union-attr]
    bar.outline.set_visible(False)
    return bar


def colour(number: int) -> str:
    return PALETTE[number % len(PALETTE)]


def line_look(number: int) -> dict:
    """Colour, dash and marker: any one of them tells up to five methods apart."""
    dash, marker = DASHES[number // len(PALETTE) % len(DASHES)], MARKERS[number % len(MARKERS)]
    return {"color": colour(number), "ls": dash, "marker": marker, "ms": 4, "lw": 1.7}
