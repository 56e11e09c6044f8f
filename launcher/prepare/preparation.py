"""From a configuration to everything that must exist before the first process: folder, graph, shards, assignments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ...node.algorithms import link
from ...node.algorithms.server import ServerAlgorithm
from ...node.assignment import Assignment
from ...topology import Graph
from ...transport.keys import there_are_keys
from ..config.section import ConfigError
from ..config.sections import RunConfig
from ..data import DataSummary, prepare
from ..planner import Plan, Star
from .architectures import deal_architectures
from .assignments import Site, assign
from .graphs import check_graphs, draw_graphs
from .memory import most_memory
from .prepared import Prepared, write_down
from .reach import check_reach
from .scenario import local_steps, plan_run

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
    if config.transport.keyed and not there_are_keys():
        raise ConfigError("transport.keys = true: this machine's libzmq was built without CurveZMQ; allowed is false")
    keyed_records = _keyed_records(config, site.records)
    graphs = draw_graphs(config)
    check_graphs(config, graphs)
    if config.transport.protocol == "tcp" and not site.hosts[0].address:
        check_reach(config.transport.host, graphs.union)
    data = prepare(config.data, config.clients, config.seed, folder / "shards")
    architectures = deal_architectures(config, data)
    assignments = assign(config, folder, graphs, architectures, data, site)
    plan = None
    if config.has_scenario:
        if config.compute.step_s is None:
            assert calibrate
            (folder / "log").mkdir(exist_ok=True)
            step_s = calibrate(assignments[0], local_steps(config, data.clients[0].train_samples))
            config = config.but(compute={"step_s": step_s})
        plan = _plan(config, graphs.union, assignments, data)
    if config.transport.protocol == "tcp":
        bounds = [replace(each.deployment, memory=most_memory(each, plan)) for each in assignments]
        assignments = tuple(replace(each, deployment=bound) for each, bound in zip(assignments, bounds, strict=True))
    return Prepared(config, folder, graphs.union, assignments, data, plan, keyed_records=keyed_records)


def _keyed_records(config: RunConfig, records: str) -> bool:
    if not records.startswith("tcp://"):
        return False
    if not config.transport.keys and not records.startswith("tcp://127."):
        raise ConfigError(f"transport.keys = false: records go to {records}; allowed is true, or a loopback address")
    return config.transport.keys


def _check_algorithm(config: RunConfig) -> None:
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
        if codec == "top-k" and traits.codec_may_drop == "digits":
            raise ConfigError(
                f"transport.{key} = 'top-k': algorithm.name = {name!r} with these settings needs every entry in every "
                "message; allowed are 'none', 'float16', 'bfloat16' and 'int8'"
            )
        if codec != "none" and traits.codec_may_drop == "nothing":
            raise ConfigError(
                f"transport.{key} = {codec!r}: algorithm.name = {name!r} with these settings needs every vector as it "
                "is; allowed is 'none'"
            )


def _plan(config: RunConfig, graph: Graph, assignments: Sequence[Assignment], data: DataSummary) -> Plan:
    """Raises ConfigError where the scenario never ends, or where the algorithm does not tolerate it."""
    algorithm, traits = config.algorithm, config.algorithm.traits
    messages = {
        (own.node, peer.node): link(algorithm, own, peer).sent_as(1, own.dtype)
        for own in assignments
        for peer in own.neighbours
    }
    steps = [local_steps(config, client.train_samples) for client in data.clients]
    assert config.compute.step_s
    star = _star(config, algorithm, assignments) if isinstance(algorithm, ServerAlgorithm) else None
    plan = plan_run(config, graph, messages, steps, config.compute.step_s, star)
    slack = config.time.deadline_s is not None or config.time.staleness != 0
    loose = config.time.clock == "wall" and slack  # what will really come in time, no plan can tell
    may_be_late = loose and (star is None or config.time.silence == "stale")
    harms = {"nothing": loose or not plan.synchronous, "missing": may_be_late or plan.has_late, "late": False}
    if harms[traits.tolerates]:
        needs_all = traits.tolerates == "nothing"
        what = "every message, in its own round" if needs_all else "messages of the same round, or none"
        more_tolerant = f"{traits.more_tolerant}, or " if traits.more_tolerant else ""
        raise ConfigError(
            f"algorithm.name = {config.algorithm.name!r} with these settings needs {what}, but in this scenario some "
            f"are late or lost; use {more_tolerant}time.staleness = 0 and no losses or crashes"
        )
    return plan


def _star(config: RunConfig, algorithm: ServerAlgorithm, assignments: Sequence[Assignment]) -> Star:
    server, rounds = assignments[-1], range(1, config.rounds + 1)
    return Star(
        participants=tuple(frozenset(algorithm.participants(config, round)) for round in rounds),
        receivers=tuple(frozenset(algorithm.receivers(config, round)) for round in rounds),
        opening=len(link(algorithm, server, server.neighbours[0]).opens),
    )
