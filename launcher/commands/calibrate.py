"""``sheafgossip calibrate``: what local work, messages and links take here, for [compute] and [links]."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...metrics.config_file import flat, parse, read_text
from ...metrics.text import new_table, say, show, size
from ...topology.errors import UserError
from ..config.files import load_one
from ..run.folder import origin, relative
from ..studies.calibration import Calibration, Figure, ProbeFailed, calibrate as measure
from ..studies.folders import raised_as
from ..studies.runner import Means
from .outcomes import FAILED


def calibrate(file: Path, overrides: Sequence[str] | None, out: Path, quiet: bool, **means: Any) -> int | None:
    config = load_one(file, overrides or ())
    if out.exists():
        raise UserError(f"--out {out}: is there already; nothing is overwritten, choose another name")
    if not os.access(out.parent, os.W_OK | os.X_OK):  # before it takes its time
        raise UserError(f"--out {out}: cannot be written: {out.parent} is no folder to write to")
    try:
        found = measure(config, Means(**means), lambda text: None if quiet else say(f"measuring {text}", err=True))
    except ProbeFailed as failure:
        for cause in failure.args:
            say(f"error: {cause}", err=True)
        return FAILED
    show(_table(found))
    for figure in found.figures:
        if figure.is_rough and figure.value < math.inf:
            say(f"warning: {figure.what}: the spread is more than half of the value", err=True)
    with raised_as(f"--out {out}: cannot be written"):
        out.write_text(_header() + found.to_toml(), encoding="utf-8")
    show(f'{relative(out.resolve())}: a configuration starts from it by base = "{out.name}"')
    if own := sorted(flat(found.tables).keys() & flat(parse(read_text(file))).keys()):
        say(f"note: {file} sets {', '.join(own)} itself, which wins over its base", err=True)
    return None


def _table(found: Calibration) -> Any:
    table = new_table()
    table.add_column("key")
    table.add_column("what")
    for name in ("median", "±", "least", "times"):
        table.add_column(name, justify="right")
    for each in found.figures:
        values = [_text(value, each) for value in (each.value, each.error, each.least)]
        table.add_row(each.key.rpartition(".")[2], each.what, *values, f"{each.repeats}")
    return table


def _text(value: float, figure: Figure) -> str:
    if not math.isfinite(value):
        return "too high to tell" if value == math.inf else ""
    if figure.unit == "B/s":
        return f"{size(value)}/s"
    factor, unit = next(((f, u) for f, u in ((1, "s"), (1e3, "ms")) if figure.value * f >= 1), (1e6, "µs"))
    return f"{value * factor:.3g} {unit}"


def _header() -> str:
    """Where the figures come from."""
    told = origin()
    machine = f"{told['host']} ({told['cpu']}), {told['prepared'][:10]}, sheafgossip {told['sheafgossip']}"
    return f"# {told['command']}\n# on {machine}\n# Medians, ± the median absolute deviation of one measurement.\n"
