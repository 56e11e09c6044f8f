"""Runs in progress as a picture in a notebook, which takes the place of the one before. It is drawn by whoever launches
the run, once a second, so it costs a millisecond: it has what a snapshot has."""

import math
import sys
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from ...topology.picture import COLOURS, SOFT
from ..text import plain
from .screen import Place, line
from .snapshot import Snapshot

_WIDTH, _HEIGHT = 620, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 10, 10, 34
_TICKS = 5  # about


def is_notebook() -> bool:
    """Tells whether what is displayed reaches a notebook: in a terminal, IPython has no kernel."""
    ipython = sys.modules.get("IPython")
    return getattr(ipython and ipython.get_ipython(), "kernel", None) is not None


class Picture:
    """One cell's output. Of several runs it keeps the last state of each."""

    def __init__(self) -> None:
        self._seen: dict[int, Snapshot] = {}
        self._shown: Any = None

    def show(self, snapshot: Snapshot, place: Place) -> None:
        from IPython.display import HTML, display

        self._seen[place.number] = snapshot
        text = HTML(drawn(list(self._seen.values()), place))
        if self._shown is None:
            self._shown = display(text, display_id=True)
        else:
            self._shown.update(text)


def drawn(snapshots: Sequence[Snapshot], place: Place = Place()) -> str:
    """Returns HTML: a curve and a line of words of each run, the last of which is the one at ``place``."""
    colours = [COLOURS[number % len(COLOURS)] for number in range(len(snapshots))]
    words = []
    for colour, snapshot in zip(colours, snapshots, strict=True):
        text = line(snapshot, place if snapshot is snapshots[-1] else Place())
        chip = f'<span style="color:{colour}">■</span> '
        words.append(f'<div style="font-variant-numeric:tabular-nums">{chip}{escape(plain(text))}</div>')
    return f"<div>{''.join(_picture(snapshots, colours))}{''.join(words)}</div>"


def _picture(snapshots: Sequence[Snapshot], colours: Sequence[str]) -> Iterator[str]:
    factor, title = (100.0, "test accuracy, %") if snapshots[0].metric_name == "accuracy" else (1.0, "test MSE")
    curves = [[(number, factor * value) for number, value in each.history if math.isfinite(value)]
              for each in snapshots]  # fmt: skip
    values = [value for curve in curves for _, value in curve]
    if not values:
        return
    rounds = max(1, *(each.rounds for each in snapshots))
    low, high = min(values), max(values)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)

    def x(number: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * number / rounds

    def y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low)

    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" style="max-width:100%"'
    yield f'<svg {size} role="img" aria-label="{title}, by round">'
    yield '<g font-size="11" font-family="sans-serif" fill="currentColor">'
    for value in _ticks(low, high):
        yield f'<path d="M{_LEFT} {y(value):.1f}H{_WIDTH - _RIGHT}" stroke="{SOFT}" stroke-opacity="0.35"/>'
        yield f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.4g}</text>'
    for number in _ticks(0, rounds):
        end = "end" if number == rounds else "middle"
        yield f'<text x="{x(number):.1f}" y="{_HEIGHT - 18}" text-anchor="{end}">{number:g}</text>'
    middle = _TOP + (_HEIGHT - _TOP - _BOTTOM) / 2
    yield f'<text transform="translate(12 {middle}) rotate(-90)" text-anchor="middle">{title}</text>'
    yield f'<text x="{x(rounds / 2):.1f}" y="{_HEIGHT - 4}" text-anchor="middle">round</text></g>'
    for colour, curve in zip(colours, curves, strict=True):
        points = " ".join(f"{x(number):.1f},{y(value):.1f}" for number, value in curve)
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        if curve:
            yield f'<circle cx="{x(curve[-1][0]):.1f}" cy="{y(curve[-1][1]):.1f}" r="3" fill="{colour}"/>'
    yield "</svg>"


def _ticks(low: float, high: float) -> list[float]:
    """Returns round numbers from one to the other."""
    size = 10.0 ** math.floor(math.log10((high - low) / _TICKS))
    step = min((size * factor for factor in (1, 2, 5, 10)), key=lambda step: abs((high - low) / step - _TICKS))
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
