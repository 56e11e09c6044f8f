"""A Ray cluster: how to join it, the launcher's lines to the agents of its hosts, and what it knows of each."""

import contextlib
import ipaddress
import logging
import math
import signal
import socket
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import zmq

from ....metrics.records import FORK_SERVER, LAUNCHER, OverheadRecord, Record
from ....topology.errors import install
from ....transport.control import TO_LAUNCHER, Exited, Tally
from ....transport.keys import KeyPair, ZapHandler, authenticated_number, listen_with
from ...prepare.assignments import Host
from .agent import Agent, Incoming, LineError, configured, pack, pieces, unpack
from .base import EngineError, HostLost, Message

_LOOK_EVERY_S = 0.25


def joined(address: str) -> Any:
    """The module ray, connected to a cluster. Raises EngineError."""
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        raise EngineError(f"--engine ray needs Ray: {install('ray')}") from None
    try:
        host, colon, port = address.rpartition(":")
        if colon and port.isdigit():  # where nobody listens, Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=5).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EngineError(
            f"--engine ray --address {address}: no Ray cluster there; start one with `ray start --head` ({reason})"
        ) from None
    return ray


def _hosts_of(nodes: list[dict[str, Any]], *, alone: bool) -> Iterator[Host]:
    """``alone``: all of them are this machine, which nobody else needs to reach."""
    names = Counter(node["NodeManagerHostname"] for node in nodes)
    seen: Counter[str] = Counter()
    for node in nodes:
        name, resources = node["NodeManagerHostname"], node["Resources"]
        seen[name] += 1
        unique = name if names[name] == 1 else f"{name}-{seen[name]}"
        address = "127.0.0.1" if alone else node["NodeManagerAddress"]
        yield Host(unique, address, resources.get("CPU", 0.0), resources.get("memory", 0.0))


@dataclass
class AgentAt:
    """What is known of the agent of a host. ``key`` and ``end`` are Ray's promises: of its public key (None: it is
    known), and of why it has ended."""

    index: int
    host: Host
    handle: Any  # Ray's, of the actor
    key: Any
    end: Any
    pids: tuple[int, int] = (0, 0)  # of the agent and its fork server
    ready: bool = False
    lost: bool = False
    cause: str = ""  # why it was lost
    home: Message | None = None  # what it said when it had brought everything home
    running: set[int] = field(default_factory=set)
    told: Tally = field(default_factory=Tally)
    heard: Tally = field(default_factory=Tally)
    shipped: Tally = field(default_factory=Tally)  # pieces of files that it was sent
    brought: Tally = field(default_factory=Tally)  # those that it has sent

    @property
    def numbers(self) -> tuple[int, int]:
        """Those of the agent and its fork server among the processes of a run."""
        fork_server = FORK_SERVER - 2 * self.index
        return fork_server - 1, fork_server

    def overhead(self) -> Iterator[Record]:
        """Yields bytes of objects and files since the last call, without ZeroMQ's and the encryption's own."""
        own, fork_server = self.numbers
        for kind, sent, received in (("control", self.told, self.heard), ("files", self.shipped, self.brought)):
            yield OverheadRecord(LAUNCHER, own, kind, sent.messages, sent.bytes)
            yield OverheadRecord(own, LAUNCHER, kind, received.messages, received.bytes)
        self.told, self.heard, self.shipped, self.brought = Tally(), Tally(), Tally(), Tally()
        if self.home:
            for ends, tally in zip(((own, fork_server), (fork_server, own)), self.home["tallies"], strict=True):
                yield OverheadRecord(*ends, "control", *tally)


