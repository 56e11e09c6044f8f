"""``sheafgossip plan``: the plan of a configuration without its run."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from ...metrics.terminal import say, width
from ...topology.picture import check_format
from ..config.files import load
from ..config.sections import ConfigError, RunConfig
from ..planner.plan import Plan
from ..planner.timeline import Timeline, draw, report
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
    endings = [f"-{name}" for name in names_of(configs)] if several and picture else [""] * len(configs)
    for ending, (config, planned, need) in zip(endings, _plans_of(configs), strict=True):
        if several:
            say(f"== {config.label} ==")
        if planned is None:
            say("no scenario, nothing to plan\n")
            continue
        timeline = Timeline(planned)
        told = [*report(config, timeline, min(100, width()), lines), f"{need} on this machine"]
        if picture is not None:
            path = picture.with_name(f"{picture.stem}{ending}{picture.suffix}")
            draw(planned, path, f"{config.label}, {timeline.clients} clients")
            told.append(f"picture: {path}")
        say("\n".join(told))
        if several:
            say("")


def _plans_of(configs: Sequence[RunConfig]) -> Iterator[tuple[RunConfig, Plan | None, str]]:
    """Prepares each run in a temporary folder. Yields its configuration, resolved, with its plan and what it will take;
    None where it has no scenario."""
    with ExitStack() as stack:
        engine = cache(lambda: stack.enter_context(open_engine()))  # takes a second or two, only to time a step
        calibrate = once_for_alike(lambda assignment, steps: engine().time_a_step(assignment, steps))
        for config in configs:
            if not config.has_scenario:
                yield config, None, ""
                continue
            with tempfile.TemporaryDirectory(prefix="sheafgossip-plan-") as folder:
                place = Path(folder)
                prepared = prepare_run(config, place, Site(place, "ipc:///nowhere"), calibrate)
                need = need_of(prepared).text
            yield prepared.config, prepared.plan, need
