"""What ``sheafgossip reproduce --list`` shows: the parts, the data that each needs, and what has been run of them."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import fill
from typing import Any

from ...metrics.store import PREPARED, RunFolderError
from ...metrics.summary import summarize
from ...metrics.text import duration
from ..run.earlier import configuration, is_finished
from ..run.folder import facts, relative
from .encoders import placed
from .folders import slug
from .reproduction import Part, named, names, parts_of, sources

_WIDTH = 100


def lines(wanted: str | None, out: Path) -> Iterator[str]:
    """Tells of one table or figure, or of all; ``out`` is the folder where runs of this command are. Raises
    ConfigError."""
    needed: dict[str, None] = {}
    for what in named(wanted) if wanted else names():
        for small in (False, True):
            parts = parts_of(what, small=small, data_root=None, overrides=[])
            for part in parts:
                needed |= dict.fromkeys([part.data, *(each.data.dataset for each in part.about.encoders)])
                yield f"{what:<9}{part.about.title}"
                runs = f"{len(part.configs)} run{'s' * (len(part.configs) > 1)}"
                told = [_name(part.data), runs, _minutes(part), _made(part, out)]
                yield f"{'':<9}{'--small; ' if small else ''}{'; '.join(told)}"
    yield ""
    yield "Files of the data sets, below --data-root, and where they are published:"
    for data in (each for each in needed if each in sources()):  # an encoder may have images of its own
        about = sources()[data]
        where = f"; {about['published']}" if about["published"] else ""
        yield fill(f"{about['name']}: {about['files']}{where}", _WIDTH, initial_indent="  ", subsequent_indent="    ")


def _name(data: str) -> str:
    return str(sources()[data]["name"])


def _minutes(part: Part) -> str:
    return f"about {part.about.minutes:g} min a seed here" if part.about.minutes else "not timed"


def _made(part: Part, out: Path) -> str:
    """Tells how many of its runs have finished below ``out``, the last when, and how long they took."""
    folder = out / (part.about.runs or part.stem)
    found = [run for config in part.configs for run in folder.glob(f"{slug(config.label)}-seed-*") if is_finished(run)]
    if not found:
        return f"never run in {relative(out)}"
    dates, seconds, other = [], 0.0, 0
    for run in found:
        with suppress(RunFolderError):
            dates.append(facts(run).get(PREPARED, "")[:10])
            seconds += summarize(run).wall_s
            other += not _as_written(part, run)
    when = f", {max(dates)}" if any(dates) else ""
    flaw = f", {other} of them with other settings" if other else ""
    return f"{len(found)} finished{when}, {duration(seconds)}{flaw}"


def _as_written(part: Part, run: Path) -> bool:
    """Tells whether a run has the settings of the part, but for the seed and the place of the data."""
    there = configuration(run)
    if there is None:
        return False
    free: dict[str, Any] = {"seed": 0, "data": {"root": None}, "compute": {"step_s": None}}
    return any(there.but(**free) == placed(config, run.parents[1]).but(**free) for config in part.configs)
