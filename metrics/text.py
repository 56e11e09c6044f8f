"""Text for people: numbers, sizes and durations; foreign text made harmless; printing it. MB are 10^6 bytes."""

from __future__ import annotations

import math
import re
import shutil
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # they cost every process that imports them, and most print nothing
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table

TEST_METRICS = ("accuracy", "mse")
UNKNOWN = "–"  # stands for a figure that is not known, or that a run does not record
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # all but tab and line feed
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # changes of the direction of writing, and odd ends of a line
    "\ud800-\udfff\ufeff]"  # halves of a character, which cannot be encoded
)


def plain(text: str) -> str:
    """Keeps lines and tabs; shows every other control character as "?"."""
    return _CONTROL.sub("?", text)


def label(text: str) -> str:
    return plain(text[:200]).replace("\n", " ").replace("\t", " ")


def short(number: float, digits: int = 3) -> str:
    """Returns so many digits, or as many as a larger number has before the point: 0.0123, 1.23, 1,234."""
    if number == 0 or not math.isfinite(number):
        return f"{number:g}"
    if abs(number) < 0.001:
        return f"{number:.{digits - 2}e}"
    return f"{number:,.{max(0, digits - 1 - math.floor(math.log10(abs(number))))}f}"


def metric_text(metric: str, value: float, unit: str = " %") -> str:
    return f"{100 * value:.1f}{unit}" if metric == "accuracy" else f"{value:.4g}"


def size(count: float) -> str:
    """Returns bytes with three digits: 1.23 MB, 12.3 MB, 123 MB."""
    unit, *larger = ("B", "kB", "MB", "GB", "TB")
    while count >= 999.5 and larger:
        count, unit = count / 1000, larger.pop(0)
    digits = 0 if unit == "B" or count >= 99.95 else 1 if count >= 9.995 else 2
    return f"{count:.{digits}f} {unit}"


def clock(seconds: float) -> str:
    """Returns a time that passes as a clock shows it: 0:59, 1:01:40."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def duration(seconds: float) -> str:
    """Returns about how long something takes: 45 s, 12 min, 3.4 h."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def remaining(seconds: float) -> str:
    return f"about {duration(seconds)} left"


class Pace:
    """Tells how long the rest will take, by what was made since it began."""

    def __init__(self) -> None:
        self._began, self._made = time.monotonic(), 0

    def after_one(self, left: int) -> str:
        """Counts one more as made. Returns ", about 12 min left", or nothing where none is ``left``."""
        self._made += 1
        return f", {remaining((time.monotonic() - self._began) / self._made * left)}" if left else ""


def say(text: object, *, err: bool = False) -> None:
    import typer

    typer.echo(plain(str(text)), err=err)


def show(what: RenderableType) -> None:
    new_console(width=width()).print(Plain(what), soft_wrap=isinstance(what, str))


def as_text(what: RenderableType) -> str:
    """Returns what ``show`` prints."""
    console = new_console(width=width())
    with console.capture() as captured:
        console.print(Plain(what), soft_wrap=isinstance(what, str))
    return captured.get().rstrip("\n")


def width() -> int:
    """Returns the columns of what standard output leads to. A file has as many as a table takes."""
    return shutil.get_terminal_size(fallback=(1000, 0)).columns


def new_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Returns a console that leaves "[b]" and ":smile:" as they are."""
    from rich.console import Console

    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def new_table(**options) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), **options)


def news(text: str = "") -> None:
    """Shows a terminal in one line what is at work, until there is other news."""
    if sys.stderr.isatty():
        print(f"\r\033[K{plain(text)}", end="", file=sys.stderr, flush=True)


class Plain:
    """Anything rich can draw. What it draws is text with styles beside it, so a control character can only be data."""

    def __init__(self, what: RenderableType):
        self._what = what

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        for text, style, control in console.render(self._what, options):
            yield Segment(text, style, control) if control else Segment(plain(text), style)
