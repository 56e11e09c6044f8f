"""One run: its processes from start to end, whatever happens to them."""

import math
import time
from collections.abc import Callable, Iterator

from ...metrics.records import LAUNCHER, Record
from ...node.process.resources import sample
from ...transport.constants import CONSTANTS
from ...transport.control import ControlClosed, Kill, Stop, TellAll
from ...transport.failpoints import failpoint
from .. import interrupts
from ..prepare.prepared import Prepared
from ..processes.collector import CollectorProcess
from ..processes.engines.base import Engine, EngineError
from .clients import Clients
from .folder import unfinished_files
from .journal import Journal, Outcome, last_line

_LISTEN_S = 0.25


class _Failure(Exception):
    """The run cannot go on."""


class Run:
    """Drives one prepared run on an engine. ``watch`` is called a few times a second while the clients work, and with
    a text where something else takes long. ``lock`` is the descriptor of the folder's: the collector holds it, too,
    until all is stored."""

    def __init__(self, prepared: Prepared, engine: Engine, watch: Callable[..., None], lock: int | None = None):
        self.prepared, self._lock = prepared, lock
        self._engine, self._watch = engine, watch
        self.clients = Clients(prepared, engine)

    def __call__(self) -> Outcome:
        """Raises nothing but what is a fault of this program; no client is left running in any case."""
        self._started = time.monotonic()
        list(self._engine.overhead())  # what went before is not this run's
        interrupts.check()
        with CollectorProcess(self.prepared, self._lock) as self._collector:
            self.prepared = self._collector.found(self.prepared)
            self._journal = Journal(self.prepared, self._collector)
            failpoint("collector started")
            outcome = self._attempt()
            with interrupts.deferred() as impatient:  # what follows must not be cut, but it may be asked to hurry
                if self.clients.running:
                    self._stop_clients(outcome.status)
                if absent := self._engine.bring_home():
                    self._journal.event("warning", f"not all that clients wrote on {', '.join(absent)} is here")
                for path in unfinished_files(self.prepared.folder):  # of clients that were killed
                    path.unlink()
                self._collector.write(*self._final_resources())
                lost = self._collector.end(self.clients.batches, self._watch, impatient)
                return self._journal.end(self._with_causes(outcome, lost), self._overhead(), impatient)

    def _with_causes(self, outcome: Outcome, lost: str | None) -> Outcome:
        """``lost``: why records are missing."""
        causes = (f"records of this run are missing: {lost}",) if lost else ()
        if outcome.status == "failure":
            of_clients = self.clients.failures.causes(self.prepared, self.clients.waits.hopeless)
            causes = (*of_clients, *outcome.causes, *causes)
        return Outcome("failure" if causes and outcome.status == "finish" else outcome.status, causes)

    def _attempt(self) -> Outcome:
        try:
            for reached in self.clients.course(self.prepared, self._journal, self._started):
                self._until(reached)
            self._until(lambda: not self.clients.running, seconds=CONSTANTS.exit_s)
        except KeyboardInterrupt:
            return Outcome("interrupt")
        except (_Failure, EngineError) as failure:
            return Outcome("failure", failure.args)
        except ControlClosed:
            self.clients.running.clear()
            return Outcome("failure", ("the fork server ended, and every client with it",))
        return Outcome("finish")

    def _until(self, reached: Callable[[], bool], seconds: float = math.inf) -> None:
        """Acts on what the clients say until ``reached``. Raises _Failure when one fails, or when the collector has not
        got on for ``seconds``."""
        clients, collector = self.clients, self._collector
        deadline, signs = time.monotonic() + seconds, collector.signs()
        while not reached():
            interrupts.check()
            if seconds < math.inf and signs != (signs := collector.signs()):
                deadline = time.monotonic() + seconds
            self._require_all_well()
            if not collector.alive:
                raise _Failure(f"the collector of the records ended unexpectedly{last_line(collector.log)}")
            if time.monotonic() > deadline:
                raise _Failure(f"{len(clients.running)} clients did not leave within {seconds:g} s")
            next_s = clients.start_returning()
            if news := clients.waits.news(clients.done, time.monotonic()):
                self._journal.event("waiting", news.text, news.node)
            if not self._listen_once(max(0.0, min(_LISTEN_S, next_s))):
                self._watch()
        self._require_all_well()  # the last to go may have died

    def _require_all_well(self) -> None:
        if self.clients.failures:
            self._listen(CONSTANTS.further_failures_s)
            raise _Failure

    def _listen(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.clients.running and (remaining := deadline - time.monotonic()) > 0:
            self._listen_once(remaining)

    def _listen_once(self, seconds: float) -> bool:
        """Waits for messages of the engine and acts on them; False when none came."""
        if came := self._engine.wait(seconds):
            for message in self._engine.receive():
                self.clients.take(message)
        return came

    def _stop_clients(self, reason: str) -> None:
        deaths = dict(self.clients.failures.deaths)  # those who end from here on are no cause of anything
        try:
            self._engine.send(TellAll(Stop(reason)))
            self._listen(CONSTANTS.stop_grace_s)
            if self.clients.running:
                self._engine.send(Kill())
                self._listen(CONSTANTS.stop_grace_s)
        except ControlClosed:
            self.clients.running.clear()
        self.clients.failures.deaths = deaths

    def _final_resources(self) -> Iterator[Record]:
        if self.prepared.config.measuring.enabled and not self._engine.shares_process:
            yield sample(LAUNCHER, self._journal.now)
            yield from self._engine.final_resources(self._journal.now)

    def _overhead(self) -> Iterator[Record]:
        """What the planes beside the data cost: they are complete only now that everyone has left."""
        yield from self.clients.overhead
        yield self._collector.overhead()
        yield from self._engine.overhead()
