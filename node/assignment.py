"""What the launcher tells a client process: plain values that travel as one line of JSON."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, cast

import msgspec
import numpy as np

from ..metrics.records import sender_of
from ..topology.graph import last_round, period_of
from .attack_settings import Attack
from .model.architecture import Architecture
from .settings import Checkpoints, Evaluation, Measuring, ModelSettings, Privacy, Time, Training, Transport


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The other end of an edge: its number, its d_j, and the edge's mixing weight W_ij, 0 where it is not heard."""

    node: int
    parameters: int
    weight: float
    samples: int = 0  # for training; a server has none
    facts: Any = None  # what the algorithm asked to be told of the edge
    remote: bool = False  # whether it is placed on another host


@dataclass(frozen=True, slots=True)
class Period:
    """A client's part of one of the run's graphs: those it sends to, and {those it hears from: W_ij}."""

    successors: tuple[int, ...]
    weights: dict[int, float]


@dataclass(frozen=True)
class Run:
    """What all clients of a run are told alike, beside the sections of its configuration."""

    number: int  # tells runs apart on the wire
    folder: Path
    seed: int
    clients: int  # without a server
    rounds: int
    task: Literal["classification", "regression"] = "classification"
    largest_vector: int = 0
    first_outputs: int = 0  # of client 0, as whose layers before the last all others' start; 0: each on its own
    drift_round: int = 0  # where the shards' second task begins; 0: there is none
    rounds_a_period: int = 1
    period_seed: int | None = None
    opens_late: bool = False  # connections: each when it is first needed, not all at the start
    attackers: tuple[int, ...] = ()
    scenario: bool = False  # without one nothing but the machine decides on time
    code: dict[str, str] = field(default_factory=dict)  # {file of the user's code: the digest of its text}


@dataclass(frozen=True)
class Deployment:
    address: str
    records: str  # the collector's address
    records_key: str = ""  # the collector's public key, where records are sent with keys
    host: int = 0  # the number of the host that it runs on, among those of the run
    host_name: str = ""
    namespace: str = ""  # file of the network namespace that it is in, where that is its own
    memory: int = 0  # bytes that it may take at most, where others can connect to it; 0: all
    shares_process: bool = False  # as one thread of several clients: limits, memory and CPU time belong to all of them


@dataclass(frozen=True)
class AssignedIncarnation:
    """A client's process from its start to its end; one that is started again is another incarnation."""

    number: int = 1
    first_round: int = 1
    last_round: int | None = None  # None: the run's last
    begun_in: int = 1  # earlier than first_round where the run was taken up again in this incarnation
    ending: Literal["finish", "crash", "leave"] = "finish"
    absent_until: int = 0  # after a crash or leave: the last round without this client
    saves: bool = False  # whether it writes its state when it leaves
    breaks_off: bool = False  # whether it crashes in the round after its last, having sent what others have of that
    state_round: int | None = None  # whose state it goes on from
    resumed_at: int = 0  # the round after which an interrupted run was taken up again
    bounded: bool = False  # whether messages under way are counted, so that a fast client never floods a slow one


@dataclass(frozen=True)
class Assignment:
    """One client's part of a run; rounds count from 1. A server has no shard. The ``periods`` of a directed or changing
    graph, whose ``neighbours`` are those of all periods, follow each other, over and over; without any, all neighbours
    are heard and sent to in all rounds."""

    node: int
    role: Literal["client", "server"]
    run: Run
    deployment: Deployment
    architecture: Architecture
    algorithm: dict[str, Any]
    neighbours: tuple[Neighbour, ...]
    periods: tuple[Period, ...] = ()
    facts: Any = None  # what the algorithm asked this client to be told of the run
    model: ModelSettings = ModelSettings()
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    checkpoints: Checkpoints = Checkpoints()
    transport: Transport = Transport()
    measuring: Measuring = Measuring()
    time: Time = Time()
    attack: Attack = Attack()
    privacy: Privacy = Privacy()
    weights_of: dict[int, dict[int, float]] = field(default_factory=dict)  # {neighbour i: {k: W_ik}}, for some attacks
    incarnation: AssignedIncarnation = AssignedIncarnation()
    timed_steps: int = 0  # instead of taking part, its process only times so many local steps
    probes: bool = False  # its work is recorded after each round, without waits for a processor; it writes no state

    def period(self, round: int) -> Period | None:
        """None: all neighbours, in all rounds."""
        if not self.periods:
            return None
        run = self.run
        return self.periods[period_of(round, len(self.periods), run.rounds_a_period, run.period_seed)]

    def last_heard(self, node: int, round: int) -> int:
        """Returns the last round up to this one in which that neighbour sends to this client; 0: there is none."""
        if not self.periods:
            return round
        return last_round(round, lambda each: node in cast(Period, self.period(each)).weights)

    @property
    def attacks(self) -> bool:
        return self.node in self.run.attackers

    @property
    def clock(self) -> Literal["none", "wall", "virtual"]:
        """none: no scenario, every exchange waits for every neighbour."""
        return self.time.clock if self.run.scenario else "none"

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.model.dtype)

    @property
    def sender(self) -> int:
        return sender_of(self.node, self.incarnation.number)

    @property
    def schedule(self) -> Path:
        return self._file("plan")

    @property
    def shard(self) -> Path:
        return self._file("shards")

    @property
    def log(self) -> Path:
        return self.run.folder / "log" / f"{name_of(self.node)}.log"

    @property
    def used(self) -> Path:
        """What it has used, on the wall clock."""
        return self.log.with_suffix(".used")

    def state(self, round: int) -> Path:
        return self.checkpoint_of(self.node, round)[0]

    def sent(self, round: int) -> Path:
        """Messages that this client, away in this round, sent before and neighbours have yet to use."""
        return self.checkpoint_of(self.node, round)[1]

    def checkpoint_of(self, node: int, round: int) -> tuple[Path, Path]:
        """A client's checkpoint is one of these two files."""
        state = self._file(f"state/round-{round:06d}", name_of(node))
        return state, state.with_name(f"sent-{node:04d}.safetensors")

    def vectors(self, round: int) -> Path:
        """What this client sent in a round, with ``measuring.vectors``."""
        return self._file(f"vectors/round-{round:06d}")

    def handed_on(self, incarnation: int) -> Path:
        """Messages of that incarnation that neighbours have yet to use; the next keeps them."""
        return self._file("sent", f"{name_of(self.node)}.{incarnation}")

    def _file(self, folder: str, name: str = "") -> Path:
        return self.run.folder / folder / f"{name or name_of(self.node)}.safetensors"

    def to_json(self) -> dict[str, Any]:
        return msgspec.to_builtins(self, enc_hook=os.fspath, str_keys=True)

    @classmethod
    def from_json(cls, message: dict[str, Any]) -> Self:
        """Raises msgspec.ValidationError."""
        return msgspec.convert(message, cls, dec_hook=lambda kind, value: kind(value), str_keys=True)


def name_of(node: int) -> str:
    return f"node-{node:04d}"
