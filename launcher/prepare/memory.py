"""Whether a machine has the memory, files and processes for a run: what it takes, estimated before anything starts."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import psutil

from ...metrics.text import duration
from ...node.algorithms import algorithm_of, links_of
from ...node.assignment import Assignment
from ...transport.window import limit
from ..config.sections import ConfigError, RunConfig
from ..planner import Plan
from .process_limits import allowances
from .scenario import local_steps

if TYPE_CHECKING:
    from .prepared import Prepared

# Measured by benchmarks/scale.py and benchmarks/efficiency.py on two cores of a 2.8 GHz server.
_OF_THE_RUN = 0.5e9  # bytes: launcher, fork server, collector
_LEAST_MEMORY, _MEMORY_TO_ESTIMATE = 1 << 30, 8  # bounds against those who would have a client take all there is
OF_A_CLIENT = 6.5e6  # bytes of its own before it has learnt anything
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


@dataclass(frozen=True)
class Need:
    """What a run will take: bytes of memory, seconds of the machine at work, open files of one process."""

    memory: float
    seconds: float
    files: int
    clients: int

    @property
    def clients_memory(self) -> float:
        """Bytes that are the clients' own."""
        return self.memory - _OF_THE_RUN

    @property
    def tasks(self) -> int:
        """Processes and threads. One more than there are clients, where there is a server."""
        return _TASKS_OF_A_CLIENT * (self.clients + 1) + _TASKS_BESIDE

    @property
    def worth_telling(self) -> bool:
        return self.seconds > 120 or self.memory > 2e9

    @property
    def text(self) -> str:
        return f"{self.clients} clients need about {self.memory / 1e9:.1f} GB of memory and {duration(self.seconds)}"


def need_of(prepared: Prepared, *, one_process: bool = False) -> Need:
    """Good to about a factor of two: what is learnt on, and how busy the machine is, is not known. ``one_process``: the
    files that all clients open are those of one."""
    memory, work_s, plan = _OF_THE_RUN, 0.0, prepared.plan
    for assignment, samples in zip(prepared.assignments, prepared.samples, strict=True):
        steps = local_steps(prepared.config, samples) if samples else 0
        memory += memory_of(assignment, plan)
        work_s += _work_of(assignment, _learnt(prepared.config, samples, steps), steps)
        work_s += _opening_work_of(assignment, samples)
    most_links = max(len(assignment.neighbours) for assignment in prepared.assignments)
    files = max(len(prepared.assignments), most_links) + _FILES_BESIDE
    if one_process:
        files = sum(_FILES_OF_A_CLIENT + len(each.neighbours) for each in prepared.assignments) + _FILES_BESIDE
    return Need(memory, work_s / _cores(), files, prepared.config.clients)


def _learnt(config: RunConfig, samples: int, steps: int) -> int:
    """Samples that a round's local work goes through."""
    match config.training.work:
        case "full":
            return samples
        case "steps":
            return steps * min(config.training.batch_size, samples)
        case _:
            return config.training.epochs * samples


def check_resources(needs: Sequence[Need], *, force: bool) -> None:
    """Checks runs that follow each other. Raises ConfigError where one is too large, unless ``force``."""
    largest = max(needs, key=lambda need: need.memory)
    free = psutil.virtual_memory().available
    if largest.memory > free and not force:
        raise ConfigError(
            f"{largest.clients} clients need about {largest.memory / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are "
            "free; use fewer clients or smaller models, or --force to try"
        )
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = max(need.files for need in needs)
    if most != resource.RLIM_INFINITY and files > most:
        raise ConfigError(
            f"{largest.clients} clients need about {files} open files in one process, and this system allows {most}; "
            f"raise it (ulimit -Hn {files}, as an administrator, or LimitNOFILE of the service), or use at most "
            f"{max(1, most - _FILES_BESIDE)} clients"
        )
    _check_tasks(max(needs, key=lambda need: need.tasks))


def _check_tasks(largest: Need) -> None:
    for allowance in allowances():
        if largest.tasks > allowance.free:
            raise ConfigError(
                f"{largest.clients} clients need about {largest.tasks} processes and threads, and {allowance.free} "
                f"more are allowed here ({allowance.where}, {allowance.used} are in use); raise that, or use at most "
                f"{max(0, (allowance.free - _TASKS_BESIDE) // _TASKS_OF_A_CLIENT - 1)} clients"
            )


def most_memory(assignment: Assignment, plan: Plan | None) -> int:
    """Bytes that a client may take where others can connect to it: far more than it needs, less than a machine has."""
    return max(_LEAST_MEMORY, round(_MEMORY_TO_ESTIMATE * memory_of(assignment, plan)))


def memory_of(assignment: Assignment, plan: Plan | None = None) -> float:
    """Bytes of one client."""
    architecture, links = assignment.architecture, len(assignment.neighbours)
    algorithm = algorithm_of(assignment)
    kept = algorithm.cost(assignment).numbers
    incoming = links * assignment.run.largest_vector
    numbers = kept + 4 * architecture.size + incoming  # theta, gradient, copies
    if "top-k" in (assignment.transport.codec, assignment.transport.between):
        numbers += incoming  # as much as was left out
    total = OF_A_CLIENT + OF_PAGE_TABLES + OF_A_LINK * links
    if assignment.role == "client":
        total += assignment.shard.stat().st_size
        if not architecture.is_linear or "torch.nn.functional" in algorithm.traits.libraries:
            total += _OF_TRAINING
        if not architecture.is_linear:
            numbers += min(_WIDEST_PASS, 512 * architecture.widest())
    return total + assignment.dtype.itemsize * numbers + (_of_messages(assignment, plan) if plan else 0)


def _of_messages(assignment: Assignment, plan: Plan) -> int:
    """Bytes of the messages that wait at a client of a run with a plan: to be used, and for checkpoints."""
    schedule, ahead = plan.schedules[assignment.node], assignment.clock == "wall" or not plan.synchronous
    itemsize, every = assignment.dtype.itemsize, assignment.checkpoints.every
    kept, size = schedule.most_kept(every), 0
    for node, link in links_of(assignment).items():
        place = int(np.searchsorted(schedule.neighbours, node))
        sends, receives = link.sent_in(1), link.received_in(1)
        if ahead:
            size += limit(receives, itemsize, int(schedule.backlog_in[place])) * max(receives, default=0)
        size += int(kept[place]) * max(sends, default=0)
        size += sum(receives) if assignment.time.silence == "stale" else 0
        size += sum(sends) if assignment.clock == "wall" else 0
    return size * itemsize


def _work_of(assignment: Assignment, samples: int, steps: int) -> float:
    """CPU seconds of one client, which learns on so many samples in so many steps a round."""
    flops = samples * assignment.architecture.gradient_flops
    messages = 2 * len(assignment.neighbours)
    round_s = _OF_A_ROUND_S + _OF_A_MESSAGE_S * messages + _OF_A_STEP_S * steps + flops / _FLOPS_A_SECOND
    return _OF_A_START_S + assignment.run.rounds * round_s


def _opening_work_of(assignment: Assignment, samples: int) -> float:
    return samples * algorithm_of(assignment).cost(assignment).opening_flops / _FLOPS_A_SECOND


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
