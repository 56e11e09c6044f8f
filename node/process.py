"""The life of one client process: bind, meet the neighbours, learn for the agreed number of rounds, report, leave."""

from __future__ import annotations

import math
import os
import signal
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from ..transport.constants import CONSTANTS
from ..transport.control import Control, ControlClosed
from ..transport.endpoint import Endpoint, Stopped
from ..transport.failpoints import failpoint
from ..transport.kernel import KernelCounters
from ..transport.peers import Link, Peers
from ..transport.recorder import Recorder
from ..transport.schedule import Schedule
from ..transport.scheduled import PlannedPeers
from ..transport.stopwatch import Stopwatch
from ..transport.timed import TimedPeers
from .algorithms import ALGORITHMS
from .algorithms.server import ServerAlgorithm
from .assignment import Assignment
from .checkpoint import read_state, sent_to, write_state
from .client import Client
from .learner import Learner
from .reporting import Reporter


class Diverged(Exception):
    """theta is no longer finite."""


def live(assignment: Assignment, control: Control) -> int:
    """Runs the client to its end; returns the exit status of its process, unless its part is to crash."""
    try:
        _ClientProcess(assignment, control).live()
        if assignment.ending == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
    except (Stopped, ControlClosed) as end:
        print(f"stopped: {end or 'the launcher is gone'}", flush=True)
        return 0
    except Exception as error:
        print(traceback.format_exc(), flush=True)
        text = str(error) if isinstance(error, Diverged) else traceback.format_exc()
        control.send({"failed": text, "line": f"{type(error).__name__}: {error}"})
        return 1
    return 0


