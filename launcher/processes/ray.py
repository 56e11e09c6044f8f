"""The engine of a Ray cluster: Ray places one agent on each host and watches it; the rest is our own processes."""

import contextlib
import ipaddress
import logging
import math
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from ...metrics.records import FORK_SERVER, LAUNCHER, NodeRecord, OverheadRecord, Record, ResourceRecord
from ...node import own_code
from ...node.algorithms import INPUT_FILES
from ...node.assignment import Assignment
from ...topology.errors import install
from ...transport.control import TO_LAUNCHER, Exited, Kill, Tell, encode
from ...transport.keys import KeyPair, ZapHandler, authenticated_number, listen_with
from ..prepare.assignments import Host
from .agent import Agent, LineError, configured, pieces, put, unpack
from .engine import Engine, EngineError, HostLost, in_batches

_ARRIVAL_S = 60.0  # until agents are there: Ray starts a process, which starts a fork server
_SILENCE_S = 30.0  # how long a host may take for the next piece of what it brings home
_LOOK_EVERY_S = 0.25


def _joined(address: str) -> Any:
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


@dataclass
class _AgentAt:
    """A host's agent. ``key`` and ``end`` are Ray's promises: its public key (None: it is known), and why it ended."""

    line: zmq.Socket
    inbox: list[Any]  # of the engine
    index: int
    host: Host
    handle: Any  # Ray's, of the actor
    key: Any
    end: Any
    pids: Sequence[int] = ()  # of the agent and its fork server, once they are ready
    lost: str = ""  # why, if it was
    home: dict[str, Any] | None = None  # what it said when it had brought everything home
    running: set[int] = field(default_factory=set)
    tallies: np.ndarray = field(default_factory=lambda: np.zeros((2, 2, 2), int))
    """(control or files, to or from it, messages or bytes), without ZeroMQ's and the encryption's own bytes."""

    @property
    def numbers(self) -> tuple[int, int]:
        """Those of the agent and its fork server among the processes of a run."""
        fork_server = FORK_SERVER - 2 * self.index
        return fork_server - 1, fork_server

    def send(self, message: object, *piece: bytes) -> None:
        if self.lost:
            return
        frames = [encode(message), *piece]
        try:
            self.line.send_multipart([b"host-%d" % self.index, *frames])
        except zmq.ZMQError:
            self.lose("it is out of reach")
        else:
            self.count(0, frames)

    def count(self, direction: int, frames: list[bytes]) -> None:
        """``frames`` are a message, and a piece of a file if it is about one."""
        self.tallies[len(frames) - 1, direction] += 1, sum(map(len, frames))

    def lose(self, cause: str) -> None:
        if not self.lost:
            self.lost = cause
            self.inbox.append(HostLost(self.host.name, sorted(self.running), cause))
            self.report_killed()

    def report_killed(self) -> None:
        """Tells the end of each client of a host that is lost."""
        self.inbox += (Exited(node, -signal.SIGKILL, parent=self.numbers[1]) for node in sorted(self.running))
        self.running.clear()


