"""``sheafgossip plan``: the plan of a configuration without its run."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from ...metrics.terminal import say, width
from ..config.files import load
from ..config.sections import ConfigError, RunConfig
from ..planner import Plan
from ..planner.timeline import stretches_of, timeline_of
from ..planner.timeline_picture import check_format, draw
from ..planner.timeline_text import report
from ..prepare.assignments import Site
from ..prepare.memory import need_of
from ..prepare.preparation import once_for_alike, prepare_run
from ..processes.engines import open_engine
from ..studies.folders import names_of


def plan(file: Path, overrides: Sequence[str], picture: Path | None, lines: int) -> None:
    """Shows the timelines of a file's runs, of up to ``lines`` clients each, and draws them if asked."""
    configs = load(file, overrides)
    if picture is not None:
        check_format(picture)
    paths = [None] * len(configs) if picture is None else picture_paths(picture, configs)
    for path, (config, planned, need) in zip(paths, plans_of(configs), strict=True):
        if len(configs) > 1:
            say(f"== {config.label} ==")
        if planned is None:
            say("no scenario, nothing to plan\n")
            continue
        timeline, stretches = timeline_of(planned), stretches_of(planned)
        if path is not None:
            draw(timeline, stretches, path, f"{config.label}, {timeline.clients} clients")
        say("\n".join([*report(config, timeline, stretches, min(100, width()), lines), f"{need} on this machine"]))
        if path is not None:
            say(f"picture: {path}")
        if len(configs) > 1:
            say("")


def plans_of(configs: Sequence[RunConfig]) -> Iterator[tuple[RunConfig, Plan | None, str]]:
    """Prepares each run in a temporary folder. Yields its configuration, resolved, with its plan and what it will take;
    None where it has no scenario. Raises ConfigError."""
    if not any(config.has_scenario for config in configs):
        raise ConfigError(
            "nothing to plan: without one of [time], [compute], [stragglers], [links], [[faults]], [chaos] a run takes "
            "as long as it takes"
        )
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


def picture_paths(picture: Path, configs: Sequence[RunConfig]) -> list[Path]:
    """One file a run: with several, the run's name goes before the ending."""
    if len(configs) == 1:
        return [picture]
    return [picture.with_name(f"{picture.stem}-{name}{picture.suffix}") for name in names_of(configs)]
