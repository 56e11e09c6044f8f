"""The life of one client process: bind, meet the neighbours, learn for the agreed number of rounds, report, leave."""

from __future__ import annotations

import math
import os
import socket
import time
import traceback
from typing import Any

import numpy as np
import zmq

from ..metrics.records import (
    EdgeRecord,
    EventRecord,
    KernelRecord,
    NodeRecord,
    OverheadRecord,
    Record,
    RoundRecord,
)
from ..transport.control import Control, ControlClosed
from ..transport.endpoint import Endpoint, Stopped, identity_of
from ..transport.kernel import KernelCounters
from ..transport.peers import Link, Peers
from ..transport.recorder import Recorder
from ..transport.stopwatch import Stopwatch
from ..transport.wire import GREETING_BYTES, ready_bytes
from .algorithms import ALGORITHMS
from .architecture import Architecture
from .assignment import Assignment
from .checkpoint import write_state
from .client import Client
from .flops import evaluation_flops, gradient_flops
from .learner import Learner
from .resources import Pace, StateBytes, sample, work


class Diverged(Exception):
    """theta is no longer finite."""


def live(assignment: Assignment, control: Control) -> int:
    """Runs the client to its end; returns the exit status of its process."""
    try:
        _ClientProcess(assignment, control).live()
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
        self.pace = Pace(assignment.sample_every)
        self.unheard: list[dict[str, Any]] = []  # the launcher's words that nothing has waited for yet

    def live(self) -> None:
        assignment = self.assignment
        context = zmq.Context(io_threads=1)
        dtype = np.dtype(assignment.dtype)
        limit = assignment.largest_vector * dtype.itemsize
        self.kernel = KernelCounters() if assignment.kernel_counters else None
        self.endpoint = Endpoint(
            context, assignment.node, assignment.run, self.control, limit, self.kernel, self.stopwatch
        )
        self.recorder = Recorder(context, assignment.records, assignment.node)
        try:
            address = self.endpoint.bind(assignment.address)
            self.control.send({"bound": address})
            self._prepare(address)
            self._meet()
            self._learn()
            self.control.send({"done": True})
            self._wait_for("exit")  # all have received all
            self._say_goodbye()
        finally:
            self.recorder.close()
            self.endpoint.close()
            context.term()  # waits until the last records have left

    def _prepare(self, address: str) -> None:
        assignment = self.assignment
        self.learner = Learner(assignment)
        self.client = Client(assignment, self.learner, self.stopwatch)
        algorithm = ALGORITHMS[assignment.algorithm["name"]]
        settings = algorithm.Settings(**assignment.algorithm)
        own = assignment.architecture.size
        links = {
            peer.node: Link(
                sends=algorithm.vectors(settings, own, peer.parameters, len(peer.common)),
                receives=algorithm.vectors(settings, peer.parameters, own, len(peer.common)),
            )
            for peer in assignment.neighbours
        }
        self.peers = Peers(self.endpoint, links, np.dtype(assignment.dtype), assignment.timeout)
        self.algorithm = algorithm(settings, self.client)
        self.recorder.write(self._node_record(assignment.architecture, address))
        print(f"client {assignment.node}: {own} parameters, {self.learner.train_samples} training samples", flush=True)

    def _node_record(self, architecture: Architecture, address: str) -> NodeRecord:
        return NodeRecord(
            node=self.assignment.node,
            role=self.algorithm.role,
            model=architecture.label,
            parameters=architecture.size,
            train_samples=self.learner.train_samples,
            test_samples=self.learner.test_samples,
            degree=len(self.assignment.neighbours),
            host=socket.gethostname(),
            pid=os.getpid(),
            address=address,
        )

    def _meet(self) -> None:
        addresses = {int(node): address for node, address in self._wait_for("connect").items()}
        hello = self.endpoint.connect(addresses, time.monotonic() + self.assignment.timeout)
        own = ready_bytes(identity_of(self.assignment.node))
        self.recorder.write(
            *(
                OverheadRecord(self.assignment.node, node, kind, messages, wire_bytes)
                for node in addresses
                for kind, messages, wire_bytes in (
                    ("greeting", 0, GREETING_BYTES),
                    ("ready", 0, own),
                    ("hello", 1, hello.get(node, 0)),
                )
            )
        )
        self.control.send({"ready": True})
        self.epoch = self._wait_for("go")

    def _learn(self) -> None:
        assignment, client = self.assignment, self.client
        self._close_round(0)
        for round in range(1, assignment.rounds + 1):
            self.stopwatch.switch("maps")
            self.algorithm.round(client, self.peers)
            self._close_round(round)

    def _close_round(self, round: int) -> None:
        """Evaluates, writes state and records, all of it after the round's learning."""
        self.stopwatch.switch("records")
        assignment = self.assignment
        last = round == assignment.rounds
        theta_norm = float(np.linalg.norm(self.client.theta))
        if not np.isfinite(theta_norm):
            raise Diverged(
                f"theta of client {assignment.node} is not finite after round {round}: "
                f"{self.algorithm.report.cause_of_divergence}"
            )
        test_loss, test_metric = self._evaluate() if _due(round, assignment.evaluate_every, last) else (None, None)
        if _due(round, assignment.checkpoint_every, last):
            write_state(assignment.state(round), round, self._state())
        now = time.monotonic() - self.epoch
        report = self.algorithm.report
        traffic = self.peers.next_round()
        records: list[Record] = [
            RoundRecord(
                node=assignment.node,
                round=round,
                train_loss=self.client.train_loss,
                test_loss=test_loss,
                test_metric=test_metric,
                theta_norm=theta_norm,
                wall_s=now,
                disagreement=math.hypot(*report.disagreements.values()) if report.disagreements else None,
                objective=None if self.client.train_loss is None else self.client.train_loss + report.penalty,
                gradient_norm=report.gradient_norm,
            ),
            *(traffic if assignment.measure else ()),
            *(self._edges(round) if assignment.measure else ()),
            *(EventRecord(now, None, assignment.node, "warning", text) for text in report.warnings),
            *(
                EventRecord(now, None, assignment.node, "drop", f"{count} x {reason}")
                for reason, count in self.peers.rejected().items()
            ),
        ]
        report.warnings.clear()
        if assignment.measure and (last or self.pace.due(now)):
            with self.pace.sampling(now):
                records += self._measurements(now)
        self.recorder.write(*records)

    def _evaluate(self) -> tuple[float, float]:
        with self.stopwatch.during("evaluation"):
            return self.learner.evaluate()

    def _measurements(self, now: float) -> list[Record]:
        node, architecture, learner = self.assignment.node, self.assignment.architecture, self.learner
        maps = self.algorithm.maps
        flops = {
            "gradient": learner.learnt_samples * gradient_flops(architecture),
            "evaluation": learner.evaluated_samples * evaluation_flops(architecture),
            "maps": 0 if maps is None else maps.flops,
        }
        history = 0 if maps is None else maps.history_bytes()
        state = StateBytes(
            theta=learner.theta.nbytes,
            maps=self.algorithm.state_bytes() - history,
            history=history,
            buffers=learner.buffer_bytes() + self.peers.inbox_bytes(),
        )
        return [sample(node, now, state), *work(node, now, self.stopwatch.read(), flops)]

    def _say_goodbye(self) -> None:
        if self.kernel is not None:
            self.endpoint.note_connections()
            counts = self.kernel.read()
            self.kernel.close()
            self.recorder.write(
                *(KernelRecord(self.assignment.node, c.local, c.peer, c.sent, c.received) for c in counts)
            )
        self.control.send({"left": self.recorder.batches, "wire_bytes": self.recorder.wire_bytes})

    def _edges(self, round: int) -> list[EdgeRecord]:
        maps, disagreements = self.algorithm.maps, self.algorithm.report.disagreements
        if maps is None or not disagreements:
            return []
        return [
            EdgeRecord(self.assignment.node, j, round, disagreements[j], map_norm, maps.error_bound)
            for j, map_norm in maps.norms().items()
        ]

    def _state(self) -> dict[str, np.ndarray]:
        state = self.learner.state() | self.algorithm.state()
        maps = self.algorithm.maps
        if self.assignment.save_maps and maps is not None:
            state |= {f"P.{j}": maps.dense(j) for j in maps.neighbours}
        return state

    def _wait_for(self, word: str) -> Any:
        """Blocks until the launcher says ``word``; returns what came with it. Raises Stopped, ControlClosed."""
        while True:
            while self.unheard:
                message = self.unheard.pop(0)
                if "stop" in message:
                    raise Stopped(message["stop"])
                if word in message:
                    return message[word]
            self.unheard += self.control.receive()


def _due(round: int, every: int, last: bool) -> bool:
    return round == 0 or last or (every > 0 and round % every == 0)
