"""From a configuration to everything that must exist before the first process: folder, graph, shards, assignments."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ...node.assignment import Assignment
from ...transport.keys import there_are_keys
from ..config.sections import ConfigError, RunConfig
from ..data.shards import prepare
from .assignments import Site, assign, deal_architectures
from .graphs import check_graphs, draw_graphs
from .memory import most_memory
from .prepared import Prepared, write_down
from .reach import check_reach
from .scenario import plan_of

Calibrate = Callable[[Assignment, int], float]
"""Times a local step of a client, in seconds; given are the steps of its round."""


def once_for_alike(calibrate: Calibrate) -> Calibrate:
    """Runs that compute the same are compared on one time of a step, not on the noise of two."""
    times: dict[tuple[object, ...], float] = {}

    def time_a_step(assignment: Assignment, steps: int) -> float:
        key = assignment.architecture, assignment.run.task, assignment.model.dtype, assignment.training, steps
        if key not in times:
            times[key] = calibrate(assignment, steps)
        return times[key]

    return time_a_step


def prepare_run(config: RunConfig, folder: Path, site: Site, calibrate: Calibrate | None = None) -> Prepared:
    """Fills a run folder: shards, resolved configuration, plan, empty database. Raises UserError.

    What is there already from an earlier preparation of the same run stays as it is.
    """
    prepared = work_out(config, folder, site, calibrate)
    write_down(prepared).close()
    return prepared


def work_out(config: RunConfig, folder: Path, site: Site, calibrate: Calibrate | None = None) -> Prepared:
    """As ``prepare_run``, which calls it; of the folder it only fills ``shards``, and what calibrating logs."""
    _check_algorithm(config)
    transport, over_network = config.transport, site.records.startswith("tcp://")
    if transport.keyed and not there_are_keys():
        raise ConfigError("transport.keys = true: this machine's libzmq was built without CurveZMQ; allowed is false")
    if over_network and not transport.keys and not site.records.startswith("tcp://127."):
        told = f"records go to {site.records}; allowed is true, or a loopback address"
        raise ConfigError(f"transport.keys = false: {told}")
    graphs = draw_graphs(config)
    check_graphs(config, graphs)
    if transport.protocol == "tcp" and not site.hosts[0].address:
        check_reach(transport.host, graphs.union)
    data = prepare(config.data, config.clients, config.seed, folder / "shards")
    assignments = assign(config, folder, graphs, deal_architectures(config, data), data, site)
    plan = None
    if config.has_scenario:
        if config.compute.step_s is None:
            assert calibrate
            (folder / "log").mkdir(exist_ok=True)
            steps = config.training.count(data.clients[0].train_samples)
            config = config.but(compute={"step_s": calibrate(assignments[0], steps)})
        plan = plan_of(config, graphs.union, assignments, data)
    if transport.protocol == "tcp":
        bounds = [replace(each.deployment, memory=most_memory(each, plan)) for each in assignments]
        assignments = tuple(replace(each, deployment=bound) for each, bound in zip(assignments, bounds, strict=True))
    keyed_records = over_network and transport.keys
    return Prepared(config, folder, graphs.union, assignments, data, plan, keyed_records=keyed_records)


def _check_algorithm(config: RunConfig) -> None:
    """Raises ConfigError where the algorithm does not work with what other sections say."""
    traits, name = config.algorithm.traits, config.algorithm.name
    if config.has_scenario and traits.server == "answers" and config.time.staleness != 0:
        raise ConfigError(
            f"time.staleness = {config.time.staleness!r}: the server of algorithm.name = {name!r} waits for its "
            "clients in each round; allowed is 0, and time.deadline_s bounds the wait"
        )
    if config.has_scenario and traits.no_scenario:
        raise ConfigError(traits.no_scenario)
    if config.training.momentum and not traits.momentum:
        raise ConfigError(
            f"training.momentum = {config.training.momentum}: the local steps of algorithm.name = {name!r} are its "
            "own, without momentum; allowed is 0"
        )
    if config.time.deaths == "continue" and traits.tolerates == "nothing":
        more_tolerant = f"{traits.more_tolerant}, or " if traits.more_tolerant else ""
        raise ConfigError(
            f"time.deaths = 'continue': algorithm.name = {name!r} with these settings needs every message, and who "
            f"dies sends none; use {more_tolerant}'fail'"
        )
    for key, codec in (("codec", config.transport.codec), ("codec_between", config.transport.between)):
        needs, allowed = "", "is 'none'"
        if codec == "top-k" and traits.codec_may_drop == "digits":
            needs, allowed = "every entry in every message", "are 'none', 'float16', 'bfloat16' and 'int8'"
        elif codec != "none" and traits.codec_may_drop == "nothing":
            needs = "every vector as it is"
        if needs:
            given = f"transport.{key} = {codec!r}: algorithm.name = {name!r}"
            raise ConfigError(f"{given} with these settings needs {needs}; allowed {allowed}")