class RayEngine(Engine):
    """Starts an agent on each host of a cluster. One that ends, or says what it must not, is lost with its clients."""

    spans_hosts = True

    def __init__(self, address: str):
        self._ray = ray = _joined(address)
        super().__init__()
        self._inbox: list[Any] = []  # what clients have said, and which hosts are lost
        self._folder: Path | None = None  # where files go that agents send; None: nowhere
        self._host_of: dict[int, _AgentAt] = {}
        self._look_due = 0.0
        nodes = sorted(
            (node for node in ray.nodes() if node["Alive"]),
            key=lambda node: (ipaddress.ip_address(node["NodeManagerAddress"]), node["NodeManagerPort"]),
        )
        own, keys = ray.util.get_node_ip_address(), KeyPair.make()
        addresses = [node["NodeManagerAddress"] for node in nodes]
        if set(addresses) == {own}:  # all of them are this machine, which nobody else needs to reach
            own, *addresses = ["127.0.0.1"] * (1 + len(nodes))
        self.records_at = f"tcp://{own}:*"
        self._context = zmq.Context()
        self._line = configured(self._context.socket(zmq.ROUTER))
        self._authenticator = ZapHandler(self._context, {}, more=True)
        listen_with(self._line, keys)
        self._line.router_mandatory = True
        self._line.sndtimeo = 10_000
        self._line.bind(self.records_at)
        line = self._line.getsockopt_string(zmq.LAST_ENDPOINT)
        remote, self._agents = ray.remote(num_cpus=0, max_restarts=0)(Agent), list[_AgentAt]()
        names = [node["NodeManagerHostname"] for node in nodes]
        for index, (node, address, name) in enumerate(zip(nodes, addresses, names, strict=True)):
            unique = name if names.count(name) == 1 else f"{name}-{names[: index + 1].count(name)}"
            host = Host(unique, address, node["Resources"].get("CPU", 0.0), node["Resources"].get("memory", 0.0))
            there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            handle = remote.options(scheduling_strategy=there).remote()
            key, end = handle.make_keys.remote(), handle.serve.remote(index, line, keys.public)
            self._agents.append(_AgentAt(self._line, self._inbox, index, host, handle, key, end))

    def hosts(self) -> tuple[Host, ...]:
        return tuple(agent.host for agent in self._agents)

    def begin(self, folder: Path, assignments: Sequence[Assignment]) -> None:
        self._wait_until(lambda agent: agent.pids, _ARRIVAL_S)
        if absent := [agent for agent in self._agents if not agent.pids]:
            names = ", ".join(agent.host.name for agent in absent)
            causes = "; ".join(sorted({agent.lost for agent in absent}))
            raise EngineError(
                f"no agent on {names}: sheafgossip must be installed there, in the Python that Ray was started with, "
                f"and be able to reach this machine; Ray's logs there tell more{f' ({causes})' if causes else ''}"
            )
        self._folder = folder
        for agent in self._agents:
            agent.home = None
            agent.send({"run": True})

    def fork(self, assignments: Iterable[Assignment]) -> None:
        shares: dict[int, list[Assignment]] = {}
        for assignment in assignments:
            shares.setdefault(assignment.deployment.host, []).append(assignment)
        for index, share in sorted(shares.items()):
            agent = self._agents[index]
            for path, name in chain.from_iterable(map(_files_of, share)):
                for piece in pieces(path):
                    agent.send({"file": name}, piece)
            self._host_of |= dict.fromkeys([each.node for each in share], agent)
            agent.running |= {each.node for each in share}
            if agent.lost:
                agent.report_killed()
            for message in in_batches(share):
                agent.send(message)

    def send(self, message: Tell | Kill) -> None:
        node = message.node if isinstance(message, Tell) else None
        for agent in self._agents if node is None else [self._host_of[node]]:
            agent.send(message)

    def receive(self, seconds: float) -> list[Any]:
        deadline = time.monotonic() + seconds
        while not self._inbox and (left := deadline - time.monotonic()) > 0:
            self._listen(left)
        messages = self._inbox.copy()
        self._inbox.clear()
        return messages

    def bring_home(self) -> list[str]:
        for agent in self._agents:
            agent.send({"bring_home": True})
        self._wait_until(lambda agent: agent.home, _SILENCE_S)
        self._folder = None
        return [agent.host.name for agent in self._agents if not agent.home]

    def introductions(self) -> Iterator[Record]:
        for agent in self._agents:
            for node, role, pid in zip(agent.numbers, ("agent", "fork server"), agent.pids, strict=True):
                yield NodeRecord(node, role, "", 0, 0, 0, 0, agent.host.name, pid, "")

    def final_resources(self, now: float) -> Iterator[Record]:
        for agent in self._agents:
            samples = agent.home["samples"] if agent.home else ()
            for node, figures in zip(reversed(agent.numbers), samples, strict=False):
                yield ResourceRecord(*figures)._replace(node=node, wall_s=now)

    def overhead(self) -> Iterator[Record]:
        for agent in self._agents:
            own, fork_server = agent.numbers
            tallies = [("control", LAUNCHER, agent.tallies[0].tolist()), ("files", LAUNCHER, agent.tallies[1].tolist())]
            tallies += [("control", fork_server, agent.home["tallies"][::-1])] if agent.home else []
            for kind, other, (to_it, from_it) in tallies:
                yield OverheadRecord(other, own, kind, *to_it)
                yield OverheadRecord(own, other, kind, *from_it)
            agent.tallies[:] = 0

    def __exit__(self, *_: object) -> None:
        for agent in self._agents:
            agent.send({"end": True})
        self._kept((agent.end for agent in self._agents if not agent.lost), seconds=5)
        for agent in self._agents:
            self._ray.kill(agent.handle)
        self._context.destroy(0)
        self._ray.shutdown()
        super().__exit__()

    # -- the lines to the agents ---------------------------------------------------------------------------------------

    def _wait_until(self, reached: Callable[[_AgentAt], object], seconds: float) -> None:
        """Until that is so of every agent that is left, or none of them has said anything for so long."""
        heard, deadline = -1, math.inf
        while time.monotonic() < deadline and not all(agent.lost or reached(agent) for agent in self._agents):
            self._listen(_LOOK_EVERY_S)
            if heard != (heard := sum(int(agent.tallies[:, 1, 0].sum()) for agent in self._agents)):
                deadline = time.monotonic() + seconds

    def _listen(self, seconds: float) -> None:
        """Acts on what comes next, if it does so soon, and sees who has ended."""
        ready_s = max(0.0, min(seconds, self._look_due - time.monotonic()))
        zmq.select([self._line, self._authenticator.socket], [], [], ready_s)
        self._authenticator.answer()
        self._receive()
        if time.monotonic() >= self._look_due:
            self._look_due = time.monotonic() + _LOOK_EVERY_S
            self._look_after()

    def _receive(self) -> None:
        while self._line.poll(0):
            _, *frames = self._line.recv_multipart(copy=False)
            if frames and (index := authenticated_number(frames[0])) is not None:  # as the authenticator has let it in
                agent, texts = self._agents[index], [frame.bytes for frame in frames]
                try:
                    self._take(agent, *unpack(texts, TO_LAUNCHER))
                    agent.count(1, texts)
                except LineError as error:
                    agent.lose(str(error))

    def _take(self, agent: _AgentAt, message: Any, piece: bytes) -> None:
        match message:
            case {"time": asked}:
                agent.send({"asked": asked, "time": time.monotonic()})
            case {"ready": pids}:
                agent.pids = pids
            case {"file": name}:
                if self._folder is not None:
                    put(piece, self._folder, name)
            case {"home": True}:
                agent.home = message
            case Exited(node):
                agent.running.discard(node)
                self._inbox.append(replace(message, parent=agent.numbers[1]))
            case _ if not agent.lost:
                self._inbox.append(message)

    def _look_after(self) -> None:
        """Learns agents' keys, for which these wait at the authenticator, and who has ended."""
        awaited = {agent.key: agent for agent in self._agents if agent.key is not None and not agent.lost}
        for promise in self._kept(awaited):
            awaited[promise].key = None
            with contextlib.suppress(Exception):  # an agent that could not even start: its end tells why
                self._authenticator.learn({awaited[promise].index: self._ray.get(promise)}, more=True)
        if awaited and all(agent.key is None for agent in self._agents):
            self._authenticator.learn({}, more=False)
        watched = {agent.end: agent for agent in self._agents if not agent.lost}
        for end in self._kept(watched):
            try:
                cause = self._ray.get(end)
            except Exception as error:  # whatever Ray tells of an agent that did not end by itself
                cause = str(error).strip().splitlines()[0]
            self._receive()  # its last messages
            watched[end].lose(cause)

    def _kept(self, promises: Iterable[Any], seconds: float = 0) -> list[Any]:
        """Those that are kept, once all are or after so long."""
        waiting = list(promises)
        return self._ray.wait(waiting, num_returns=len(waiting), timeout=seconds)[0] if waiting else []


def _files_of(assignment: Assignment) -> Iterator[tuple[Path, str]]:
    """What a client reads, and its name in the run's folder."""
    paths = [assignment.shard, assignment.schedule]
    paths += [assignment.run.folder / own_code.FOLDER / name for name in assignment.run.code]
    if (round := assignment.incarnation.resumed_at) > 0:
        numbers = assignment.node, *(peer.node for peer in assignment.neighbours)
        paths += [path for node in numbers for path in assignment.checkpoint_of(node, round)]
        paths.append(assignment.handed_on(assignment.incarnation.number - 1))
    for path in paths:
        if path.exists():
            yield path, path.relative_to(assignment.run.folder).as_posix()
    for key in INPUT_FILES:
        if named := assignment.algorithm.get(key):
            yield Path(named), f"{key}.safetensors"
