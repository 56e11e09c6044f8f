"""Records of a client process for the collector; and samples of any process's memory and CPU time."""

import math
import os
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from ...metrics import records
from ...metrics.recorder import Recorder
from ...transport.clock import AGAIN, CONFIRMATION, EVALUATION
from ...transport.connections import identity_of
from ...transport.peers import Peers
from ...transport.wire import GREETING_BYTES, handshake_bytes, ready_bytes
from ..assignment import Assignment
from ..client import Client
from ..model.learner import Learner
from ..model.own_metrics import confusion_of, values_of
from ..model.poison import SUCCESS, success_of
from .vectors import SentVectors

_SHARE = 0.005  # of a process's CPU time: what samples may take, since the kernel walks over all of the memory for each


class Figures(NamedTuple):
    test_loss: float | None = None
    test_metric: float | None = None
    global_metric: float | None = None  # of the model that all have in common


class Reporter:
    """All wall times are seconds of the run."""

    def __init__(self, assignment: Assignment, client: Client, learner: Learner, peers: Peers, recorder: Recorder):
        self._assignment, self._client, self._learner, self._peers = assignment, client, learner, peers
        self._node, self._recorder = assignment.node, recorder
        self._measures = assignment.measuring.enabled
        self._pace, self._probes = Pace(assignment.measuring.every), assignment.probes
        self._vectors = SentVectors(assignment, client, peers)

    def tell_process(self, address: str) -> None:
        own, model, learner = self._assignment, self._assignment.architecture, self._learner
        sizes = model.size, learner.train_samples, learner.test_samples, len(own.neighbours)
        host = own.deployment.host_name
        self._recorder.write(records.NodeRecord(self._node, own.role, model.label, *sizes, host, os.getpid(), address))

    def tell_links(self, hellos: list[tuple[int, int]]) -> None:
        """Bytes that opening connections took; ``hellos`` are (neighbour, wire bytes of the hello), told once."""
        if not hellos:
            return
        own, batch = ready_bytes(identity_of(self._node, self._assignment.incarnation.number)), list[records.Record]()
        for j, hello in hellos:
            opening = [("greeting", 0, GREETING_BYTES), ("ready", 0, own)]
            if self._assignment.transport.keyed:
                opening.append(("handshake", 0, handshake_bytes(connects=self._node < j)))
            opening.append(("hello", 1, hello))
            batch += [records.OverheadRecord(self._node, j, *each) for each in opening]
        hellos.clear()
        self._recorder.write(*batch)

    def tell_round(self, round: int, now: float, theta_norm: float, figures: Figures) -> None:
        """Closes the round of the client's peers, too: their traffic belongs to the round that is told."""
        node, report, train_loss = self._node, self._client.report, self._learner.train_loss
        waited, (closed, sent, used) = self._peers.clock.waited(), self._peers.next_round()
        report.warnings += self._vectors.save(closed)
        events = [("warning", text) for text in report.warnings] + report.events
        events += [("drop", f"{count} x {reason}") for reason, count in self._peers.rejected().items()]
        report.warnings.clear()
        report.events.clear()
        batch: list[records.Record] = []
        if self._measures:
            batch += [records.TrafficRecord(node, j, closed, *traffic) for j, traffic in sent.items()]
            batch += [records.UsedRecord(node, closed, use.phase, use.neighbour, use.used) for use in used]
            batch += self._edges(round)
        batch += [records.EventRecord(now, waited.virtual_s, node, *event) for event in events]
        is_due = self._probes or round == self._assignment.run.rounds or self._pace.due(now)
        if self._measures and is_due:
            batch += self._measurements(now)
        told = records.RoundRecord(
            node=node,
            round=round,
            train_loss=train_loss,
            theta_norm=theta_norm,
            wall_s=now,
            virtual_s=waited.virtual_s,
            disagreement=math.hypot(*report.disagreements.values()) if report.disagreements else None,
            objective=None if train_loss is None else train_loss + report.penalty,
            gradient_norm=report.gradient_norm,
            idle_s=waited.idle_s,
            waited_for=waited.longest_for,
            **figures._asdict(),
        )
        self._recorder.write(*batch, told)  # last: where it is stored, all of the round is

    def tell_metrics(self, round: int, theta: np.ndarray) -> None:
        """What is asked of a model beside its loss and its test metric."""
        asked, is_last = self._assignment.evaluation, round == self._assignment.run.rounds
        if self._assignment.attack.kind == "backdoor" and self._assignment.run.attackers:
            success = success_of(self._assignment.attack, *self._learner.tested(theta, triggered=True))
            self._recorder.write(records.MetricRecord(self._node, round, SUCCESS, success))
        if asked.train:
            name = "train_accuracy" if self._assignment.run.task == "classification" else "train_mse"
            value = self._learner.evaluate(theta, training=True)[1]
            self._recorder.write(records.MetricRecord(self._node, round, name, value))
        if not asked.metrics and not (asked.confusion and is_last):
            return
        z, y = self._learner.tested(theta)
        values = values_of(self._assignment, z, y).items()
        self._recorder.write(*(records.MetricRecord(self._node, round, *each) for each in values))
        if asked.confusion and is_last:
            self._recorder.write(*(records.ConfusionRecord(self._node, round, *each) for each in confusion_of(z, y)))

    def tell_end(self, now: float, hellos: list[tuple[int, int]], *, early: bool) -> None:
        """``early``: before the run's last round, after which memory and CPU time are told in any case."""
        self.tell_links(hellos)
        if missed := self._peers.clock.deadlines_passed:
            waits = f"{missed} wait{'s' if missed > 1 else ''} ended by the deadline"
            self._recorder.write(records.EventRecord(now, None, self._node, "timeout", waits))
        for kind in (CONFIRMATION, EVALUATION, AGAIN):
            sent = sorted(self._peers.clock.endpoint.sent[kind].items())
            tallies = [(j, kind, tally.messages, tally.wire_bytes) for j, tally in sent]
            self._recorder.write(*(records.OverheadRecord(self._node, *tally) for tally in tallies))
        if early and self._measures:
            self._recorder.write(*self._measurements(now))

    def tell_kernel(self, counts: Iterable[tuple[str, str, int, int, float]]) -> None:
        self._recorder.write(*(records.KernelRecord(self._node, *count) for count in counts))

    def _edges(self, round: int) -> Iterator[records.Record]:
        maps, report = self._client.state.maps, self._client.report
        if maps is None or not (report.disagreements or report.weights):
            return
        for j, norm in maps.norms().items():
            if report.weights and j not in report.weights:
                continue
            weight, disagreement = report.weights.get(j), report.disagreements.get(j)
            map_norm = norm if weight is None else norm * weight
            bound, cosine = maps.error_bound, report.cosines.get(j)
            yield records.EdgeRecord(self._node, j, round, disagreement, map_norm, bound, weight, cosine)

    def _measurements(self, now: float) -> Iterable[records.Record]:
        node, model, learner, maps = self._node, self._assignment.architecture, self._learner, self._client.state.maps
        history, map_flops = (0, 0) if maps is None else (maps.history_bytes(), maps.flops)
        flops = {
            "gradient": learner.learnt_samples * model.gradient_flops,
            "evaluation": learner.evaluated_samples * model.evaluation_flops,
            "maps": map_flops,
        }
        buffers = learner.buffer_bytes() + self._peers.memory_bytes()
        state = learner.theta.nbytes, self._client.state.nbytes() - history, history, buffers
        with self._pace.sampling(now):
            # A look at all of its memory would leave the next round's work with cold caches
            no_own = self._assignment.deployment.shares_process or self._assignment.probes
            own = [] if no_own else [sample(node, now, state)]
            parts = self._peers.clock.endpoint.stopwatch.read().items()
            return own + [records.WorkRecord(node, now, part, *spent, flops.get(part, 0)) for part, spent in parts]


