"""A run that is ready to start: its files are written, its memory, processes and open files estimated and checked."""

import contextlib
import json
import os
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path

import numpy as np
import psutil

from ...metrics.records import PrivacyRecord
from ...metrics.store import ATTACKERS, CODE, CONFIG, CONFIG_DIGEST, CONSTANT_METRIC, FILES, MODELS, OWNERS, Store
from ...metrics.text import duration
from ...metrics.twin import save_links
from ...node.algorithms import algorithm_of, links_of
from ...node.algorithms.base import Cost, returned, work_of
from ...node.assignment import Assignment
from ...node.model.architecture import told
from ...topology import Graph
from ...transport.environment import failpoint
from ...transport.schedule import limit
from ..config.sections import ConfigError, RunConfig
from ..data.shards import DataSummary
from ..planner.plan import Plan
from ..processes.shared_pages import knows_immortal_objects
from ..run.folder import facts, origin
from .links import Shape

# Measured by benchmarks/scale.py and benchmarks/efficiency.py on two cores of a 2.8 GHz server.
_OF_THE_RUN = 0.5e9  # bytes: launcher, fork server, collector
OF_A_CLIENT = 4e6 if knows_immortal_objects() else 6.5e6  # bytes of its own before it has learnt anything
OF_PAGE_TABLES = 0.75e6  # bytes, which the kernel keeps for each client
_OF_TRAINING = 15e6  # more where torch's backward() runs: its kernels and their buffers
OF_A_LINK = 60e3  # bytes: ZeroMQ's queues, beside the vectors in them
_FLOPS_A_SECOND = 10e9
_OF_A_STEP_S, _OF_A_MESSAGE_S, _OF_A_ROUND_S, _OF_A_START_S = 0.2e-3, 0.1e-3, 0.4e-3, 0.02
_WIDEST_PASS = 1 << 21  # numbers of a layer: what a gradient or an evaluation takes at once, at most
_TASKS_OF_A_CLIENT = 3  # its process, and ZeroMQ's two threads
_TASKS_BESIDE = 30  # launcher, fork server, collector, and the threads of their libraries
_FILES_OF_A_CLIENT = 20  # beside its connections
_FILES_BESIDE = 300  # open files of the fork server and the collector beside those of clients
_ADMINISTRATES = 1 << 24 | 1 << 21  # CAP_SYS_RESOURCE, CAP_SYS_ADMIN: whom the kernel counts no processes for


@dataclass(frozen=True)
class Prepared:
    config: RunConfig
    folder: Path
    graph: Graph  # who is connected with whom
    assignments: tuple[Assignment, ...]  # the first incarnation of each client
    data: DataSummary
    plan: Plan | None = None
    shape: Shape | None = None  # of links, where the kernel is to shape them
    resumed_at: int = 0  # the round after which an interrupted run is taken up again
    went_on_s: float = 0.0  # wall seconds that the run had taken until then
    # (client, kind, virtual seconds, detail) of what a plan has happen once, and is on record
    told: tuple[tuple[int, str, float | None, str], ...] = ()
    privacy: tuple[PrivacyRecord, ...] = ()  # of each client, with [privacy]
    moved: str = ""  # in what the machine that takes up the run differs from the one where it began


def write_down(prepared: Prepared) -> Store:
    """Writes the plan, the configuration, and what table ``meta`` tells of the run; that is not committed yet."""
    config, folder, data = prepared.config, prepared.folder, prepared.data
    schedules = prepared.plan.schedules if prepared.plan else ()
    for assignment, schedule in zip(prepared.assignments, schedules, strict=False):
        schedule.save(assignment.schedule)
    if prepared.plan and prepared.plan.busy_s:
        save_links(folder, prepared.plan.busy_s)
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
    about[MODELS] = told([assignment.architecture for assignment in prepared.assignments])
    about["groups"] = ",".join(str(client.group) for client in data.clients)
    if any(owners := [client.owner for client in data.clients]):
        about[OWNERS] = json.dumps(owners, ensure_ascii=False)
    if attackers := prepared.assignments[0].run.attackers:
        about[ATTACKERS] = json.dumps(attackers)
    if data.constant_metric is not None:
        about[CONSTANT_METRIC] = repr(data.constant_metric)
    if code := prepared.assignments[0].run.code:
        about[CODE] = json.dumps(code)
    store.describe(about)
    store.write(prepared.privacy)
    if has_digests:
        store.describe({CONFIG_DIGEST: sha256(config.to_toml().encode()).hexdigest(), CONFIG: config.to_toml()})
        store.describe(origin() | {FILES: json.dumps(digests_of_files(config))}, once=True)
    return store


