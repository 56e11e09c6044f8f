"""A client process: bind, meet the neighbours, learn for the agreed number of rounds, report, leave."""

import contextlib
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TextIO, TypeVar

import zmq

from ...metrics.recorder import Recorder
from ...topology.errors import UserError
from ...transport import array_file
from ...transport.channel import Channels
from ...transport.clock import Clock
from ...transport.clock_planned import BrokenOff, PlannedClock, Rules
from ...transport.clock_wall import DEADLINES, WallClock
from ...transport.codecs import CannotEncode
from ...transport.connections import CannotListen, KernelCounters, Options
from ...transport.control import (
    Bound,
    Connect,
    Control,
    ControlClosed,
    Done,
    Exit,
    Failed,
    Go,
    Leaving,
    Place,
    Ready,
    StepTimed,
)
from ...transport.endpoint import Endpoint, NeighbourTimeout, Stopped
from ...transport.environment import CONSTANTS, failpoint
from ...transport.keys import KeyPair, Ring
from ...transport.limits import bound_connections, bound_memory, keep_own_files
from ...transport.namespace import enter
from ...transport.peers import Peers
from ...transport.schedule import Schedule, queue_for
from ...transport.stopwatch import Stopwatch, undisturbed
from ...transport.use_log import BEGINS, UseLog
from .. import own_code
from ..algorithms import algorithm_of, links_of
from ..algorithms.base import State, make_room, returned
from ..algorithms.fine_tuning import fine_tuned
from ..assignment import Assignment
from ..attacks import attacker_of
from ..model.learner import Learner, time_of_a_step, trying
from ..model.private import learner_of
from ..privacy import client_of
from .heap import Heap
from .reporting import Figures, Reporter
from .states import Failure, sent_to, write_state

_Message = TypeVar("_Message")


class NotMet(Failure):
    """Neighbours that could not be met in time."""


def live(assignment: Assignment, control: Control) -> int:
    """Runs the client to its end; returns the exit status of its process, minus a signal where its part is to crash."""
    opened: contextlib.AbstractContextManager[TextIO] = contextlib.nullcontext(sys.stdout)  # of a process of its own
    if assignment.deployment.shares_process:
        opened = os.fdopen(os.open(assignment.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644), "w")
    with opened as log:
        try:
            if assignment.timed_steps:
                learner = learner_of(assignment)
                _heap_of(learner, assignment)  # a step takes memory as in a run
                control.send(StepTimed(time_of_a_step(learner, assignment.timed_steps)))
            else:
                _ClientProcess(assignment, control, log).live()
        except (Stopped, ControlClosed) as end:
            print(f"stopped: {end or 'the launcher is gone'}", file=log, flush=True)
            return 0
        except (Exception, SystemExit) as error:
            cause = type(error).__name__ if isinstance(error, (NotMet, CannotListen)) else ""
            tells_all = cause or isinstance(error, (Failure, NeighbourTimeout, UserError))
            text = str(error) if tells_all else traceback.format_exc()
            cause = text if isinstance(error, UserError) else cause  # that of all clients
            if line := own_code.blamed(error):
                text, cause = f"{line}; {assignment.log} has the traceback", line
            control.send(Failed(text, cause))
            with contextlib.suppress(OSError):  # the disk may be full
                print(traceback.format_exc(), file=log, flush=True)
            return 1
    return -signal.SIGKILL if assignment.incarnation.ending == "crash" else 0


def _heap_of(learner: Learner, assignment: Assignment) -> Heap | None:
    """None where it is not this client's alone, or its model takes little memory in a step."""
    return Heap() if learner.in_torch and not assignment.deployment.shares_process else None


