"""A chart: one description, in Vega-Lite, of what a page shows and of the files of a paper."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame

from ...topology.picture import COLOURS, GRID, INK, SOFT

Spec = dict[str, Any]
Choices = Mapping[str, Mapping[str, Mapping[str, Any]]]
VERSION = "6.1"  # of Vega-Lite
PALETTE = tuple("#B5A800" if each == "#F0E442" else each for each in COLOURS)  # that yellow is too pale for lines
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [1, 3])
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-left", "triangle-right")
_AXIS = {"domainColor": SOFT, "tickColor": SOFT, "gridColor": GRID, "labelColor": INK, "titleColor": INK}
LOOK: Spec = {
    "font": "DejaVu Sans, system-ui, Segoe UI, sans-serif",
    "background": None,
    "view": {"stroke": None},
    "axis": _AXIS
    | {"titleFontWeight": "normal", "titleFontSize": 12, "labelLimit": 260, "tickSize": 3, "tickCount": 8},
    "header": {"labelColor": INK, "titleColor": INK, "labelFontSize": 11},
    "legend": {
        "orient": "bottom",
        "title": None,
        "columns": 4,
        "labelColor": INK,
        "labelLimit": 320,
        "labelFontSize": 12,
    },
    "title": {"color": INK, "fontWeight": "normal", "fontSize": 12},
    "scale": {"invalid": {"color": {"value": SOFT}, "fill": {"value": SOFT}, "strokeWidth": {"value": 0.8}}},
    "range": {"category": list(PALETTE), "ramp": {"scheme": "viridis"}, "heatmap": {"scheme": "viridis"}},
}
_WIDTH, _SIDE_BY_SIDE = 620, 330  # pixels, of files
MOST_PIXELS = 20_000  # of a heat map, or points of many lines
_FORMATS = ("svg", "png", "pdf")


@dataclass(frozen=True)
class Chart:
    """``spec`` names its tables as Vega-Lite's named data; the first of ``tables`` is what a CSV file has, unless
    ``written`` is. ``choices`` are what a reader may change, {control: {option: {path in the spec: value}}}, the first
    option being what the spec has; a file shows all options of ``panels`` side by side."""

    name: str  # of its files
    title: str
    caption: str  # how to read it
    spec: Spec
    tables: Mapping[str, DataFrame]
    choices: Choices = field(default_factory=dict)
    panels: str = ""
    written: DataFrame | None = None

    @property
    def data(self) -> DataFrame:
        """Returns what its CSV file holds."""
        return next(iter(self.tables.values())) if self.written is None else self.written

    def for_files(self) -> Spec:
        """Returns a whole description of a picture that nobody can point at."""
        spec = _still(deepcopy(self.spec))
        if panels := self.choices.get(self.panels):
            each = [changed(spec, changes) for changes in panels.values()]
            for view in each:
                view["width"] = _SIDE_BY_SIDE
                params = view.pop("params", [])
            spec = {"concat": each, "columns": 2, "params": params}
        elif spec.get("width") == "container":
            spec["width"] = _WIDTH
        rows = {name: list(rows_of(table)) for name, table in self.tables.items()}
        spec.setdefault("data", {"name": next(iter(rows))})
        return spec | {"config": LOOK | {"background": "white"}, "datasets": rows}

    def svg(self) -> str:
        import vl_convert

        return str(vl_convert.vegalite_to_svg(self.for_files(), vl_version=VERSION))

    def save(self, folder: Path) -> list[Path]:
        """Writes CSV, SVG, PNG and PDF; equal charts are equal files."""
        import vl_convert

        files = [folder / f"{self.name}.{ending}" for ending in ("csv", *_FORMATS)]
        self.data.to_csv(files[0], index=False, float_format="%.8g")
        svg = self.svg()
        files[1].write_text(svg, encoding="utf-8")
        files[2].write_bytes(vl_convert.svg_to_png(svg, scale=3))
        files[3].write_bytes(vl_convert.svg_to_pdf(svg))
        return files

    def as_dict(self) -> dict[str, Any]:
        """Returns what a page's script reads: tables column by column."""
        tables = {
            name: {str(column): [_value(each) for each in table[column].tolist()] for column in table.columns}
            for name, table in self.tables.items()
        }
        return {"spec": self.spec, "choices": self.choices, "tables": tables}


def changed(spec: Spec, changes: Mapping[str, Any]) -> Spec:
    """Returns a copy with the values at these paths, such as "encoding.x.title" or "transform.1.calculate"."""
    spec = deepcopy(spec)
    for path, value in changes.items():
        *way, last = (int(step) if step.isdigit() else step for step in path.split("."))
        place: Any = spec
        for step in way:
            place = place[step]
        place[last] = value
    return spec


def _still(spec: Spec) -> Spec:
    """Takes out what needs a pointer."""
    if "params" in spec:
        spec["params"] = [each for each in spec["params"] if "select" not in each]
    if "layer" in spec:
        spec["layer"] = [_still(each) for each in spec["layer"]]
    for views in ("hconcat", "vconcat", "concat"):
        if views in spec:
            spec[views] = [_still(each) for each in spec[views]]
    if "spec" in spec:
        spec["spec"] = _still(spec["spec"])
    return spec


def rows_of(table: DataFrame) -> Iterator[dict[str, Any]]:
    for row in table.astype(object).itertuples(index=False, name=None):
        yield {str(column): _value(value) for column, value in zip(table.columns, row, strict=True)}


def _value(value: Any) -> Any:
    """Rounds to what a picture can show: seven digits."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int, bool)) else None if value != value else str(value)


def thinned(found: Iterable[Any], most: int) -> list[Any]:
    """Returns at most so many of them, evenly spaced, the first and the last among them."""
    every = list(found)
    if len(every) <= most:
        return every
    return [every[place] for place in np.unique(np.linspace(0, len(every) - 1, most).round().astype(int))]


def quantity(column: str, title: str | None, **more: Any) -> Spec:
    return {"field": column, "type": "quantitative", "title": title, **more}


def category(column: str, title: str | None, **more: Any) -> Spec:
    return {"field": column, "type": "nominal", "title": title, **more}


def by_method(numbers: Mapping[str, int]) -> Spec:
    """Returns colour, dash and shape of each, {name: number}: the same in every chart, and in the table of results."""
    names = list(numbers)
    dashes = [DASHES[number // len(PALETTE) % len(DASHES)] for number in numbers.values()]
    colours, shapes = ([of[number % len(of)] for number in numbers.values()] for of in (PALETTE, SHAPES))
    looks = {"color": colours, "strokeDash": dashes, "shape": shapes}
    return {
        channel: category("method", None, scale={"domain": names, "range": own}, legend={"symbolOpacity": 1})
        for channel, own in looks.items()
    }


def shown(names: list[str]) -> tuple[Spec, Spec]:
    """Returns the parameter that a page's table sets, and the filter by it."""
    return {"name": "shown", "value": names}, {"filter": "indexof(shown, datum.method) >= 0"}


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
