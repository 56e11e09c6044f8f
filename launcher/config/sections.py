"""The configuration of a run: one validated, frozen value; every error a line that names the key.

The sections of algorithms are not here: each algorithm declares its own settings beside its code, and
``algorithm.name`` chooses among them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, Union

import tomli_w
from annotated_types import Ge, Le, Lt, MaxLen
from pydantic import Field, TypeAdapter, ValidationError

from ...node.algorithms import ALGORITHMS
from ...node.settings import Checkpoints, Evaluation, Measuring, ModelSettings, Time, Training, Transport
from ...topology.generators import TopologySpec
from ...topology.section import Index, NotNegative, Section
from ..planner.chaos import Rates
from ..planner.scenario import Fault, Stragglers
from .conditions import ComputeSection, LinksSection
from .data import DataSection
from .explanation import explain
from .section import ConfigError

_S = TypeVar("_S")


@dataclass(frozen=True)
class PlacementSection(Section):
    """Which client runs on which host, where there are several: docs/cluster.md."""

    by: Literal["partition", "round-robin", "random"] = "partition"
    """partition: so that few edges lead from one host to another (METIS); round-robin: in turn; random: drawn."""
    hosts: Index = 0
    """With --engine ray: at most so many of the cluster's hosts; 0 takes all. With the local engine: so many hosts that
    this machine stands for, to see what would go between them."""
    clients_a_core: NotNegative = 0.0
    """How many clients a host runs for each of its cores, at most; 0 sets no limit."""
    memory_gb: NotNegative = 0.0
    """Memory that clients may take on a host, by the estimate that is made before the start; 0: all that is free."""


if TYPE_CHECKING:
    AlgorithmSection = Any
else:
    AlgorithmSection = Annotated[
        Union[tuple(ALGORITHMS.values())],  # noqa: UP007 (made from the table)
        Field(discriminator="name"),
    ]


@dataclass(frozen=True)
class RunConfig(Section):
    """One run, completely: the same values give the same bits."""

    name: Annotated[str, MaxLen(100)] = ""
    """What the run is called in tables; by default the algorithm's name."""
    seed: Annotated[int, Ge(0), Lt(2**63)] = 0
    """Every random draw of the run follows from it."""
    clients: Annotated[int, Ge(1), Le(1_000_000)] = 20
    """Client processes. "all" makes them as many as the samples have owners."""
    rounds: Annotated[int, Ge(1), Le(1_000_000_000)] = 100
    """Rounds of local work and exchange."""
    topology: TopologySpec = TopologySpec()
    data: DataSection = DataSection()
    model: ModelSettings = ModelSettings()
    training: Training = Training()
    algorithm: AlgorithmSection = ALGORITHMS["sheaf-fmtl"]()
    """Settings of the algorithm that ``algorithm.name`` chooses."""
    evaluation: Evaluation = Evaluation()
    checkpoints: Checkpoints = Checkpoints()
    transport: Transport = Transport()
    placement: PlacementSection = PlacementSection()
    measuring: Measuring = Measuring()
    time: Time = Time()
    compute: ComputeSection = ComputeSection()
    stragglers: Stragglers = Stragglers()
    links: LinksSection = LinksSection()
    faults: tuple[Fault, ...] = ()
    """What goes wrong, and when."""
    chaos: Rates = Rates()

    written: ClassVar[frozenset[str]] = frozenset()
    """The keys with dots, those of tables too, that were written where it comes from; tables in a list are numbered."""

    def __post_init__(self) -> None:
        if self.placement.hosts > self.clients:
            raise ValueError(f"placement.hosts = {self.placement.hosts}: allowed are 0 to {self.clients}, one a client")

    @property
    def has_scenario(self) -> bool:
        """Whether anything but the machine itself decides on time."""
        return any(
            getattr(self, field.name) != field.default
            for field in fields(self)
            if field.name in ("time", "compute", "stragglers", "links", "faults", "chaos")
        )

    @property
    def label(self) -> str:
        return self.name or self.algorithm.name

    def but(self, **changes: Any) -> RunConfig:
        """The same with other values, a section's as {key: value}; they are not validated."""
        values = {
            name: replace(getattr(self, name), **value) if isinstance(value, dict) else value
            for name, value in changes.items()
        }
        return _as_written(replace(self, **values), self.written)

    def to_toml(self) -> str:
        """The resolved configuration; reading it again gives an equal one."""
        return tomli_w.dumps(_adapter(RunConfig).dump_python(self, mode="json", exclude_none=True))


def validate(tree: dict[str, Any]) -> RunConfig:
    """Raises ConfigError with a line for each key at fault."""
    try:
        return _as_written(as_section(RunConfig, tree), frozenset(_paths(tree)))
    except ValidationError as error:
        raise ConfigError(*explain(error, tree, RunConfig)) from None


def as_section(section: type[_S], tree: dict[str, Any]) -> _S:
    """Raises pydantic's ValidationError."""
    # Strict, so that true is no number; as JSON, so that a list may become a tuple all the same
    declared: Any = section
    return _adapter(declared).validate_json(json.dumps(tree, default=str), strict=True)


@cache
def _adapter(section: Any) -> TypeAdapter[Any]:
    return TypeAdapter(section)


def _as_written(config: RunConfig, keys: frozenset[str]) -> RunConfig:
    object.__setattr__(config, "written", keys)
    return config


def _paths(tree: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in tree.items():
        yield f"{above}{key}"
        if isinstance(value, dict):
            yield from _paths(value, f"{above}{key}.")
        if isinstance(value, list):
            for number, each in enumerate(value):
                yield from _paths(each, f"{above}{key}.{number}.") if isinstance(each, dict) else ()
