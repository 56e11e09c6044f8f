"""What the launcher tells a client process: plain values that travel as one line of JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..metrics.records import sender_of
from ..transport.codecs import Codec, CodecName, codec
from .model.architecture import Architecture


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The other end of an edge: its number, its d_j, and the mixing weight W_ij of the edge, 0 where it is not heard.

    Where clients see different features, ``common`` are the coordinates of one's own theta that the neighbour has too.
    ``matching`` is the number of the matching that the edge belongs to, the same at both ends. ``samples`` are its
    training samples, 0 of a server. A server knows, too, of which ``classes``.
    """

    node: int
    parameters: int
    weight: float
    common: tuple[int, ...] = ()
    matching: int = 0
    samples: int = 0
    classes: tuple[int, ...] = ()
    remote: bool = False
    """Whether it is placed on another host."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A client's part of one of the run's graphs: those it sends to, and {those it hears from: W_ij}."""

    successors: tuple[int, ...]
    weights: dict[int, float]


@dataclass(frozen=True, slots=True)
class LocalWork:
    """The local work of a round (the [training] section)."""

    work: Literal["full", "steps", "epochs"]
    alpha: float
    steps: int
    epochs: int
    batch_size: int
    momentum: float
    l2: float

    def count(self, samples: int) -> int:
        """Local steps of a round, on so many training samples."""
        if self.work == "full":
            return 1
        if self.work == "steps":
            return self.steps
        return self.epochs * -(-samples // min(self.batch_size, samples))


@dataclass(frozen=True)
class Assignment:
    """One client's part of a run. ``shard``, ``state`` and ``log`` are paths; every round number counts from 1."""

    node: int
    role: Literal["client", "server"]
    """A server has no data, hence no shard."""
    clients: int
    """How many the run has, a server not counted."""
    run: int
    seed: int
    rounds: int
    folder: Path
    address: str
    records: str
    architecture: Architecture
    task: Literal["classification", "regression"]
    init: Literal["uniform", "zeros"]
    same_start: bool
    dtype: Literal["float32", "float64"]
    training: LocalWork
    algorithm: dict[str, Any]
    neighbours: tuple[Neighbour, ...]
    largest_vector: int
    timeout: float
    evaluate_every: int
    checkpoint_every: int
    save_maps: bool
    measure: bool
    sample_every: float
    kernel_counters: bool
    codec: CodecName = "none"
    codec_between: CodecName = "none"
    """On edges that lead to another host."""
    keep: float = 1.0
    """Share of the entries that codec top-k sends."""
    classes: tuple[int, ...] = ()
    """Of its training samples, ascending; none where the task has no classes."""
    matchings: int = 1
    """How many there are in the run's graph."""
    turns: tuple[Turn, ...] = ()
    """Of a directed or changing graph, whose ``neighbours`` are those of all turns: they follow each other, over and
    over. None: all neighbours are heard and sent to in all rounds."""
    rounds_a_turn: int = 1
    relations: tuple[tuple[int, int], ...] = ()
    """Edges of [topology] between the clients, where a server is told them."""
    clock: Literal["none", "wall", "virtual"] = "none"
    """none: no scenario, every exchange waits for every neighbour."""
    staleness: float = 0
    silence: Literal["wait", "stale", "skip"] = "wait"
    deadline_s: float = math.inf
    bounded: bool = False
    """Whether messages under way are counted, so that a fast client never floods a slow one."""
    survives: bool = False
    """Whether the run goes on without a client that died unexpectedly."""
    life: int = 1
    """A client that is started again begins its next life."""
    first_round: int = 1
    last_round: int | None = None
    """Of this life; None: the run's last."""
    begun_in: int = 1
    """The round in which this life began; earlier than ``first_round`` where the run was taken up again in it."""
    ending: Literal["finish", "crash", "leave"] = "finish"
    absent_until: int = 0
    """After a crash or leave: the last round without this client."""
    state_round: int | None = None
    """The round whose state this life goes on from."""
    first_outputs: int = 0
    """Outputs of client 0, whose layers before the last those of other tasks start as; 0: all start on their own."""
    drift_round: int = 0
    """The first round with the shard's second task; 0: there is none."""
    resumed_at: int = 0
    """The round after which an interrupted run was taken up again."""
    host: int = 0
    """The number of the host that it runs on, among those of the run."""
    host_name: str = ""
    memory: int = 0
    """Bytes that it may take at most, where others can connect to it; 0: all."""
    keyed: bool = False
    """Whether its data socket asks for keys."""
    shares_process: bool = False
    """Whether it is one thread of several clients in a process, to which limits, memory and CPU time belong."""
    records_key: str = ""
    """The collector's public key, where records are sent with keys."""

    @property
    def schedule(self) -> Path:
        return self.folder / "plan" / f"{name_of(self.node)}.safetensors"

    @property
    def sender(self) -> int:
        """The number under which this process sends records."""
        return sender_of(self.node, self.life)

    @property
    def shard(self) -> Path:
        return self.folder / "shards" / f"{name_of(self.node)}.safetensors"

    @property
    def log(self) -> Path:
        return self.folder / "log" / f"{name_of(self.node)}.log"

    def state(self, round: int) -> Path:
        """What this client is after a round."""
        return self.folder / "state" / f"round-{round:06d}" / f"{name_of(self.node)}.safetensors"

    def sent(self, round: int) -> Path:
        """Of a client that is away in this round: what it sent before and neighbours have yet to use."""
        return self.state(round).with_name(f"sent-{self.node:04d}.safetensors")

    def handed_on(self, life: int) -> Path:
        """What the client had sent when that life ended and neighbours have yet to use: for its next life to keep."""
        return self.folder / "sent" / f"{name_of(self.node)}.{life}.safetensors"

    def checkpoint_of(self, node: int, round: int) -> tuple[Path, Path]:
        """The two files, of which one is there, that a client's checkpoint may be."""
        other = replace(self, node=node)
        return other.state(round), other.sent(round)

    def codec_of(self, peer: Neighbour) -> Codec | None:
        """None: vectors travel as they are."""
        return codec(self.codec_between if peer.remote else self.codec, np.dtype(self.dtype), self.keep)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"folder": str(self.folder)}

    @classmethod
    def from_json(cls, message: dict[str, Any]) -> Assignment:
        shapes = {key: tuple(message["architecture"][key]) for key in ("input_shape", "filters", "hidden")}
        return cls(
            **message
            | {
                "folder": Path(message["folder"]),
                "architecture": Architecture(**message["architecture"] | shapes),
                "training": LocalWork(**message["training"]),
                "neighbours": tuple(
                    Neighbour(**neighbour | {key: tuple(neighbour[key]) for key in ("common", "classes")})
                    for neighbour in message["neighbours"]
                ),
                "classes": tuple(message["classes"]),
                "relations": tuple((i, j) for i, j in message["relations"]),
                "turns": tuple(
                    Turn(tuple(turn["successors"]), {int(j): weight for j, weight in turn["weights"].items()})
                    for turn in message["turns"]
                ),
            }
        )


def name_of(node: int) -> str:
    """The name of a client's files."""
    return f"node-{node:04d}"
