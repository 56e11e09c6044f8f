"""``sheafgossip plan``: the plan of a configuration without its run."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from ...metrics.text import say, width
from ...topology.picture import check_format
from ..config.files import load
from ..config.sections import ConfigError, RunConfig
from ..planner.timeline import draw, figures, lines_of
from ..prepare.assignments import Site
from ..prepare.memory import need_of
from ..prepare.preparation import once_for_alike, prepare_run
from ..processes.engine import open_engine
from ..studies.folders import names_of


def plan(file: Path, overrides: Sequence[str] | None, picture: Path | None, lines: int) -> None:
    """Shows the timelines of a file's runs, of up to ``lines`` clients each, and draws them if asked: each in a file of
    its own, with the run's name before the ending where there are several."""
    if picture is not None:
        check_format(picture)
    configs = load(file, overrides or ())
    if not any(config.has_scenario for config in configs):
        raise ConfigError(
            "nothing to plan: without one of [time], [compute], [stragglers], [links], [[faults]], [chaos] a run takes "
            "as long as it takes"
        )
    several = len(configs) > 1
    names = [f"-{name}" for name in names_of(configs)] if several and picture else [""] * len(configs)
    with ExitStack() as stack:
        engine = cache(lambda: stack.enter_context(open_engine()))  # takes a second or two, only to time a step
        calibrate = once_for_alike(lambda assignment, steps: engine().time_a_step(assignment, steps))
        for config, name in zip(configs, names, strict=True):
            path = picture and picture.with_name(f"{picture.stem}{name}{picture.suffix}")
            told = _planned(config, calibrate, path, lines) if config.has_scenario else "no scenario, nothing to plan"
            say(f"== {config.label} ==\n{told}\n" if several else told)


def _planned(config: RunConfig, calibrate: Callable, picture: Path | None, lines: int) -> str:
    """Prepares the run in a temporary folder, and draws its plan if asked. Returns what there is to say of it."""
    with tempfile.TemporaryDirectory(prefix="sheafgossip-plan-") as folder:
        prepared = prepare_run(config, Path(folder), Site(Path(folder), "ipc:///nowhere"), calibrate)
        need = need_of(prepared).text
    plan = prepared.plan
    assert plan
    roughly = "" if config.time.clock == "virtual" else "; on the wall clock, the run follows this only roughly"
    told = [f"a local step takes {prepared.config.compute.step_s:.4g} s{roughly}", ""]
    told += [f"{name:<36}{value}".rstrip() for name, value in figures(plan)]
    told += ["", *lines_of(plan, min(100, width()), lines), f"{need} on this machine"]
    if picture is not None:
        draw(plan, picture, f"{config.label}, {plan.clients} clients")
        told.append(f"picture: {picture}")
    return "\n".join(told)