class _ClientProcess:
    def __init__(self, assignment: Assignment, control: Control):
        self.assignment = assignment
        self.control = control
        self.epoch = time.monotonic()
        self.stopwatch = Stopwatch("start", running=assignment.measure)

    def live(self) -> None:
        assignment = self.assignment
        context = zmq.Context(io_threads=1)
        dtype = np.dtype(assignment.dtype)
        limit = assignment.largest_vector * dtype.itemsize
        self.kernel = KernelCounters() if assignment.kernel_counters else None
        self.endpoint = Endpoint(
            context,
            assignment.node,
            assignment.run,
            self.control,
            limit,
            self.kernel,
            self.stopwatch,
            life=assignment.life,
            keys=assignment.ring,
        )
        self.recorder = Recorder(
            context,
            assignment.records,
            assignment.sender,
            keys=(assignment.keys, assignment.records_key) if assignment.keys and assignment.records_key else None,
            gather_s=CONSTANTS.gather_s,
            may_drop=not assignment.records.startswith("ipc://"),  # no link to the collector holds up learning
        )
        self.endpoint.before_waiting = self.recorder.flush
        linger_s = 0.0
        try:
            address = self.endpoint.bind(assignment.address)
            self.control.send({"bound": address})
            failpoint("bound")
            self._prepare(address)
            self._meet()
            self._learn()
            if assignment.ending == "finish":
                self.control.send({"done": True})
                failpoint("done")
                self._wait_for("exit")  # all have received all
            else:
                self._take_leave()
                linger_s = CONSTANTS.linger_s
            self._say_goodbye()
        finally:
            self.recorder.close()
            self.endpoint.close(linger_s)
            context.term()  # waits until the last records have left

    def _prepare(self, address: str) -> None:
        assignment = self.assignment
        self.learner = Learner(assignment)
        algorithm = ALGORITHMS[assignment.algorithm["name"]]
        settings = algorithm.Settings(**assignment.algorithm)
        links = {peer.node: algorithm.link(settings, assignment, peer) for peer in assignment.neighbours}
        self.peers = self._peers(links)
        self.client = Client(assignment, self.learner, self.stopwatch, self.peers.sleep)
        self.algorithm = algorithm(settings, self.client)
        if assignment.state_round is not None:
            self._restore(assignment.state_round)
        self.reporter = Reporter(
            assignment, self.client, self.learner, self.algorithm, self.peers, self.stopwatch, self.recorder
        )
        self.reporter.tell_process(address)
        size = self.client.theta.size
        print(
            f"client {assignment.node}: {size} parameters, {self.learner.train_samples} training samples",
            flush=True,
        )

    def _peers(self, links: Mapping[int, Link]) -> Peers:
        assignment, dtype = self.assignment, np.dtype(self.assignment.dtype)
        if assignment.clock == "none":
            everyone = ALGORITHMS[assignment.algorithm["name"]].with_everyone
            everyone &= not any(link.may_be_quiet for link in links.values())
            ahead = 1 if everyone and not assignment.turns else assignment.rounds
            return Peers(self.endpoint, links, dtype, assignment.timeout, ahead=ahead, seed=assignment.seed)
        schedule = Schedule.load(assignment.schedule)
        options: dict[str, Any] = {
            "fallback": "stale" if assignment.silence == "stale" else "skip",
            "bounded": assignment.bounded,
            "checkpoint_every": assignment.checkpoint_every,
            "seed": assignment.seed,
        }
        if assignment.clock == "wall":
            options |= {"staleness": assignment.staleness, "deadline_s": assignment.deadline_s}
            if issubclass(ALGORITHMS[assignment.algorithm["name"]], ServerAlgorithm):
                first, at_server = assignment.first_round, assignment.role == "server"
                anew = first > 1 and assignment.state_round != first - 1
                options |= {"is_server": at_server, "listens_in": first if anew else 0}
                if not at_server:
                    options["fallback"] = "skip"  # who has no answer goes on with what it has
            return TimedPeers(self.endpoint, links, dtype, assignment.timeout, schedule, **options)
        return PlannedPeers(self.endpoint, links, dtype, assignment.timeout, schedule, **options)

    def _restore(self, round: int) -> None:
        state = read_state(self.assignment.state(round))
        self.learner.load(state)
        self.algorithm.load(state)
        self.peers.load(state)

    def _receive_again(self) -> None:
        """What neighbours had sent when the run was interrupted, and this client has not used yet."""
        assignment, peers = self.assignment, self.peers
        if not isinstance(peers, PlannedPeers):
            return
        for peer in assignment.neighbours:
            for round, phase, vector in sent_to(assignment.node, self._files_of(peer.node)):
                if peers.sent_into(peer.node, round, phase) == assignment.life:
                    peers.put_in(peer.node, round, phase, vector)
            for round, phase, vector in sent_to(peer.node, self._files_of(assignment.node)):
                peers.keep(peer.node, round, phase, vector)

    def _files_of(self, node: int) -> tuple[Path, Path]:
        return self.assignment.checkpoint_of(node, self.assignment.resumed_at)

    def _meet(self) -> None:
        met = self._wait_for("connect")
        addresses = {int(node): address for node, (address, _) in met.items()}
        lives = {int(node): life for node, (_, life) in met.items()}
        if self.assignment.clock != "none":
            self.endpoint.latecomers = frozenset(peer.node for peer in self.assignment.neighbours)
        hello = self.endpoint.connect(addresses, time.monotonic() + self.assignment.timeout, lives)
        self.reporter.tell_links(hello.items())  # a neighbour that left meanwhile may have opened no connection
        self.control.send({"ready": True})
        failpoint("ready")
        self.epoch = self._wait_for("go")

    def _learn(self) -> None:
        assignment, client = self.assignment, self.client
        if assignment.first_round == 1 and not assignment.resumed_at:
            self._close_round(0)
        self.peers.begin(assignment.first_round)
        if assignment.resumed_at:
            self._receive_again()
        last = assignment.rounds if assignment.last_round is None else assignment.last_round
        for round in range(assignment.first_round, last + 1):
            self.stopwatch.switch("maps")
            client.train_loss = None
            client.enter(round)
            self.learner.enter(round)
            self.algorithm.round(client, self.peers)
            self._close_round(round)

    def _take_leave(self) -> None:
        """All that was sent to this client comes in, all that neighbours need of it is kept: then it may end."""
        assignment, peers = self.assignment, self.peers
        if not isinstance(peers, PlannedPeers):
            return
        peers.drain(assignment.life, assignment.resumed_at)
        every = assignment.checkpoint_every
        for round in range(peers.round, assignment.absent_until + 1):
            if every and round % every == 0:
                write_state(assignment.sent(round), round, peers.kept(round))

    def _close_round(self, round: int) -> None:
        """Evaluates, writes state and records, all of it after the round's learning."""
        self.stopwatch.switch("records")
        assignment = self.assignment
        last = round == assignment.rounds
        theta_norm = math.sqrt(self.client.theta @ self.client.theta)
        if not math.isfinite(theta_norm):
            raise Diverged(
                f"theta of client {assignment.node} is not finite after round {round}: "
                f"{self.algorithm.report.cause_of_divergence}"
            )
        evaluates = assignment.role == "client" and _due(round, assignment.evaluate_every, last)
        figures = self._evaluate() if evaluates else (None, None, None)
        if _due(round, assignment.checkpoint_every, last):
            write_state(assignment.state(round), round, self._state() | self.peers.kept(round))
            self.peers.forget(round)
        self.reporter.tell_round(round, self._now(), theta_norm, *figures, last=last)

    def _evaluate(self) -> tuple[float, float, float | None]:
        """Test loss and metric of the client's model, and the metric of the one that all have in common."""
        own, common = self.algorithm.personal_model(self.client), self.algorithm.global_model
        with self.stopwatch.during("evaluation"):
            loss, metric = self.learner.evaluate(own)
            if common is None:
                return loss, metric, None
            return loss, metric, metric if common is own else self.learner.evaluate(common)[1]

    def _say_goodbye(self) -> None:
        self.reporter.tell_end(self._now(), self.endpoint.hellos, early=self.assignment.ending != "finish")
        if self.kernel is not None:
            self.endpoint.note_connections()
            self.reporter.tell_kernel(self.kernel.read())
            self.kernel.close()
        self.recorder.flush()
        self.control.send({"left": self.recorder.batches, "wire_bytes": self.recorder.wire_bytes})
        failpoint("left")

    def _now(self) -> float:
        """Wall seconds of the run."""
        return time.monotonic() - self.epoch

    def _state(self) -> dict[str, np.ndarray]:
        state = self.learner.state() | self.algorithm.state() | self.peers.state()
        maps = self.algorithm.maps
        if self.assignment.save_maps and maps is not None:
            state |= {f"P.{j}": maps.dense(j) for j in maps.neighbours}
        return state

    def _wait_for(self, word: str) -> Any:
        """Blocks until the launcher says ``word``; returns what came with it. Raises Stopped, ControlClosed."""
        while True:
            while self.endpoint.heard:
                message = self.endpoint.heard.pop(0)
                if word in message:
                    return message[word]
            if word == "exit":  # neighbours may still be sending
                self.peers.idle()
            else:
                self.endpoint.heed()


def _due(round: int, every: int, last: bool) -> bool:
    return round == 0 or last or (every > 0 and round % every == 0)
