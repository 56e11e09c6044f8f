"""Errors that are the user's; every folder may import this module, so it imports nothing of ours."""

from pathlib import PurePath
from typing import Any, Self


class UserError(Exception):
    """The message tells the user what is wrong, where, and what is allowed, one argument a line. The command line
    prints it and exits with 2; any other exception is a fault of the program."""

    @classmethod
    def of(cls, key: str, value: Any, why: str, allowed: Any) -> Self:
        return cls(f"{key} = {shown(value)}: {why}; allowed: {allowed}")

    def __str__(self) -> str:
        return "\n".join(" ".join(str(line).splitlines()) for line in self.args)


def shown(value: Any) -> str:
    """Returns about the TOML of a value; of a long one only the start."""
    value = list(value) if isinstance(value, tuple) else str(value) if isinstance(value, PurePath) else value
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 120 else f"{text[:120]}..."


def install(extra: str) -> str:
    """How to install what an optional part needs; the package is in no registry."""
    return f".venv/bin/pip install -e '.[{extra}]' in the checkout"
