"""A run that is ready to start, written into its folder."""

import json
from dataclasses import dataclass
from pathlib import Path

from ...metrics.store import CONFIG, CONFIG_DIGEST, CONSTANT_METRIC, OWNERS, Store
from ...node.assignment import Assignment
from ...topology import Graph
from ...transport.environment import failpoint
from ..config.sections import RunConfig
from ..data.shards import DataSummary
from ..planner.plan import Plan
from ..run.folder import digest_of_config, facts, origin


@dataclass(frozen=True)
class Prepared:
    config: RunConfig
    folder: Path
    graph: Graph  # who is connected with whom
    assignments: tuple[Assignment, ...]  # the first incarnation of each client
    data: DataSummary
    plan: Plan | None = None
    resumed_at: int = 0  # the round after which an interrupted run is taken up again
    went_on_s: float = 0.0  # wall seconds that the run had taken until then
    # (client, kind, virtual seconds, detail) of what a plan has happen once, and is on record
    told: tuple[tuple[int, str, float | None, str], ...] = ()
    keyed_records: bool = False  # whether the collector asks for keys
    moved: str = ""  # in what the machine that takes up the run differs from the one where it began

    @property
    def samples(self) -> tuple[int, ...]:
        """Lists the training samples of each client; 0 for a server."""
        learners = tuple(client.train_samples for client in self.data.clients)
        return learners + (0,) * (len(self.assignments) - len(learners))


def write_down(prepared: Prepared) -> Store:
    """Writes the plan, the configuration, and what table ``meta`` tells of the run; that is not committed yet."""
    config, folder, data = prepared.config, prepared.folder, prepared.data
    schedules = prepared.plan.schedules if prepared.plan else ()
    for assignment, schedule in zip(prepared.assignments, schedules, strict=False):
        schedule.save(assignment.schedule)
    (folder / "log").mkdir(exist_ok=True)
    failpoint("plan written")
    unfinished = folder / "config.toml.part"  # whole or not at all, for others tell by it what run this is
    unfinished.write_text(config.to_toml())
    unfinished.replace(folder / "config.toml")
    failpoint("configuration written")
    database = folder / "run.sqlite"
    has_digests = not database.exists() or not database.stat().st_size or CONFIG_DIGEST in facts(folder)
    store = Store(database)
    about = {"metric": "accuracy" if data.task == "classification" else "mse"}
    about["groups"] = ",".join(str(client.group) for client in data.clients)
    if any(owners := [client.owner for client in data.clients]):
        about[OWNERS] = json.dumps(owners, ensure_ascii=False)
    if data.constant_metric is not None:
        about[CONSTANT_METRIC] = repr(data.constant_metric)
    store.describe(about)
    if has_digests:
        store.describe({CONFIG_DIGEST: digest_of_config(folder), CONFIG: config.to_toml()})
        store.describe(origin(), once=True)
    return store