def digests_of_files(config: RunConfig) -> dict[str, str]:
    """{key: digest} of the files that the graph, the plan and the maps follow from; samples are in the shards."""
    paths = {f"{name}.path": getattr(config, name).path for name in ("topology", "stragglers", "trace")}
    paths["algorithm.edges.path"] = getattr(getattr(config.algorithm, "edges", None), "path", None)
    paths["algorithm.maps_from"] = getattr(config.algorithm, "maps_from", None)
    paths["data.features_from"] = config.data.features_from
    found = {}
    for key, path in paths.items():
        if path and Path(path).is_file():
            with Path(path).open("rb") as file:
                found[key] = file_digest(file, "sha256").hexdigest()
    return found


@dataclass(frozen=True)
class Need:
    """A run's needs: bytes of memory, seconds of the machine at work, open files of one process."""

    memory: float
    seconds: float
    files: int
    clients: int

    @property
    def tasks(self) -> int:
        return _TASKS_OF_A_CLIENT * (self.clients + 1) + _TASKS_BESIDE

    @property
    def text(self) -> str:
        return f"{self.clients} clients need about {self.memory / 1e9:.1f} GB of memory and {duration(self.seconds)}"


def need_of(prepared: Prepared, *, one_process: bool = False) -> Need:
    """Is right to about a factor of two. ``one_process``: the files that all clients open are those of one."""
    memory = _OF_THE_RUN + sum(memory_of(assignment, prepared.plan) for assignment in prepared.assignments)
    samples = [client.train_samples for client in prepared.data.clients] + [0]  # a server has none
    work_s = sum(map(_work_of, prepared.assignments, samples))
    links = [_connections(assignment, prepared.plan) for assignment in prepared.assignments]
    files = sum(links) + _FILES_OF_A_CLIENT * len(links) if one_process else max(len(links), *links)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Need(memory, work_s / cores, files + _FILES_BESIDE, prepared.config.clients)


def _work_of(assignment: Assignment, samples: int) -> float:
    algorithm = algorithm_of(assignment)
    steps, passed = work_of(algorithm, assignment, samples, 1) if samples else (0, 0)
    flops = passed * assignment.architecture.gradient_flops
    messages = 2 * _met_in_a_round(assignment)
    round_s = _OF_A_ROUND_S + _OF_A_MESSAGE_S * messages + _OF_A_STEP_S * steps + flops / _FLOPS_A_SECOND
    opening_s = samples * algorithm.cost(assignment).opening_flops / _FLOPS_A_SECOND
    return _OF_A_START_S + assignment.run.rounds * round_s + opening_s


def _connections(assignment: Assignment, plan: Plan | None) -> int:
    """Returns with how many neighbours a client is connected in the course of a run, as far as that is known."""
    if plan is None or not assignment.run.opens_late:
        return len(assignment.neighbours)
    schedule = plan.schedules[assignment.node]
    return int(((schedule.copies > 0) | (schedule.comes > 0)).any(axis=(0, 1)).sum())


def _met_in_a_round(assignment: Assignment) -> int:
    """Returns with how many neighbours a client exchanges in one round, at most."""
    if algorithm_of(assignment).traits.meets:
        return 1
    periods = ({*period.successors, *period.weights} for period in assignment.periods)
    return max(map(len, periods), default=len(assignment.neighbours))


def memory_of(assignment: Assignment, plan: Plan | None = None) -> float:
    architecture, links = assignment.architecture, _connections(assignment, plan)
    algorithm = algorithm_of(assignment)
    incoming = min(links, 2 * _met_in_a_round(assignment)) * assignment.run.largest_vector  # some are a round ahead
    cost = returned(algorithm, "cost", algorithm.cost(assignment), Cost)
    numbers = cost.numbers + 4 * architecture.size + incoming  # theta, gradient, copies
    if "top-k" in (assignment.transport.codec, assignment.transport.between):
        numbers += incoming  # as much as was left out
    if assignment.checkpoints.save_maps and algorithm.traits.has_maps:  # all at once, and what the last is made from
        rows = [link.sends[0] - sum(link.exact[:1]) for link in links_of(assignment).values()]
        numbers += (sum(rows) + 2 * max(rows, default=0)) * architecture.size
    if plan:
        numbers += _of_messages(assignment, plan)
    total = OF_A_CLIENT + OF_PAGE_TABLES + OF_A_LINK * links
    if assignment.role == "client":
        total += assignment.shard.stat().st_size
        if (
            not architecture.is_linear
            or assignment.training.optimizer_use
            or "torch.nn.functional" in algorithm.traits.libraries
        ):
            total += _OF_TRAINING
        if not architecture.is_linear:
            numbers += min(_WIDEST_PASS, 512 * architecture.widest())
    return total + assignment.dtype.itemsize * numbers