class Pace:
    """Samples are taken every so many seconds, and not more often than their share of CPU time allows."""

    def __init__(self, every: float):
        self._every, self._last_s, self._last_cpu_s = every, 0.0, time.thread_time()
        self._cost_s = 0.003  # on a server, for the memory of a client

    def due(self, now: float) -> bool:
        return now - self._last_s >= self._every and time.thread_time() - self._last_cpu_s >= self._cost_s / _SHARE

    @contextmanager
    def sampling(self, now: float) -> Iterator[None]:
        start = time.thread_time()
        yield
        self._last_s, self._last_cpu_s = now, time.thread_time()
        self._cost_s = self._last_cpu_s - start


def sample(
    node: int, wall_s: float, state: tuple[int, int, int, int] = (0, 0, 0, 0), *, pid: int | None = None
) -> records.ResourceRecord:
    """Memory and CPU time of this process, or of ``pid``. Raises psutil.Error when that process is gone. ``state`` are
    the bytes that a client keeps from round to round: theta, maps, their history, buffers."""
    if pid is None and sys.platform == "linux":  # without psutil: what that touches would be more than these
        fields = Path("/proc/self/smaps_rollup").read_bytes().split()
        kilobytes = {name: int(fields[place + 1]) for place, name in enumerate(fields) if name.endswith(b":")}
        private = kilobytes[b"Private_Clean:"] + kilobytes[b"Private_Dirty:"] + kilobytes[b"Private_Hugetlb:"]
        rss, pss, uss = (number * 1024 for number in (kilobytes[b"Rss:"], kilobytes[b"Pss:"], private))
    else:
        memory = psutil.Process(pid).memory_full_info()
        rss, pss, uss = memory.rss, getattr(memory, "pss", memory.rss), memory.uss
    if pid is None:
        peak, cpu_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, time.process_time()
    else:
        times = psutil.Process(pid).cpu_times()
        peak, cpu_s = rss, times.user + times.system
    return records.ResourceRecord(node, wall_s, rss, pss, uss, peak, cpu_s, sum(state), *state)