class _ClientProcess:
    def __init__(self, assignment: Assignment, control: Control, log: TextIO):
        self.assignment, self.control, self.log = assignment, control, log
        self.algorithm = algorithm_of(assignment)
        # Generators of the process are not those of a client where clients are threads
        self.has_own_code = bool(assignment.run.code or self.algorithm.use) and not assignment.deployment.shares_process
        self.own = "state." if self.algorithm.use else ""  # before its state's names, which are its author's choice
        self.epoch = time.monotonic()
        self.log_of_uses: UseLog | None = None
        deployment, measuring, keyed = assignment.deployment, assignment.measuring, assignment.transport.keyed
        alone = not deployment.shares_process
        clock = {"clock": undisturbed()} if assignment.probes else {}
        self.stopwatch = Stopwatch("start", running=measuring.enabled, alone=alone, **clock)
        if deployment.namespace:  # before there is a thread or a socket
            enter(deployment.namespace)
        self.context = zmq.Context(io_threads=1)
        keys = KeyPair.make() if keyed or deployment.records_key else None  # nobody else has the secret
        self.public_key = keys.public if keys else ""
        counts = measuring.enabled and measuring.kernel and assignment.transport.protocol == "tcp"
        # The kernel's counters belong to descriptors of a process of its own
        self.kernel = KernelCounters() if counts and alone else None
        self.schedule = None if assignment.clock == "none" else Schedule.load(assignment.schedule)
        queue = queue_for(self.schedule) if self.schedule else Options.queue
        if self.algorithm.traits.server == "answers" and not assignment.incarnation.bounded:
            queue = CONSTANTS.queue_of_a_server  # unconfirmed, it does not run far ahead of clients that only evaluate
        ring = Ring(keys, {}, more=True) if keys and keyed else None
        largest = assignment.run.largest_vector * assignment.dtype.itemsize
        own = assignment.node, assignment.run.number, largest, assignment.incarnation.number
        options = Options(*own, queue, ring, self.kernel, self.stopwatch, assignment.run.opens_late)
        self.endpoint = Endpoint(self.context, control, options)
        self.recorder = Recorder(
            self.context,
            "",
            assignment.sender,
            keys=(keys, deployment.records_key) if keys and deployment.records_key else None,
            gather_s=CONSTANTS.gather_s,
            may_drop=not deployment.records.startswith("ipc://"),  # no link to the collector holds up learning
        )

    def live(self) -> None:
        assignment, endpoint, recorder = self.assignment, self.endpoint, self.recorder
        linger_s = 0.0
        try:
            self._prepare()  # before neighbours come: none of them is to wait
            if assignment.incarnation.number > 1 or assignment.incarnation.first_round > 1:
                self._expect_latecomers()  # others are at work: they come, and may go, before it has met them
            late = assignment.clock != "none" or assignment.run.opens_late
            may_come_at_work = assignment.transport.keyed and late
            address = endpoint.connections.bind(assignment.deployment.address, hurry=not may_come_at_work)
            self._limit_resources()
            self.control.send(Bound(address, self.public_key))
            failpoint("bound")
            met = self._wait_for(Connect).neighbours
            recorder.connect(assignment.deployment.records)  # who stores them knows this client's key by now
            endpoint.before_waiting = self._rest
            self.reporter = Reporter(assignment, self.client, self.learner, self.peers, recorder)
            self.reporter.tell_process(address)
            self._meet(met)
            self._learn()
            early = assignment.incarnation.ending != "finish"
            if not early:
                self.control.send(Done())
                failpoint("done")
                self._wait_for(Exit)  # all have received all
            elif isinstance(self.clock, PlannedClock):
                self._hand_on(self.clock)
            linger_s = CONSTANTS.linger_s if early else 0.0
            self.reporter.tell_end(time.monotonic() - self.epoch, endpoint.hellos, early=early)
            if self.kernel is not None:
                endpoint.connections.note()
                self.reporter.tell_kernel(self.kernel.read())
                self.kernel.close()
            recorder.flush()
            self.control.send(Leaving(recorder.batches, recorder.wire_bytes))
            failpoint("left")
        finally:
            recorder.close()
            if self.log_of_uses:
                self.log_of_uses.close()
            endpoint.close(linger_s)
            self.context.term()  # waits until the last records have left

    def _rest(self) -> None:
        """Before a wait that is not short."""
        self.recorder.flush()
        if self.heap is not None:
            self.heap.give_back()

    def _prepare(self) -> None:
        assignment, incarnation = self.assignment, self.assignment.incarnation
        self.learner = learner_of(assignment)
        self.heap = _heap_of(self.learner, assignment)
        self.clock = self._clock(Channels(assignment.node, links_of(assignment), assignment.dtype, assignment.run.seed))
        self.peers = Peers(self.clock, attacker_of(assignment, self.clock))
        self.client = client_of(self.algorithm, assignment, self.learner, self.stopwatch, self.clock.sleep)
        self.client.state = returned(self.algorithm, "begin", self.algorithm.begin(self.client), State)
        self.client.state.arrays()  # what cannot be kept is told at once
        if incarnation.state_round is not None:
            state = array_file.read(assignment.state(incarnation.state_round))
            if incarnation.begun_in == incarnation.first_round:  # the one before has told of its own waits
                state.pop(DEADLINES, None)
            self.learner.load(state)
            self.peers.load(state)
            own = {name.removeprefix(self.own): array for name, array in state.items() if name.startswith(self.own)}
            if self.own:
                make_room(self.client.state, own)
            self.client.state.load(own)
        sizes = f"{self.client.theta.size} parameters, {self.learner.train_samples} training samples"
        print(f"client {assignment.node}: {sizes}", file=self.log, flush=True)

    def _clock(self, channels: Channels) -> Clock:
        assignment, time, incarnation = self.assignment, self.assignment.time, self.assignment.incarnation
        traits, timeout = self.algorithm.traits, assignment.transport.timeout
        if self.schedule is None:
            some = traits.silent_edges or traits.server == "answers" or assignment.periods
            ahead = assignment.run.rounds if some else 1
            return Clock(self.endpoint, channels, timeout, ahead=ahead)
        breaks_off_in = (incarnation.last_round or 0) + 1 if incarnation.breaks_off else 0
        rules = Rules(time.silence, incarnation.bounded, assignment.checkpoints.every, breaks_off_in)
        if assignment.clock == "virtual":
            return PlannedClock(self.endpoint, channels, timeout, self.schedule, rules)
        rules = replace(
            rules,
            staleness=float(time.staleness),
            deadline_s=time.deadline_s or math.inf,
            last_heard=assignment.last_heard,
        )
        if traits.server == "answers":
            first, at_server = incarnation.first_round, assignment.role == "server"
            anew = first > 1 and incarnation.state_round != first - 1
            silence = time.silence if at_server else "skip"  # a client without an answer goes on with what it has
            rules = replace(rules, silence=silence, is_server=at_server, listens_in=first if anew else 0)
        return WallClock(self.endpoint, channels, timeout, self.schedule, rules)

    def _limit_resources(self) -> None:
        """Limits what unauthenticated peers can take; over Unix sockets there are none, and a limit is a process's."""
        deployment = self.assignment.deployment
        if deployment.address.startswith("tcp://") and not deployment.shares_process:
            bound_memory(deployment.memory)
            each = 4 if self.kernel is None else 8  # of a neighbour's present incarnation and of the one before
            bound_connections(each * len(self.assignment.neighbours))
            if self.kernel is None:  # it has to see the connections
                keep_own_files()

    def _expect_latecomers(self) -> None:
        if self.assignment.clock != "none" or self.assignment.run.opens_late:
            self.endpoint.presence.latecomers = frozenset(peer.node for peer in self.assignment.neighbours)

    def _meet(self, met: Sequence[Place]) -> None:
        self.endpoint.connections.learn({place.node: place.key for place in met}, more=self.assignment.clock != "none")
        self._expect_latecomers()
        timeout = self.assignment.transport.timeout
        try:
            hellos = self.endpoint.connect(met, time.monotonic() + timeout)
        except NeighbourTimeout as error:
            raise NotMet(f"{error} within transport.timeout = {timeout:g} s") from None
        self.reporter.tell_links(hellos)  # a neighbour that left meanwhile may have opened no connection
        self.control.send(Ready())
        failpoint("ready")
        began, self.epoch = self.epoch, self._wait_for(Go).epoch
        if isinstance(self.clock, WallClock):
            first, number = self.assignment.incarnation.first_round, self.assignment.incarnation.number
            self.clock.log = self.log_of_uses = UseLog(self.assignment.used)
            self.log_of_uses.write([(first, BEGINS, number, max(0, 1 + int(1000 * (began - self.epoch))))])

    def _learn(self) -> None:
        client, incarnation, rounds = self.client, self.assignment.incarnation, self.assignment.run.rounds
        if incarnation.first_round == 1 and not incarnation.resumed_at:
            self._close_round(0)
        self.clock.begin(incarnation.first_round, incarnation.begun_in)
        if isinstance(clock := self.clock, PlannedClock):
            own, resumed_at = self.assignment, incarnation.resumed_at
            sent = [own.handed_on(incarnation.number - 1)]
            if resumed_at:
                sent += own.checkpoint_of(own.node, resumed_at)
            for peer in own.neighbours:
                if resumed_at:  # what neighbours had sent when the run was interrupted, not used yet
                    for message in sent_to(own.node, own.checkpoint_of(peer.node, resumed_at)):
                        clock.restore(peer.node, *message, incarnation.number)
                for message in sent_to(peer.node, sent):  # own messages that it will use after checkpoints to come
                    clock.store(peer.node, *message)
        last = rounds if incarnation.last_round is None else incarnation.last_round
        for round in range(incarnation.first_round, last + 1):
            with self._round(round):
                self.algorithm.round(client, self.peers)
                self._close_round(round)
        if incarnation.breaks_off:
            with contextlib.suppress(BrokenOff), self._round(last + 1):
                self.algorithm.round(client, self.peers)
        while not self.schedule and self.endpoint.unanswered:  # all listen until the end
            self.clock.listen(time.monotonic() + 1)

    @contextlib.contextmanager
    def _round(self, round: int) -> Iterator[None]:
        client = self.client
        self.stopwatch.switch("maps")
        client.train_loss = None
        if self.assignment.attacks and round == self.assignment.attack.from_round:
            client.report.events.append(("attack", self.assignment.attack.text))
        client.enter(round, self.schedule.partners(round) if self.schedule and self.algorithm.traits.meets else None)
        # Without a plan both ends of a link know by the graph when it is needed; else who sends first opens it
        if self.assignment.run.opens_late and self.assignment.periods and not self.schedule:
            self.endpoint.meet(client.neighbours)
        self.learner.enter(round)
        if self.has_own_code:
            own_code.seed(self.assignment.run.seed, self.assignment.node, round)
        try:
            yield
        except CannotEncode as error:
            self._require_finite(round)
            raise Failure(f"a vector of client {client.node} cannot be sent in round {round}: {error}") from None

    def _hand_on(self, clock: PlannedClock) -> None:
        """All that was sent to this client comes in, all that neighbours need of it is written: then it may end."""
        own, incarnation, every = self.assignment, self.assignment.incarnation, self.assignment.checkpoints.every
        clock.drain(incarnation.number, incarnation.resumed_at)
        for round in range(clock.round, incarnation.absent_until + 1):
            if every and round % every == 0:
                write_state(own.sent(round), round, clock.stored(round))
        if handed_on := clock.stored(clock.round - 1):
            write_state(own.handed_on(incarnation.number), clock.round - 1, handed_on)

    def _require_finite(self, round: int) -> float:
        """||theta||. Raises Failure."""
        theta = self.client.theta
        norm = math.sqrt(theta @ theta)
        if not math.isfinite(norm):
            cause, attackers = self.client.report.cause_of_divergence, self.assignment.run.attackers
            if attackers and not self.assignment.attacks:
                who = f"client {attackers[0]}{f' and {len(attackers) - 1} more' * (len(attackers) > 1)}"
                cause = f"{who} attack: algorithm.mixing or algorithm.guard may help; or {cause}"
            raise Failure(f"theta of client {self.assignment.node} is not finite after round {round}: {cause}")
        return norm

    def _close_round(self, round: int) -> None:
        self.stopwatch.switch("records")
        assignment, maps = self.assignment, self.client.state.maps

        def due(every: int) -> bool:
            return round in (0, assignment.run.rounds) or (every > 0 and round % every == 0)

        if assignment.probes and maps is not None:
            other = -self.client.theta  # maps may know what they make of theta itself
            with self.stopwatch.during("projection"):
                maps.project(other)
        theta_norm = self._require_finite(round)
        figures = self._figures(round) if due(assignment.evaluation.every) else Figures()
        is_checkpoint = due(assignment.checkpoints.every) and not assignment.probes
        if is_checkpoint or (assignment.incarnation.saves and round == assignment.incarnation.last_round):
            own = {f"{self.own}{name}": array for name, array in self.client.state.arrays().items()}
            state = self.learner.state() | own | self.peers.state()
            if assignment.checkpoints.save_maps and maps is not None:
                state |= {f"P.{j}": maps.dense(j) for j in maps.neighbours}
            if is_checkpoint and isinstance(self.clock, PlannedClock):
                state |= self.clock.stored(round)
                self.clock.forget(round)
            write_state(assignment.state(round), round, state)
        self.reporter.tell_links(self.endpoint.hellos)
        self.reporter.tell_round(round, time.monotonic() - self.epoch, theta_norm, figures)

    def _figures(self, round: int) -> Figures:
        """A server has none, but what its clients need for theirs."""
        at_the_end = self.algorithm.as_at_the_end(self.client, self.peers)
        with at_the_end if round else contextlib.nullcontext(True) as known:
            if not known or self.assignment.role == "server":
                return Figures()
            with trying(self.learner):  # a client's own model may be made by steps of its own
                own, common = self.algorithm.personal_model(self.client), self.algorithm.common_model(self.client)
                if steps := self.assignment.evaluation.fine_tune:
                    own = fine_tuned(self.client, own, steps)
                with self.stopwatch.during("evaluation"):
                    loss, metric = self.learner.evaluate(own)
                    self.reporter.tell_metrics(round, own)
            if common is None:
                return Figures(loss, metric)
            with self.stopwatch.during("evaluation"):
                return Figures(loss, metric, metric if common is own else self.learner.evaluate(common)[1])

    def _wait_for(self, kind: type[_Message]) -> _Message:
        """Raises Stopped, ControlClosed."""
        while True:
            while self.endpoint.heard:
                message = self.endpoint.heard.pop(0)
                if isinstance(message, kind):
                    return message
            if kind is Exit:  # neighbours may still be sending
                self.clock.listen(time.monotonic() + 1)
            else:
                self.endpoint.wait_for_launcher()
