"""The engine of a Ray cluster: Ray places one agent on each host and watches it; the rest is our own processes."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import math
import shutil
import signal
import socket
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import zmq

from ....metrics.records import FORK_SERVER, LAUNCHER, NodeRecord, OverheadRecord, Record, ResourceRecord
from ....node.assignment import Assignment
from ....topology.errors import install
from ....transport.control import TO_LAUNCHER, ControlClosed, Exited, Fork, Kill, Tally, Tell, TellAll
from ....transport.keys import Gate, KeyPair, listen_with, speaker
from ...prepare.placement import Host
from .agent import Agent
from .base import Engine, EngineError, HostLost, Message
from .line import HEARTBEAT_MS, MAX_FRAME_BYTES, SILENCE_MS, Incoming, LineError, pack, pieces, unpack
from .local import time_of_a_step

_ARRIVAL_S = 60.0
"""How long agents may take to be there: Ray starts a process, which starts a fork server."""

_SILENCE_S = 30.0
"""How long a host may take for the next piece of what it brings home."""

_LOOK_EVERY_S = 0.25
_FORKED_AT_ONCE = 100


@dataclass
class _AgentAt:
    """What is known of the agent of a host."""

    index: int
    host: Host
    handle: Any
    """Ray's handle of the actor."""
    key: Any
    """Ray's promise of its public key; None: it is known."""
    end: Any
    """Ray's promise of why it has ended."""
    pids: tuple[int, int] = (0, 0)
    """Of the agent and of its fork server."""
    ready: bool = False
    lost: bool = False
    cause: str = ""
    """Why it was lost."""
    home: Message | None = None
    """What it said when it had brought everything home."""
    running: set[int] = field(default_factory=set)
    told: Tally = field(default_factory=Tally)
    heard: Tally = field(default_factory=Tally)
    shipped: Tally = field(default_factory=Tally)
    """Pieces of files that it was sent, and below those that it has sent."""
    brought: Tally = field(default_factory=Tally)

    @property
    def route(self) -> bytes:
        return b"host-%d" % self.index

    @property
    def node(self) -> int:
        """The number of its fork server among the run's processes; the agent's own is the next below."""
        return FORK_SERVER - 2 * self.index


