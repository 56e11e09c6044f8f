"""``sheafgossip watch --web``."""

import sys
from contextlib import suppress
from pathlib import Path

from ...metrics.text import say
from ..config.sections import ConfigError


def serve(folder: Path, port: int) -> int:
    from ...metrics.watch.web import Server

    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir():
        raise ConfigError(f"{there}: is a file; --web needs the folder of a run, or of one to come")
    try:
        server = Server(folder, port)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--port {port}: cannot be used: {error}") from error
    with suppress(KeyboardInterrupt), server:
        say(server.address)
        sys.stdout.flush()
        server.serve_forever()
    return 0
