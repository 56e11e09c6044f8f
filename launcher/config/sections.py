"""The configuration of a run: one validated, frozen value; every error a line that names the key.

The sections of algorithms are not here: each algorithm declares its own settings beside its code, and
``algorithm.name`` chooses among them.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, reduce
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union

import tomli_w
from annotated_types import Ge, Le, Lt, MaxLen, MinLen
from pydantic import Field, GetPydanticSchema, TypeAdapter, ValidationError

from ...node.algorithms import ALGORITHMS
from ...node.algorithms.base import Algorithm
from ...node.settings import Checkpoints, Evaluation, Measuring, ModelSettings, Time, Training, Transport
from ...topology.errors import shown
from ...topology.generators import TopologySpec
from ...topology.section import Fraction, Index, Needs, NotNegative, Positive, Section
from ..planner.draws import Rates
from ..planner.scenario import Fault, Stragglers
from .data import DataSection
from .explanation import ConfigError, explain, keys_of

_S = TypeVar("_S")
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


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


@dataclass(frozen=True)
class ComputeSection(Section):
    """How long local work takes."""

    step_s: Positive | None = None
    """Seconds of a local step (work = "full": of a pass over the training samples). Without it, a step is timed once on
    this machine and written into the run's config.toml."""
    slowdown: tuple[Positive, ...] = ()
    """Factor on the time of each client, in their order; a shorter list is repeated."""


@dataclass(frozen=True)
class EdgeTable(Section):
    """An edge that differs from the others."""

    between: Annotated[tuple[Index, ...], MinLen(2), MaxLen(2)]
    """The two clients."""
    latency_s: NotNegative | None = None
    """Its latency, with the distribution of the others."""
    bandwidth: NotNegative | None = None
    """Bytes a second."""
    loss: Fraction | None = None
    """Probability that a message is lost."""


@dataclass(frozen=True)
class LinksSection(Section):
    """What links do to messages. Messages of one link arrive in their order."""

    latency: Literal["fixed", "uniform", "lognormal"] = "fixed"
    """fixed: ``latency_s``; uniform: from ``latency_s`` to ``latency_high_s``; lognormal: with median ``latency_s``.
    Drawn for each message."""
    latency_s: NotNegative = 0.0
    """Seconds from the end of sending to arrival."""
    latency_high_s: Annotated[NotNegative, Needs("latency", "uniform")] = 0.0
    """uniform: the upper end."""
    latency_sigma: Annotated[NotNegative, Needs("latency", "lognormal")] = 0.5
    """lognormal: deviation of the logarithm."""
    bandwidth: NotNegative = 0.0
    """Bytes a second on each link; 0 is unlimited."""
    uplink: NotNegative = 0.0
    """Bytes a second that a client can send to all its neighbours together, one message after the other; 0 is
    unlimited."""
    loss: Fraction = 0.0
    """Probability that a message is lost: it is not sent."""
    edges: tuple[EdgeTable, ...] = ()
    """Edges that differ."""

    def __post_init__(self) -> None:
        if self.latency == "uniform" and self.latency_high_s < self.latency_s:
            raise ValueError(f"latency_high_s = {self.latency_high_s:g} is below latency_s = {self.latency_s:g}")


_ONE_OF: Any = Annotated[Union[tuple(ALGORITHMS.values())], Field(discriminator="name")]  # noqa: UP007 (from the table)
AlgorithmSection = Annotated[Any, GetPydanticSchema(lambda _, schema_of: schema_of(_ONE_OF))]


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
        scenario = "time", "compute", "stragglers", "links", "faults", "chaos"
        return any(getattr(self, field.name) != field.default for field in fields(self) if field.name in scenario)

    @property
    def label(self) -> str:
        return self.name or self.algorithm.name

    def but(self, **changes: Any) -> Self:
        """The same with other values, a section's as {key: value}; they are not validated."""
        for name, value in changes.items():
            changes[name] = replace(getattr(self, name), **value) if isinstance(value, dict) else value
        return replace(self, **changes)._as_written(self.written)

    def _as_written(self, keys: frozenset[str]) -> Self:
        object.__setattr__(self, "written", keys)
        return self

    def to_toml(self) -> str:
        """The resolved configuration; reading it again gives an equal one."""
        return tomli_w.dumps(_adapter(RunConfig).dump_python(self, mode="json", exclude_none=True))


def validate(tree: dict[str, Any]) -> RunConfig:
    """Raises ConfigError with a line for each key at fault."""
    try:
        return as_section(RunConfig, tree)._as_written(frozenset(_paths(tree)))
    except ValidationError as error:
        raise ConfigError(*explain(error, tree, RunConfig)) from None


