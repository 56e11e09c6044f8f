"""What a client process exchanges messages and records by: its endpoint, its clock, its recorder, their limits."""

from dataclasses import replace

import zmq

from ...metrics.recorder import Recorder
from ...transport.channel import Channels
from ...transport.clock import Clock, Rules
from ...transport.clock_planned import PlannedClock
from ...transport.clock_wall import WallClock
from ...transport.connections import Identity, Options
from ...transport.constants import CONSTANTS
from ...transport.control import Control
from ...transport.endpoint import Endpoint
from ...transport.kernel import KernelCounters
from ...transport.keys import KeyPair, Ring
from ...transport.limits import bound_connections, bound_memory, keep_own_files
from ...transport.schedule import Schedule, queue_for
from ...transport.stopwatch import Stopwatch
from ..algorithms.base import Traits
from ..assignment import Assignment


class Links:
    def __init__(self, assignment: Assignment, traits: Traits, control: Control, stopwatch: Stopwatch):
        self._assignment, self._traits = assignment, traits
        self._context = zmq.Context(io_threads=1)
        deployment, keyed = assignment.deployment, assignment.transport.keyed
        keys = KeyPair.make() if keyed or deployment.records_key else None  # nobody else has the secret
        self.public_key = keys.public if keys else ""
        measuring = assignment.measuring
        counts = measuring.enabled and measuring.kernel and assignment.transport.protocol == "tcp"
        # The kernel's counters belong to descriptors of a process of its own
        self.kernel = KernelCounters() if counts and not deployment.shares_process else None
        self._schedule = None if assignment.clock == "none" else Schedule.load(assignment.schedule)
        queue = queue_for(self._schedule) if self._schedule else Options.queue
        if traits.server == "answers" and not assignment.incarnation.bounded:
            queue = CONSTANTS.queue_of_a_server  # unconfirmed, it does not run far ahead of clients that only evaluate
        options = Options(
            assignment.run.largest_vector * assignment.dtype.itemsize,
            queue,
            Ring(keys, {}, more=True) if keys and keyed else None,
            self.kernel,
            stopwatch,
        )
        identity = Identity(assignment.node, assignment.run.number, assignment.incarnation.number)
        self.endpoint = Endpoint(self._context, identity, control, options)
        self.recorder = Recorder(
            self._context,
            "",
            assignment.sender,
            keys=(keys, deployment.records_key) if keys and deployment.records_key else None,
            gather_s=CONSTANTS.gather_s,
            may_drop=not deployment.records.startswith("ipc://"),  # no link to the collector holds up learning
        )
        self.planned: PlannedClock | None = None  # the clock, where it is the virtual one

    def clock(self, channels: Channels) -> Clock:
        assignment, time, incarnation = self._assignment, self._assignment.time, self._assignment.incarnation
        timeout = assignment.transport.timeout
        if self._schedule is None:
            everyone = self._traits.partners == "all" and not self._traits.silent_edges
            ahead = 1 if everyone and not assignment.periods else assignment.run.rounds
            return Clock(self.endpoint, channels, timeout, ahead=ahead)
        rules = Rules(time.silence, incarnation.bounded, assignment.checkpoints.every)
        if assignment.clock == "virtual":
            self.planned = PlannedClock(self.endpoint, channels, timeout, self._schedule, rules)
            return self.planned
        rules = replace(rules, staleness=time.most_ahead, deadline_s=time.longest_wait_s)
        if self._traits.server == "answers":
            first, at_server = incarnation.first_round, assignment.role == "server"
            anew = first > 1 and incarnation.state_round != first - 1
            silence = time.silence if at_server else "skip"  # a client without an answer goes on with what it has
            rules = replace(rules, silence=silence, is_server=at_server, listens_in=first if anew else 0)
        return WallClock(self.endpoint, channels, timeout, self._schedule, rules)

    def limit_resources(self) -> None:
        """Limits what unauthenticated peers can take; over Unix sockets there are none, and a limit is a process's."""
        deployment = self._assignment.deployment
        if deployment.address.startswith("tcp://") and not deployment.shares_process:
            bound_memory(deployment.memory)
            each = 4 if self.kernel is None else 8  # of a neighbour's present incarnation and of the one before
            bound_connections(each * len(self._assignment.neighbours))
            if self.kernel is None:  # it has to see the connections
                keep_own_files()

    def close(self, linger_s: float) -> None:
        self.recorder.close()
        self.endpoint.close(linger_s)
        self._context.term()  # waits until the last records have left