class Agents(list[AgentAt]):
    """Starts an agent on each host of a Ray cluster, and holds a line to each. A host that ends or says what it must
    not is lost, and all that ran there with it."""

    def __init__(self, ray: Any):
        self._ray = ray
        self.inbox: deque[Message] = deque()  # what clients have said, and which hosts are lost
        self.incoming: Incoming | None = None  # where files go that agents send; None: nowhere
        self._look_due = 0.0
        nodes = sorted(
            (node for node in ray.nodes() if node["Alive"]),
            key=lambda node: (ipaddress.ip_address(node["NodeManagerAddress"]), node["NodeManagerPort"]),
        )
        own, keys = ray.util.get_node_ip_address(), KeyPair.make()
        alone = all(node["NodeManagerAddress"] == own for node in nodes)
        self.address = "127.0.0.1" if alone else own
        self._context = zmq.Context()
        self._line = configured(self._context.socket(zmq.ROUTER))
        self._authenticator = ZapHandler(self._context, {}, more=True)
        listen_with(self._line, keys)
        self._line.router_mandatory = True
        self._line.sndtimeo = 10_000
        self._poller = zmq.Poller()
        self._poller.register(self._line, zmq.POLLIN)
        self._poller.register(self._authenticator.socket, zmq.POLLIN)
        self._line.bind(f"tcp://{self.address}:*")
        line = self._line.getsockopt_string(zmq.LAST_ENDPOINT)
        remote = ray.remote(num_cpus=0, max_restarts=0)(Agent)
        for index, (node, host) in enumerate(zip(nodes, _hosts_of(nodes, alone=alone), strict=True)):
            there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            handle = remote.options(scheduling_strategy=there).remote()
            key = handle.make_keys.remote()
            self.append(AgentAt(index, host, handle, key, handle.serve.remote(index, line, keys.public)))

    def send(self, agent: AgentAt, message: Message) -> None:
        self._send(agent, pack(message), agent.told)

    def send_all(self, message: Message) -> None:
        for agent in self:
            self.send(agent, message)

    def send_file(self, agent: AgentAt, path: Path, name: str) -> None:
        """``name`` is its path in the run's folder."""
        for frames in pieces(path, name):
            self._send(agent, frames, agent.shipped)

    def _send(self, agent: AgentAt, frames: list[bytes], tally: Tally) -> None:
        if agent.lost:
            return
        try:
            self._line.send_multipart([b"host-%d" % agent.index, *frames])
        except zmq.ZMQError:
            self._lose(agent, "it is out of reach")
        else:
            _count(frames, tally)

    def wait(self, seconds: float) -> bool:
        """Waits until something is in the inbox, or for so long; returns whether there is."""
        deadline = time.monotonic() + seconds
        while not self.inbox:
            now = time.monotonic()
            if now >= self._look_due:
                self._look_due = now + _LOOK_EVERY_S
                self._look_after()
            elif now >= deadline:
                return False
            else:
                self._poller.poll(math.ceil(1000 * (min(deadline, self._look_due) - now)))
                self._authenticator.answer()
                self._receive()
        return True

    def wait_for(self, reached: str, seconds: float) -> None:
        """Waits until ``reached`` holds of every agent that is left, or none of them has said anything for so long."""
        earlier, heard, deadline = list(self.inbox), -1, 0.0
        while not all(agent.lost or getattr(agent, reached) for agent in self):
            self.inbox.clear()
            self.wait(_LOOK_EVERY_S)
            earlier += self.inbox
            if heard != (heard := sum(agent.heard.messages + agent.brought.messages for agent in self)):
                deadline = time.monotonic() + seconds
            if time.monotonic() > deadline:
                break
        self.inbox = deque(earlier)

    def _receive(self) -> None:
        while self._line.poll(0):
            _, *frames = self._line.recv_multipart(copy=False)
            if not frames or (index := authenticated_number(frames[0])) is None:  # as the authenticator has let it in
                continue
            agent, texts = self[index], [frame.bytes for frame in frames]
            _count(texts, agent.brought if len(texts) > 1 else agent.heard)
            try:
                self._take(agent, *unpack(texts, TO_LAUNCHER))
            except LineError as error:
                self._lose(agent, str(error))

    def _take(self, agent: AgentAt, message: Message, piece: bytes) -> None:
        match message:
            case {"time": asked}:
                self.send(agent, {"asked": asked, "time": time.monotonic()})
            case {"hello": True, "agent": own, "fork_server": fork_server}:
                agent.pids = own, fork_server
            case {"ready": True}:
                agent.ready = True
            case {"file": name, "last": last}:
                if self.incoming is not None:
                    self.incoming.take(name, piece, last=last)
            case {"home": True}:
                agent.home = message
            case Exited(node):
                agent.running.discard(node)
                self.inbox.append(replace(message, parent=agent.numbers[1]))
            case _ if not agent.lost:
                self.inbox.append(message)

    def _look_after(self) -> None:
        """Learns the keys of agents that have come, and who has ended. Agents whose keys are not known yet wait at the
        authenticator."""
        awaited = {agent.key: agent for agent in self if agent.key is not None and not agent.lost}
        for promise in self._kept(awaited):
            awaited[promise].key = None
            with contextlib.suppress(Exception):  # an agent that could not even start: its end tells why
                self._authenticator.learn({awaited[promise].index: self._ray.get(promise)}, more=True)
        if awaited and all(agent.key is None for agent in self):
            self._authenticator.learn({}, more=False)
        watched = {agent.end: agent for agent in self if not agent.lost}
        for end in self._kept(watched):
            try:
                cause = self._ray.get(end)
            except Exception as error:  # whatever Ray tells of an agent that did not end by itself
                cause = str(error).strip().splitlines()[0]
            self._receive()  # its last messages
            self._lose(watched[end], cause)

    def _kept(self, promises: Iterable[Any], seconds: float = 0) -> list[Any]:
        """Those that are kept, once all are or after so long."""
        waiting = list(promises)
        return self._ray.wait(waiting, num_returns=len(waiting), timeout=seconds)[0] if waiting else []

    def _lose(self, agent: AgentAt, cause: str) -> None:
        if not agent.lost:
            agent.lost, agent.cause = True, cause
            self.inbox.append(HostLost(agent.host.name, sorted(agent.running), cause))
            self.report_killed(agent)

    def report_killed(self, agent: AgentAt) -> None:
        """Tells the end of each client of a host that is lost."""
        for node in sorted(agent.running):
            self.inbox.append(Exited(node, -signal.SIGKILL, parent=agent.numbers[1]))
        agent.running.clear()

    def close(self) -> None:
        self.send_all({"end": True})
        self._kept((agent.end for agent in self if not agent.lost), seconds=5)
        for agent in self:
            self._ray.kill(agent.handle)
        self._authenticator.close()
        self._line.close(0)
        self._context.term()


def _count(frames: list[bytes], tally: Tally) -> None:
    tally.messages += 1
    tally.bytes += sum(map(len, frames))
