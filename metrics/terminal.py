"""Printing what a run folder says: no control character of it reaches the terminal, and no markup is read into it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from .text import plain

_OF_A_FILE = 1000

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table


def say(text: object, *, err: bool = False) -> None:
    """A line, or several."""
    typer.echo(plain(str(text)), err=err)


def show(what: RenderableType) -> None:
    """A line, or a table."""
    new_console(width=width()).print(Plain(what), soft_wrap=isinstance(what, str))


def width() -> int:
    """Columns of what standard output leads to. A file has as many as a table takes."""
    return shutil.get_terminal_size(fallback=(_OF_A_FILE, 0)).columns


def new_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Text in cells and titles is text: "[b]" and ":smile:" stay as they are."""
    from rich.console import Console

    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def new_table(**options) -> Table:
    """Returns a table with one line, below its head."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), **options)


@contextmanager
def news() -> Iterator[Callable[[str], None]]:
    """In a terminal a line that changes and goes, to say what is at work; elsewhere nothing."""

    def tell(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{plain(text)}", end="", file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        tell("")


class Plain:
    """Anything rich can draw. What it draws is text with styles beside it, so a control character can only be data."""

    def __init__(self, what: RenderableType):
        self._what = what

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        for text, style, control in console.render(self._what, options):
            yield Segment(text, style, control) if control else Segment(plain(text), style)
