"""The course of a client process: bind, meet the neighbours, learn for the agreed number of rounds, report, leave."""

import contextlib
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import TextIO, TypeVar

from ...transport import array_file
from ...transport.channel import Channels
from ...transport.clock_wall import DEADLINES
from ...transport.codecs import CannotEncode
from ...transport.connections import CannotListen
from ...transport.constants import CONSTANTS
from ...transport.control import Bound, Connect, Control, ControlClosed, Done, Exit, Failed, Go, Leaving, Place, Ready
from ...transport.endpoint import NeighbourTimeout, Stopped
from ...transport.failpoints import failpoint
from ...transport.peers import Peers
from ...transport.stopwatch import Stopwatch
from ..algorithms import algorithm_of, links_of
from ..assignment import Assignment
from ..client import Client
from ..model.learner import Learner
from .checkpoint import DiskFull, hand_on, restore_messages, write_state
from .links import Links
from .reporting import Figures, Reporter

_Message = TypeVar("_Message")


class Diverged(Exception):
    """theta, or a vector to be sent, has numbers that nobody can go on with."""


class NotMet(Exception):
    """Neighbours that could not be met in time."""


def live(assignment: Assignment, control: Control) -> int:
    """Runs the client to its end; returns the exit status of its process, minus a signal where its part is to crash."""
    opened: contextlib.AbstractContextManager[TextIO] = contextlib.nullcontext(sys.stdout)  # of a process of its own
    if assignment.deployment.shares_process:
        opened = os.fdopen(os.open(assignment.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644), "w")
    with opened as log:
        try:
            _ClientProcess(assignment, control, log).live()
        except (Stopped, ControlClosed) as end:
            print(f"stopped: {end or 'the launcher is gone'}", file=log, flush=True)
            return 0
        except Exception as error:
            tells_all = isinstance(error, (Diverged, DiskFull, NeighbourTimeout, NotMet, CannotListen))
            text = str(error) if tells_all else traceback.format_exc()
            control.send(Failed(text, type(error).__name__ if isinstance(error, (NotMet, CannotListen)) else ""))
            with contextlib.suppress(OSError):  # the disk may be full
                print(traceback.format_exc(), file=log, flush=True)
            return 1
    return -signal.SIGKILL if assignment.incarnation.ending == "crash" else 0


