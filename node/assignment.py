"""What the launcher tells a client process: plain values that travel as one line of JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from .architecture import Architecture


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The other end of an edge: its number, its d_j, and the mixing weight W_ij of the edge.

    Where clients see different features, ``common`` are the coordinates of one's own theta that the neighbour has too.
    """

    node: int
    parameters: int
    weight: float
    common: tuple[int, ...] = ()


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


@dataclass(frozen=True)
class Assignment:
    """One client's part of a run. ``shard``, ``state`` and ``log`` are paths; every round number counts from 1."""

    node: int
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

    @property
    def shard(self) -> Path:
        return self.folder / "shards" / f"{name_of(self.node)}.safetensors"

    @property
    def log(self) -> Path:
        return self.folder / "log" / f"{name_of(self.node)}.log"

    def state(self, round: int) -> Path:
        return self.folder / "state" / f"round-{round:06d}" / f"{name_of(self.node)}.safetensors"

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
                    Neighbour(**neighbour | {"common": tuple(neighbour["common"])})
                    for neighbour in message["neighbours"]
                ),
            }
        )


def name_of(node: int) -> str:
    """The name of a client's files."""
    return f"node-{node:04d}"
