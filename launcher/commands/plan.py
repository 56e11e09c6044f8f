"""The plan of a configuration without its run: prepared in a temporary folder, of which nothing stays."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from ...node.assignment import Assignment
from ..config.sections import ConfigError, RunConfig
from ..planner import Plan
from ..prepare.memory import need_of
from ..prepare.preparation import once_for_alike, prepare_run
from ..processes.engines import Engine, open_engine


def plans_of(configs: Sequence[RunConfig]) -> Iterator[tuple[RunConfig, Plan | None, str]]:
    """Each configuration, resolved, with its plan and what it will take; None where it has no scenario. Raises
    ConfigError.
    """
    if not any(config.has_scenario for config in configs):
        raise ConfigError(
            "nothing to plan: without one of [time], [compute], [stragglers], [links], [[faults]], [chaos] a run takes "
            "as long as it takes"
        )
    with _Stopwatch() as clock:
        calibrate = once_for_alike(clock.time_a_step)
        for config in configs:
            if not config.has_scenario:
                yield config, None, ""
                continue
            with tempfile.TemporaryDirectory(prefix="sheafgossip-plan-") as folder:
                place = Path(folder)
                prepared = prepare_run(config, place, sockets=place, records="ipc:///nowhere", calibrate=calibrate)
                need = need_of(prepared).text
            yield prepared.config, prepared.plan, need


def picture_paths(picture: Path, configs: Sequence[RunConfig]) -> list[Path]:
    """One file a run: with several, the run's name goes before the ending."""
    if len(configs) == 1:
        return [picture]
    names = [re.sub(r"[^a-z0-9.]+", "-", config.label.lower()).strip("-") for config in configs]
    if len(set(names)) < len(names):
        raise ConfigError("compare: every run needs a name of its own; add name = ... to each [[compare]] table")
    return [picture.with_name(f"{picture.stem}-{name}{picture.suffix}") for name in names]


class _Stopwatch(ExitStack):
    """Only to time a step is a process needed, and it takes a second or two to start."""

    def __init__(self) -> None:
        super().__init__()
        self._engine: Engine | None = None

    def time_a_step(self, assignment: Assignment, steps: int) -> float:
        if self._engine is None:
            self._engine = self.enter_context(open_engine())
        return self._engine.time_a_step(assignment, steps)
