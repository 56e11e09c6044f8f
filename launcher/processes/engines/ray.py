"""The engine of a Ray cluster: Ray places one agent on each host and watches it; the rest is our own processes."""

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from ....metrics.records import NodeRecord, Record, ResourceRecord
from ....node.algorithms import input_files
from ....node.assignment import Assignment
from ....transport.control import ControlClosed, Fork, Kill, Tell, TellAll
from ...prepare.assignments import Host
from .agent import Incoming
from .agents import AgentAt, Agents, joined
from .base import Engine, EngineError, Message

_ARRIVAL_S = 60.0  # until agents are there: Ray starts a process, which starts a fork server
_SILENCE_S = 30.0  # how long a host may take for the next piece of what it brings home
_FORKED_AT_ONCE = 100


class RayEngine(Engine):
    spans_hosts = True

    def __init__(self, address: str):
        self._ray = joined(address)
        self.sockets = Path(tempfile.mkdtemp(prefix="sheafgossip-"))
        self._agents = Agents(self._ray)
        self._host_of: dict[int, AgentAt] = {}
        self._run = 0

    def records_at(self, sockets: Path) -> str:
        return f"tcp://{self._agents.address}:*"

    def hosts(self) -> tuple[Host, ...]:
        return tuple(agent.host for agent in self._agents)

    # -- messages ------------------------------------------------------------------------------------------------------

    def fork(self, assignments: Iterable[Assignment], calibrate: int = 0) -> None:
        shares: dict[int, list[Assignment]] = {}
        for assignment in assignments:
            shares.setdefault(assignment.deployment.host, []).append(assignment)
        for index, share in sorted(shares.items()):
            agent, waiting = self._agents[index], iter(share)
            agent.running |= {assignment.node for assignment in share}
            self._host_of |= {assignment.node: agent for assignment in share}
            if agent.lost:
                self._agents.report_killed(agent)
            while batch := [assignment.to_json() for assignment in islice(waiting, _FORKED_AT_ONCE)]:
                self._agents.send(agent, Fork(batch, calibrate))

    def send(self, message: Tell | TellAll | Kill) -> None:
        if isinstance(message, Tell):
            self._agents.send(self._host_of[message.node], message)
        else:
            self._agents.send_all(message)

    def wait(self, seconds: float) -> bool:
        return self._agents.wait(seconds)

    def receive(self) -> list[Message]:
        inbox = self._agents.inbox
        if not inbox and all(agent.lost for agent in self._agents):
            raise ControlClosed
        messages = list(inbox)
        inbox.clear()
        return messages

    # -- files ---------------------------------------------------------------------------------------------------------

    def begin(self, folder: Path) -> None:
        self._agents.wait_for("ready", _ARRIVAL_S)
        if absent := [agent for agent in self._agents if not agent.ready]:
            names = ", ".join(agent.host.name for agent in absent)
            causes = "; ".join(sorted({agent.cause for agent in absent}))
            raise EngineError(
                f"no agent on {names}: sheafgossip must be installed there, in the Python that Ray was started with, "
                f"and be able to reach this machine; Ray's logs there tell more{f' ({causes})' if causes else ''}"
            )
        self._agents.incoming = Incoming(folder)
        self._run += 1
        for agent in self._agents:
            agent.home = None
        self._agents.send_all({"run": self._run})

    def equip(self, assignments: Iterable[Assignment]) -> None:
        for assignment in assignments:
            for path, name in _files_of(assignment):
                self._agents.send_file(self._agents[assignment.deployment.host], path, name)

    def bring_home(self) -> list[str]:
        self._agents.send_all({"bring_home": True})
        self._agents.wait_for("home", _SILENCE_S)
        self._agents.incoming = None
        return [agent.host.name for agent in self._agents if not agent.home]

    # -- records -------------------------------------------------------------------------------------------------------

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
            yield from agent.overhead()

    def __exit__(self, *_: object) -> None:
        self._agents.close()
        self._ray.shutdown()
        shutil.rmtree(self.sockets, ignore_errors=True)


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
    for key in input_files():
        if named := assignment.algorithm.get(key):
            yield Path(named), f"{key}.safetensors"