class RayEngine(Engine):
    spans_hosts = True

    def __init__(self, address: str):
        ray = self._ray = _joined(address)
        self.sockets = Path(tempfile.mkdtemp(prefix="sheafgossip-"))
        self._context = zmq.Context()
        self._run = 0
        self._host_of: dict[int, _AgentAt] = {}
        self._inbox: deque[Message] = deque()
        self._incoming: Incoming | None = None
        self._look_due = 0.0
        own, nodes = ray.util.get_node_ip_address(), _nodes(ray)
        alone = all(node["NodeManagerAddress"] == own for node in nodes)
        keys = KeyPair.make()
        self._line = self._context.socket(zmq.ROUTER)
        self._gate = Gate(self._context, {}, more=True)
        listen_with(self._line, keys)
        self._line.router_mandatory = True
        self._line.linger = 1000
        self._line.sndtimeo = 10_000
        self._line.maxmsgsize = MAX_FRAME_BYTES
        self._line.heartbeat_ivl, self._line.heartbeat_timeout = HEARTBEAT_MS, SILENCE_MS
        self._poller = zmq.Poller()
        self._poller.register(self._line, zmq.POLLIN)
        self._poller.register(self._gate.socket, zmq.POLLIN)
        self._address = "127.0.0.1" if alone else own
        self._line.bind(f"tcp://{self._address}:*")
        line = self._line.getsockopt_string(zmq.LAST_ENDPOINT)
        remote = ray.remote(num_cpus=0, max_restarts=0)(Agent)
        self._agents = []
        for index, (node, host) in enumerate(zip(nodes, _hosts(nodes, alone=alone), strict=True)):
            there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            handle = remote.options(scheduling_strategy=there).remote()
            key = handle.make_keys.remote()
            end = handle.serve.remote(index, line, keys.public)
            self._agents.append(_AgentAt(index, host, handle, key, end))

    def records_at(self, sockets: Path) -> str:
        return f"tcp://{self._address}:*"

    def hosts(self) -> tuple[Host, ...]:
        return tuple(agent.host for agent in self._agents)

    # -- words ---------------------------------------------------------------------------------------------------------

    def fork(self, assignments: Iterable[Assignment]) -> None:
        self._fork(assignments)

    def _fork(self, assignments: Iterable[Assignment], calibrate: int = 0) -> None:
        shares: dict[int, list[Assignment]] = {}
        for assignment in assignments:
            shares.setdefault(assignment.deployment.host, []).append(assignment)
        for index, share in sorted(shares.items()):
            agent, waiting = self._agents[index], iter(share)
            agent.running |= {assignment.node for assignment in share}
            self._host_of |= {assignment.node: agent for assignment in share}
            if agent.lost:
                self._mourn(agent)
            while batch := [assignment.to_json() for assignment in islice(waiting, _FORKED_AT_ONCE)]:
                self._say(agent, Fork(batch, calibrate))

    def tell(self, node: int, message: Message) -> None:
        self._say(self._host_of[node], Tell(node, message))

    def tell_all(self, message: Message) -> None:
        for agent in self._agents:
            self._say(agent, TellAll(message))

    def kill_all(self) -> None:
        for agent in self._agents:
            self._say(agent, Kill())

    def _say(self, agent: _AgentAt, message: Message) -> None:
        self._send(agent, pack(message), agent.told)

    def _send(self, agent: _AgentAt, frames: list[bytes], tally: Tally) -> None:
        if agent.lost:
            return
        try:
            self._line.send_multipart([agent.route, *frames])
        except zmq.ZMQError:
            self._lose(agent, "it is out of reach")
            return
        tally.messages += 1
        tally.bytes += sum(map(len, frames))

    def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self._inbox:
            now = time.monotonic()
            if now >= self._look_due:
                self._look_due = now + _LOOK_EVERY_S
                self._look_after_agents()
            elif now >= deadline:
                return False
            else:
                self._poller.poll(math.ceil(1000 * (min(deadline, self._look_due) - now)))
                self._gate.answer()
                self._take_in()
        return True

    def receive(self) -> list[Message]:
        if not self._inbox and all(agent.lost for agent in self._agents):
            raise ControlClosed
        messages = list(self._inbox)
        self._inbox.clear()
        return messages

    def _take_in(self) -> None:
        while self._line.poll(0):
            _, *frames = self._line.recv_multipart(copy=False)
            if frames and (index := speaker(frames[0])) is not None:  # as the gate has let it in
                self._note(self._agents[index], [frame.bytes for frame in frames])

    def _note(self, agent: _AgentAt, frames: list[bytes]) -> None:
        tally = agent.brought if len(frames) > 1 else agent.heard
        tally.messages += 1
        tally.bytes += sum(map(len, frames))
        try:
            message, piece = unpack(frames, TO_LAUNCHER)
            self._heed(agent, message, piece)
        except LineError as error:
            self._lose(agent, str(error))

    def _heed(self, agent: _AgentAt, message: Message, piece: bytes) -> None:
        match message:
            case {"time": asked}:
                self._say(agent, {"asked": asked, "time": time.monotonic()})
            case {"hello": True, "agent": own, "fork_server": fork_server}:
                agent.pids = own, fork_server
            case {"ready": True}:
                agent.ready = True
            case {"file": name, "last": last}:
                if self._incoming is not None:
                    self._incoming.take(name, piece, last=last)
            case {"home": True}:
                agent.home = message
            case Exited(node):
                agent.running.discard(node)
                self._inbox.append(replace(message, parent=agent.node))
            case _ if not agent.lost:
                self._inbox.append(message)

    # -- hosts ---------------------------------------------------------------------------------------------------------

    def _learn_keys(self) -> None:
        """Of agents that have come; those whose keys are not known yet wait at the gate."""
        awaited = {agent.key: agent for agent in self._agents if agent.key is not None and not agent.lost}
        if not awaited:
            return
        known, _ = self._ray.wait(list(awaited), num_returns=len(awaited), timeout=0)
        for promise in known:
            awaited[promise].key = None
            with contextlib.suppress(Exception):  # an agent that could not even start: its end tells why
                self._gate.learn({awaited[promise].index: self._ray.get(promise)}, more=True)
        if all(agent.key is None for agent in self._agents):
            self._gate.learn({}, more=False)

    def _look_after_agents(self) -> None:
        self._learn_keys()
        watched = {agent.end: agent for agent in self._agents if not agent.lost}
        ended, _ = self._ray.wait(list(watched), num_returns=len(watched), timeout=0) if watched else ([], [])
        for end in ended:
            try:
                cause = self._ray.get(end)
            except Exception as error:  # whatever Ray tells of an agent that did not end by itself
                cause = str(error).strip().splitlines()[0]
            self._take_in()  # its last words
            self._lose(watched[end], cause)

    def _lose(self, agent: _AgentAt, cause: str) -> None:
        if not agent.lost:
            agent.lost, agent.cause = True, cause
            self._inbox.append(HostLost(agent.host.name, sorted(agent.running), cause))
            self._mourn(agent)

    def _mourn(self, agent: _AgentAt) -> None:
        for node in sorted(agent.running):
            self._inbox.append(Exited(node, -signal.SIGKILL, parent=agent.node))
        agent.running.clear()

    def _until(self, reached: str, seconds: float) -> None:
        """Until ``reached`` holds of every agent that is left, or none of them has said anything for so long."""
        kept, heard, deadline = list(self._inbox), -1, 0.0
        while not all(agent.lost or getattr(agent, reached) for agent in self._agents):
            self._inbox.clear()
            self.wait(_LOOK_EVERY_S)
            kept += self._inbox
            if heard != (heard := sum(agent.heard.messages + agent.brought.messages for agent in self._agents)):
                deadline = time.monotonic() + seconds
            if time.monotonic() > deadline:
                break
        self._inbox = deque(kept)

    # -- files ---------------------------------------------------------------------------------------------------------

    def begin(self, folder: Path) -> None:
        self._until("ready", _ARRIVAL_S)
        if absent := [agent for agent in self._agents if not agent.ready]:
            names, causes = (
                ", ".join(agent.host.name for agent in absent),
                "; ".join(sorted({agent.cause for agent in absent})),
            )
            raise EngineError(
                f"no agent on {names}: sheafgossip must be installed there, in the Python that Ray was started with, "
                f"and be able to reach this machine; Ray's logs there tell more{f' ({causes})' if causes else ''}"
            )
        self._incoming = Incoming(folder)
        self._run += 1
        for agent in self._agents:
            agent.home = None
            self._say(agent, {"run": self._run})

    def equip(self, assignments: Iterable[Assignment]) -> None:
        for assignment in assignments:
            for path, name in _files_of(assignment):
                agent = self._agents[assignment.deployment.host]
                for frames in pieces(path, name):
                    self._send(agent, frames, agent.shipped)

    def bring_home(self) -> list[str]:
        for agent in self._agents:
            self._say(agent, {"bring_home": True})
        self._until("home", _SILENCE_S)
        self._incoming = None
        return [agent.host.name for agent in self._agents if not agent.home]

    def time_a_step(self, assignment: Assignment, steps: int) -> float:
        self.begin(assignment.run.folder)
        self.equip([assignment])
        self._fork([assignment], calibrate=steps)
        return time_of_a_step(self, assignment)

    # -- records -------------------------------------------------------------------------------------------------------

    def introductions(self) -> Iterator[Record]:
        for agent in self._agents:
            for node, role, pid in zip(_numbers(agent), ("agent", "fork server"), agent.pids, strict=True):
                yield NodeRecord(node, role, "", 0, 0, 0, 0, agent.host.name, pid, "")

    def final_resources(self, now: float) -> Iterator[Record]:
        for agent in self._agents:
            samples = agent.home["samples"] if agent.home else ()
            for node, figures in zip(reversed(_numbers(agent)), samples, strict=False):
                yield ResourceRecord(*figures)._replace(node=node, wall_s=now)

    def overhead(self) -> Iterator[Record]:
        """Bytes of the objects and files, without ZeroMQ's and the encryption's own."""
        for agent in self._agents:
            own, fork_server = _numbers(agent)
            yield OverheadRecord(LAUNCHER, own, "control", agent.told.messages, agent.told.bytes)
            yield OverheadRecord(own, LAUNCHER, "control", agent.heard.messages, agent.heard.bytes)
            yield OverheadRecord(LAUNCHER, own, "files", agent.shipped.messages, agent.shipped.bytes)
            yield OverheadRecord(own, LAUNCHER, "files", agent.brought.messages, agent.brought.bytes)
            agent.told, agent.heard, agent.shipped, agent.brought = Tally(), Tally(), Tally(), Tally()
            if agent.home:
                for ends, tally in zip(((own, fork_server), (fork_server, own)), agent.home["tallies"], strict=True):
                    yield OverheadRecord(*ends, "control", *tally)

    def __exit__(self, *_: object) -> None:
        for agent in self._agents:
            self._say(agent, {"end": True})
        ends = [agent.end for agent in self._agents if not agent.lost]
        if ends:
            self._ray.wait(ends, num_returns=len(ends), timeout=5)
        for agent in self._agents:
            self._ray.kill(agent.handle)
        self._gate.close()
        self._line.close(0)
        self._context.term()
        self._ray.shutdown()
        shutil.rmtree(self.sockets, ignore_errors=True)