def _of_messages(assignment: Assignment, plan: Plan) -> int:
    """Counts the numbers in messages that wait at a client of a run with a plan: to be used, and for checkpoints."""
    schedule, ahead = plan.schedules[assignment.node], assignment.clock == "wall" or not plan.synchronous
    stored, numbers = schedule.most_kept(assignment.checkpoints.every), 0
    for node, link in links_of(assignment).items():
        place = int(np.searchsorted(schedule.neighbours, node))
        sends, receives = link.sent_in(1), link.received_in(1)
        if ahead:
            waiting = limit(receives, assignment.dtype.itemsize, int(schedule.backlog_in[place]))
            numbers += waiting * max(receives, default=0)
        numbers += int(stored[place]) * max(sends, default=0)
        numbers += sum(receives) if assignment.time.silence == "stale" else 0
        numbers += sum(sends) if assignment.clock == "wall" else 0
    return numbers


def check_resources(needs: Sequence[Need], *, force: bool) -> None:
    """Checks runs that follow each other. Raises ConfigError where one is too large, unless ``force``."""
    largest, free = max(needs, key=lambda need: need.memory), psutil.virtual_memory().available
    need = f"{largest.clients} clients need about"
    if largest.memory > free and not force:
        told = f"{need} {largest.memory / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"
        raise ConfigError(f"{told}; use fewer clients or smaller models, or --force to try")
    most, files = resource.getrlimit(resource.RLIMIT_NOFILE)[1], max(need.files for need in needs)
    if most != resource.RLIM_INFINITY and files > most:
        told = f"{need} {files} open files in one process, and this system allows {most}"
        remedy = f"raise it (ulimit -Hn {files}, as an administrator, or LimitNOFILE of the service)"
        raise ConfigError(f"{told}; {remedy}, or use at most {max(1, most - _FILES_BESIDE)} clients")
    largest = max(needs, key=lambda need: need.tasks)
    for most, used, where in allowances():
        if largest.tasks > (left := max(0, most - used)):
            told = f"{largest.clients} clients need about {largest.tasks} processes and threads"
            here = f"{left} more are allowed here ({where}, {used} are in use)"
            fewer = max(0, (left - _TASKS_BESIDE) // _TASKS_OF_A_CLIENT - 1)
            raise ConfigError(f"{told}, and {here}; raise that, or use at most {fewer} clients")


def allowances(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Iterator[tuple[int, int, str]]:
    """Yields each limit on processes and threads, of this user or container, that holds for what this process starts,
    how many there are, and where it is set."""
    most, is_exempt = resource.getrlimit(resource.RLIMIT_NPROC)[0], os.getuid() == 0
    with contextlib.suppress(OSError, IndexError, ValueError):
        capabilities = int((proc / "self/status").read_text().split("CapEff:")[1].split()[0], 16)
        is_exempt = is_exempt or bool(capabilities & _ADMINISTRATES)
    if most != resource.RLIM_INFINITY and not is_exempt:
        used, uid = 0, os.getuid()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                used += process.num_threads() if process.uids().real == uid else 0
        yield most, used, f"ulimit -u {most}"
    for folder in _groups(proc, cgroups):
        with contextlib.suppress(OSError, ValueError):  # "max", or no limit here
            most, used = (int((folder / name).read_text()) for name in ("pids.max", "pids.current"))
            yield most, used, f"{folder / 'pids.max'} is {most}"


def _groups(proc: Path, cgroups: Path) -> Iterator[Path]:
    """Yields the folders of the control groups, of version 1 or 2, that limit this process; the nearest first. In a
    container they may be those of the container though their names are those of the host."""
    with contextlib.suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers and "pids" not in controllers.split(","):
                continue
            for root in [cgroups / "pids"] if controllers else [cgroups, cgroups / "unified"]:
                within = root / name.lstrip("/")
                yield from (folder for folder in (within, *within.parents) if folder.is_relative_to(root))
