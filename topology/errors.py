"""What counts as a user's mistake, and how to install what is missing.

Every folder may import this module, so it imports nothing of ours.
"""


class UserError(Exception):
    """What was asked for cannot be had; the message is for the user: what is wrong, where, and what is allowed.

    The command line tells it and ends with 2; any other exception is a fault of the program. Each argument is one line,
    whatever it quotes; only a configuration may have several mistakes.
    """

    def __str__(self) -> str:
        return "\n".join(" ".join(str(line).splitlines()) for line in self.args)


def install(extra: str) -> str:
    """How to install what an optional part needs; the package is in no registry."""
    return f".venv/bin/pip install -e '.[{extra}]' in the checkout"
