"""Text of others, made harmless for a terminal, a picture or a page."""

from __future__ import annotations

import re

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # all but tab and line feed
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # what turns the direction of writing, and odd ends of a line
    "\ud800-\udfff\ufeff]"  # halves of a character, which cannot be encoded
)
_LONGEST_LABEL = 200


def plain(text: str) -> str:
    """Lines and tabs stay; every other control character is shown as "?"."""
    return _CONTROL.sub("?", text)


def label(text: str) -> str:
    """One line of a length that a table can hold."""
    return plain(text[:_LONGEST_LABEL]).replace("\n", " ").replace("\t", " ")