def as_section(section: type[_S], tree: dict[str, Any]) -> _S:
    """Raises pydantic's ValidationError."""
    # Strict, so that true is no number; as JSON, so that a list may become a tuple all the same
    return _adapter(section).validate_json(json.dumps(tree, default=str), strict=True)


def _paths(tree: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """a and a.b of {"a": {"b": 1}}; what is in a list is numbered."""
    for key, value in tree.items():
        yield f"{above}{key}"
        value = {str(number): each for number, each in enumerate(value)} if isinstance(value, list) else value
        if isinstance(value, dict):
            yield from _paths(value, f"{above}{key}.")


# -- keys that are written and have no effect: nobody writes what he does not want -----------------------------------


def without_effect(config: RunConfig) -> dict[str, str]:
    """{key with dots: a line that tells why}, of the keys that are written in the configuration of a run. A key at its
    default does no harm in a table that is written in full, as all are in a run's own config.toml."""
    return dict([*_idle(config, "", config), *_idle_with_algorithm(config)])


def refuse(keys: Mapping[str, str], configs: Sequence[RunConfig]) -> None:
    """Raises ConfigError where one of ``keys``, {key: how it was written}, has no effect in any of the runs."""
    idle, lines = [without_effect(config) for config in configs], []
    for key, written in keys.items():
        # it has no effect itself, or the table that it is in
        whys = [next((run[there] for there in run if f"{key}.".startswith(f"{there}.")), "") for run in idle]
        if all(whys):
            lines.append(f"{written}{whys[0]}")
    if lines:
        raise ConfigError(*dict.fromkeys(lines))


def _idle(section: Section | Algorithm, prefix: str, config: RunConfig) -> Iterator[tuple[str, str]]:
    for name, declared in keys_of(type(section)).items():
        value, key = getattr(section, name), f"{prefix}{name}"
        if _is_meant(section, name, prefix, config) and (why := _unmet(declared.metadata, section, prefix, config)):
            yield key, f"{_given(key, value)}: has no effect {why}"
            continue
        for number, each in enumerate(value if isinstance(value, tuple) else [value]):
            if isinstance(each, Section | Algorithm):
                yield from _idle(each, f"{key}.{number}." if isinstance(value, tuple) else f"{key}.", config)


def _is_meant(section: Section | Algorithm, name: str, prefix: str, config: RunConfig) -> bool:
    """Whether a key is written, and says more than what is true in any case."""
    value, keys = getattr(section, name), keys_of(type(section))
    if isinstance(section, Algorithm):
        return value != keys[name].default
    if f"{prefix}{name}" not in config.written or value is None or value in ("", ()):
        return False
    in_full = all(f"{prefix}{key}" in config.written for key, each in keys.items() if each.default is not None)
    return not (in_full and value == keys[name].default)


def _unmet(metadata: Sequence[Any], table: Any, prefix: str, config: RunConfig) -> str:
    """Why what is declared with ``metadata`` has no effect; "" where it has one."""
    for needs in (each for each in metadata if isinstance(each, Needs)):
        found = {
            key if "." in key else f"{prefix}{key}": reduce(getattr, key.split("."), config if "." in key else table)
            for key in needs.keys
        }
        if not any(map(needs.met, found.values())):
            given = " and ".join(_given(key, value) for key, value in found.items())
            wanted = " or ".join(map(shown, needs.values))
            return f"with {given}; it needs {wanted}" if needs.values else f"without {' or '.join(found)}"
    return ""


def _idle_with_algorithm(config: RunConfig) -> Iterator[tuple[str, str]]:
    traits, why = config.algorithm.traits, f"has no effect with algorithm.name = {config.algorithm.name!r}"
    reasons = {} if traits.mixes else {"weights": "which does not mix with such weights"}
    if traits.server != "none" and not traits.reads_topology:
        reasons = dict.fromkeys(keys_of(type(config.topology)), "whose clients talk to a server, and to nobody else")
    for name, reason in reasons.items():
        if _is_meant(config.topology, name, "topology.", config):
            yield f"topology.{name}", f"{_given(f'topology.{name}', getattr(config.topology, name))}: {why}, {reason}"
    if config.checkpoints.save_maps and not traits.has_maps:
        yield "checkpoints.save_maps", f"checkpoints.save_maps = true: {why}, which has no maps"


def _given(key: str, value: Any) -> str:
    return key if isinstance(value, Section) else f"{key} = {shown(value)}"
