"""What counts as a user's mistake, and how to install what is missing.

Every folder may import this module, so it imports nothing of ours.
"""

from pathlib import PurePath
from typing import Any, Self


class UserError(Exception):
    """What was asked for cannot be had; the message is for the user: what is wrong, where, and what is allowed.

    The command line tells it and ends with 2; any other exception is a fault of the program. Each argument is one line,
    whatever it quotes; only a configuration may have several mistakes.
    """

    @classmethod
    def of(cls, key: str, value: Any, why: str, allowed: Any) -> Self:
        """A value of the configuration that is not allowed, in the form that such refusals have."""
        return cls(f"{key} = {shown(value)}: {why}; allowed: {allowed}")

    def __str__(self) -> str:
        return "\n".join(" ".join(str(line).splitlines()) for line in self.args)


def shown(value: Any) -> str:
    """Returns a value of the configuration about as in TOML; of a long one only the start."""
    value = list(value) if isinstance(value, tuple) else str(value) if isinstance(value, PurePath) else value
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 120 else f"{text[:120]}..."


def install(extra: str) -> str:
    """How to install what an optional part needs; the package is in no registry."""
    return f".venv/bin/pip install -e '.[{extra}]' in the checkout"