def _joined(address: str) -> Any:
    """The module ray, connected to a cluster. Raises EngineError."""
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        raise EngineError(f"--engine ray needs Ray: {install('ray')}") from None
    try:
        _knock(address)  # Ray itself would try for minutes
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EngineError(
            f"--engine ray --address {address}: no Ray cluster there; start one with `ray start --head` ({reason})"
        ) from None
    return ray


def _knock(address: str) -> None:
    """Raises OSError where nobody listens at HOST:PORT."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=5).close()


def _nodes(ray: Any) -> list[dict[str, Any]]:
    alive = [node for node in ray.nodes() if node["Alive"]]
    return sorted(alive, key=lambda node: (ipaddress.ip_address(node["NodeManagerAddress"]), node["NodeManagerPort"]))


def _hosts(nodes: list[dict[str, Any]], *, alone: bool) -> Iterator[Host]:
    """``alone``: all of them are this machine, which nobody else needs to reach."""
    names = Counter(node["NodeManagerHostname"] for node in nodes)
    seen: Counter[str] = Counter()
    for node in nodes:
        name, resources = node["NodeManagerHostname"], node["Resources"]
        seen[name] += 1
        unique = name if names[name] == 1 else f"{name}-{seen[name]}"
        address = "127.0.0.1" if alone else node["NodeManagerAddress"]
        yield Host(unique, address, resources.get("CPU", 0.0), resources.get("memory", 0.0))


def _files_of(assignment: Assignment) -> Iterator[tuple[Path, str]]:
    """What a client reads, and its name in the run's folder."""
    paths = [assignment.shard, assignment.schedule]
    if (round := assignment.incarnation.resumed_at) > 0:
        numbers = assignment.node, *(peer.node for peer in assignment.neighbours)
        paths += [path for node in numbers for path in assignment.checkpoint_of(node, round)]
        paths.append(assignment.handed_on(assignment.incarnation.number - 1))
    for path in paths:
        if path.exists():
            yield path, path.relative_to(assignment.run.folder).as_posix()
    if encoder := assignment.algorithm.get("encoder"):
        yield Path(encoder), "encoder.safetensors"


def _numbers(agent: _AgentAt) -> tuple[int, int]:
    """Of an agent and its fork server among the processes of a run."""
    return agent.node - 1, agent.node