class _ClientProcess:
    def __init__(self, assignment: Assignment, control: Control, log: TextIO):
        self.assignment = assignment
        self.algorithm = algorithm_of(assignment)
        self.control = control
        self.log = log
        self.epoch = time.monotonic()
        self.stopwatch = Stopwatch(
            "start", running=assignment.measuring.enabled, alone=not assignment.deployment.shares_process
        )

    def live(self) -> None:
        assignment = self.assignment
        self.links = links = Links(assignment, self.algorithm.traits, self.control, self.stopwatch)
        self.endpoint, recorder = links.endpoint, links.recorder
        linger_s = 0.0
        try:
            self._prepare()  # before neighbours come: none of them is to wait
            may_come_at_work = assignment.transport.keyed and assignment.clock != "none"
            address = self.endpoint.connections.bind(assignment.deployment.address, hurry=not may_come_at_work)
            links.limit_resources()
            self.control.send(Bound(address, links.public_key))
            failpoint("bound")
            met = self._wait_for(Connect).neighbours
            recorder.connect(assignment.deployment.records)  # who stores them knows this client's key by now
            self.endpoint.before_waiting = recorder.flush
            self.reporter = Reporter(assignment, self.client, self.learner, self.peers, self.stopwatch, recorder)
            self.reporter.tell_process(address)
            self._meet(met)
            self._learn()
            early = assignment.incarnation.ending != "finish"
            if not early:
                self.control.send(Done())
                failpoint("done")
                self._wait_for(Exit)  # all have received all
            elif self.planned:
                hand_on(assignment, self.planned)
            linger_s = CONSTANTS.linger_s if early else 0.0
            self.reporter.tell_end(time.monotonic() - self.epoch, self.endpoint.hellos, early=early)
            if (kernel := links.kernel) is not None:
                self.endpoint.connections.note()
                self.reporter.tell_kernel(kernel.read())
                kernel.close()
            recorder.flush()
            self.control.send(Leaving(recorder.batches, recorder.wire_bytes))
            failpoint("left")
        finally:
            links.close(linger_s)

    def _prepare(self) -> None:
        assignment, incarnation = self.assignment, self.assignment.incarnation
        self.learner = Learner(assignment)
        channels = Channels(assignment.node, links_of(assignment), assignment.dtype, assignment.run.seed)
        self.clock = self.links.clock(channels)
        self.planned = self.links.planned
        self.peers = Peers(self.clock)
        self.client = Client(assignment, self.learner, self.stopwatch, self.clock.sleep)
        self.client.state = self.algorithm.begin(self.client)
        if incarnation.state_round is not None:
            state = array_file.read(assignment.state(incarnation.state_round))
            if incarnation.begun_in == incarnation.first_round:  # the one before has told of its own waits
                state.pop(DEADLINES, None)
            self.learner.load(state)
            self.client.state.load(state)
            self.peers.load(state)
        sizes = f"{self.client.theta.size} parameters, {self.learner.train_samples} training samples"
        print(f"client {assignment.node}: {sizes}", file=self.log, flush=True)

    def _meet(self, met: Sequence[Place]) -> None:
        """``met`` are the neighbours that are there."""
        more = self.assignment.clock != "none"
        self.endpoint.connections.learn({place.node: place.key for place in met}, more=more)
        if more:
            self.endpoint.presence.latecomers = frozenset(peer.node for peer in self.assignment.neighbours)
        timeout = self.assignment.transport.timeout
        try:
            hellos = self.endpoint.connect(met, time.monotonic() + timeout)
        except NeighbourTimeout as error:
            raise NotMet(f"{error} within transport.timeout = {timeout:g} s") from None
        self.reporter.tell_links(hellos)  # a neighbour that left meanwhile may have opened no connection
        self.control.send(Ready())
        failpoint("ready")
        self.epoch = self._wait_for(Go).epoch

    def _learn(self) -> None:
        client, incarnation, rounds = self.client, self.assignment.incarnation, self.assignment.run.rounds
        if incarnation.first_round == 1 and not incarnation.resumed_at:
            self._close_round(0)
        self.clock.begin(incarnation.first_round, incarnation.begun_in)
        if self.planned:
            restore_messages(self.assignment, self.planned)
        last = rounds if incarnation.last_round is None else incarnation.last_round
        for round in range(incarnation.first_round, last + 1):
            self.stopwatch.switch("maps")
            client.train_loss = None
            client.enter(round)
            self.learner.enter(round)
            with self._diverged_if_unsendable(round):
                self.algorithm.round(client, self.peers)
            self._close_round(round)

    @contextlib.contextmanager
    def _diverged_if_unsendable(self, round: int) -> Iterator[None]:
        """Raises Diverged."""
        try:
            yield
        except CannotEncode as error:
            self._require_finite(round)
            what = f"a vector of client {self.assignment.node} cannot be sent in round {round}"
            raise Diverged(f"{what}: {error}") from None

    def _require_finite(self, round: int) -> float:
        """||theta||. Raises Diverged."""
        theta = self.client.theta
        norm = math.sqrt(theta @ theta)
        if not math.isfinite(norm):
            cause = self.client.report.cause_of_divergence
            raise Diverged(f"theta of client {self.assignment.node} is not finite after round {round}: {cause}")
        return norm

    def _close_round(self, round: int) -> None:
        """Evaluates, writes state and records, all of it after the round's learning."""
        self.stopwatch.switch("records")
        assignment, maps = self.assignment, self.client.state.maps

        def due(every: int) -> bool:
            return round in (0, assignment.run.rounds) or (every > 0 and round % every == 0)

        theta_norm = self._require_finite(round)
        figures = self._figures(round) if due(assignment.evaluation.every) else Figures()
        if due(assignment.checkpoints.every):
            state = self.learner.state() | self.client.state.arrays() | self.peers.state()
            if assignment.checkpoints.save_maps and maps is not None:
                state |= {f"P.{j}": maps.dense(j) for j in maps.neighbours}
            if self.planned:
                state |= self.planned.stored.state(round)
            write_state(assignment.state(round), round, state)
            if self.planned:
                self.planned.stored.forget(round)
        self.reporter.tell_round(round, time.monotonic() - self.epoch, theta_norm, figures)

    def _figures(self, round: int) -> Figures:
        """A server has none, but what its clients need for theirs."""
        at_the_end = self.algorithm.as_at_the_end(self.client, self.peers)
        with self._diverged_if_unsendable(round), at_the_end if round else contextlib.nullcontext(True) as known:
            if not known or self.assignment.role == "server":
                return Figures()
            own, common = self.algorithm.personal_model(self.client), self.algorithm.common_model(self.client)
            with self.stopwatch.during("evaluation"):
                loss, metric = self.learner.evaluate(own)
                if common is None:
                    return Figures(loss, metric)
                return Figures(loss, metric, metric if common is own else self.learner.evaluate(common)[1])

    def _wait_for(self, kind: type[_Message]) -> _Message:
        """Blocks until the launcher sends such a message, and returns it. Raises Stopped, ControlClosed."""
        while True:
            while self.endpoint.heard:
                message = self.endpoint.heard.pop(0)
                if isinstance(message, kind):
                    return message
            if kind is Exit:  # neighbours may still be sending
                self.clock.listen(time.monotonic() + 1)
            else:
                self.endpoint.wait_for_launcher()
