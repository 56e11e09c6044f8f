"""What a notebook shows of runs: the table of results and the curves, without a script."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from ..comparison import columns_of
from ..text import plain
from .charts import curves
from .methods import methods_of


def inline(folders: Sequence[Path]) -> str:
    """Raises RunFolderError."""
    methods = methods_of(folders)
    figures = columns_of(methods)
    heads = "".join(f"<th>{_text(' '.join(name.split()))}</th>" for name in ("", *figures))
    rows = "".join(
        f'<tr><th style="text-align:left">{_text(each.name)}{f" ({_text(each.flaw)})" if each.flaw else ""}</th>'
        + "".join(f"<td>{_text(each.text(figure))}</td>" for figure in figures.values())
        + "</tr>"
        for each in methods
    )
    pictures = ""
    for metric in ("accuracy", "mse"):
        for chart in curves([each for each in methods if each.run.metric == metric]):
            pictures += replace(chart, panels="").svg()
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{pictures}"


def _text(text: str) -> str:
    return escape(plain(text))
