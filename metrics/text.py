"""Text for people: numbers, sizes and durations; foreign text made harmless for a terminal, a picture or a page.

MB are 10^6 bytes.
"""

import math
import re

UNKNOWN = "–"
"""Stands for a figure that is not known, or that a run does not record."""

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # all but tab and line feed
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # changes of the direction of writing, and odd ends of a line
    "\ud800-\udfff\ufeff]"  # halves of a character, which cannot be encoded
)
_LONGEST_LABEL = 200


def plain(text: str) -> str:
    """Keeps lines and tabs; shows every other control character as "?"."""
    return _CONTROL.sub("?", text)


def label(text: str) -> str:
    """Returns one line of a length that a table can hold."""
    return plain(text[:_LONGEST_LABEL]).replace("\n", " ").replace("\t", " ")


def short(number: float, digits: int = 3) -> str:
    """Returns so many digits, or as many as a larger number has before the point: 0.0123, 1.23, 1,234."""
    if number == 0 or not math.isfinite(number):
        return f"{number:g}"
    if abs(number) < 0.001:
        return f"{number:.{digits - 2}e}"
    return f"{number:,.{max(0, digits - 1 - math.floor(math.log10(abs(number))))}f}"


def metric_number(metric: str, value: float) -> str:
    """Returns an accuracy in percent, any other metric as it is."""
    return f"{100 * value:.1f}" if metric == "accuracy" else f"{value:.4g}"


def metric_text(metric: str, value: float) -> str:
    """Returns the same with its unit."""
    return metric_number(metric, value) + (" %" if metric == "accuracy" else "")


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
