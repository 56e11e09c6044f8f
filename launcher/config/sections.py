"""The configuration of a run: one validated, frozen value. Each algorithm declares its settings beside its own code."""

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args, get_type_hints

import tomli_w
from annotated_types import Ge, Le, Lt, MaxLen
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from ...metrics.config_file import flat
from ...node import own_code
from ...node.algorithms import ALGORITHMS, Algorithm, installed, own_kind
from ...node.algorithms.base import Traits
from ...node.attack_settings import Attack
from ...node.settings import Checkpoints, Evaluation, Measuring, ModelSettings, Privacy, Time, Training, Transport
from ...topology.errors import shown
from ...topology.generators import TopologySpec
from ...topology.section import Index, Needs, NotNegative, Positive, Section, WordOrTable
from ..planner.draws import Rates
from ..planner.scenario import Fault, Links, Stragglers
from ..planner.traces import TraceSection
from .data import ConfigError, DataSection

_S = TypeVar("_S")
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def _keys_of(section: Any) -> dict[str, FieldInfo]:
    hints = get_type_hints(section, include_extras=True)
    return {field.name: FieldInfo.from_annotated_attribute(hints[field.name], field) for field in fields(section)}


keys_of: Callable[[Any], dict[str, FieldInfo]] = cache(_keys_of)  # of a section or an algorithm, in their order


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
    """Seconds of a local step (work = "full": of a pass over the training samples, however many). Without it, a step is
    timed once on this machine and written into the run's config.toml."""
    sample_s: Positive | None = None
    """Instead of ``step_s``: seconds of each training sample that a local step goes over, so that clients with more
    samples take longer."""
    message_s: Annotated[NotNegative, "Added to local work for each message of the round: projecting, encoding."] = 0.0
    evaluation_s: Annotated[NotNegative, "Added to local work in rounds that are evaluated."] = 0.0
    slowdown: tuple[Positive, ...] = ()
    """Factor on all these seconds of each client, in their order; a shorter list is repeated."""

    def __post_init__(self) -> None:
        if self.step_s is not None and self.sample_s is not None:
            raise ValueError("step_s and sample_s exclude each other: give one of them")


@dataclass(frozen=True)
class TrackingSection(Section):
    """The scalars of every round in the store of an experiment tracker, while the run goes on. A process beside the run
    writes them; the run is the same with it and without. docs/run-folder.md has more."""

    to: Literal["none", "mlflow", "wandb", "trackio", "tensorboard"] = "none"
    """Which tracker; wandb offline (`wandb sync` uploads it later). Each is an extra of its name."""
    folder: Annotated[Path | None, Needs("to", "mlflow", "wandb", "trackio", "tensorboard")] = None
    """Where its store is; by default `tracking/` in the run's folder, or what `MLFLOW_TRACKING_URI` says. Several runs
    may share one."""


_DEFAULT = ALGORITHMS["sheaf-fmtl"]()
SCENARIO = ("time", "compute", "stragglers", "links", "faults", "chaos", "trace")
SCENARIO_TABLES = ", ".join(f"[[{name}]]" if name == "faults" else f"[{name}]" for name in SCENARIO)


@dataclass(frozen=True)
class RunConfig(Section):
    """One run, completely: the same values give the same bits. docs/configuration.md describes its tables and keys."""

    name: Annotated[str, MaxLen(100), "What the run is called in tables; by default the algorithm's name."] = ""
    seed: Annotated[int, Ge(0), Lt(2**63), "Every random draw of the run follows from it."] = 0
    clients: Annotated[int, Ge(1), Le(1_000_000)] = 20
    """Client processes. "all" makes them as many as the samples have owners."""
    rounds: Annotated[int, Ge(1), Le(1_000_000_000), "Rounds of local work and exchange."] = 100
    topology: TopologySpec = TopologySpec()
    data: DataSection = DataSection()
    model: ModelSettings = ModelSettings()
    training: Training = Training()
    algorithm: Any = _DEFAULT
    """Settings of the algorithm that ``algorithm.name`` chooses."""
    evaluation: Evaluation = Evaluation()
    checkpoints: Checkpoints = Checkpoints()
    transport: Transport = Transport()
    placement: PlacementSection = PlacementSection()
    measuring: Measuring = Measuring()
    time: Time = Time()
    compute: ComputeSection = ComputeSection()
    stragglers: Stragglers = Stragglers()
    links: Links = Links()
    faults: Annotated[tuple[Fault, ...], "What goes wrong, and when."] = ()
    chaos: Rates = Rates()
    trace: TraceSection = TraceSection()
    attack: Attack = Attack()
    privacy: Privacy = Privacy()
    tracking: TrackingSection = field(default=TrackingSection(), compare=False)  # who looks on makes no other run

    written: ClassVar[frozenset[str]] = frozenset()
    """The keys with dots, those of tables too, that were written where it comes from; tables in a list are numbered."""

    def __post_init__(self) -> None:
        if isinstance(self.clients, int) and self.placement.hosts > self.clients:
            raise ValueError(f"placement.hosts = {self.placement.hosts}: allowed are 0 to {self.clients}, one a client")

    @property
    def has_scenario(self) -> bool:
        """Tells whether anything but the machine itself decides on time."""
        return any(getattr(self, field.name) != field.default for field in fields(self) if field.name in SCENARIO)

    @property
    def times_a_step(self) -> bool:
        """Tells whether this machine decides what a step takes."""
        return self.has_scenario and self.compute.step_s is None and self.compute.sample_s is None

    @property
    def label(self) -> str:
        return self.name or self.algorithm.name

    def but(self, **changes: Any) -> Self:
        """Replaces values, a section's given as {key: value}, without validation."""
        for name, value in changes.items():
            changes[name] = replace(getattr(self, name), **value) if isinstance(value, dict) else value
        return replace(self, **changes)._as_written(self.written)

    def _as_written(self, keys: frozenset[str]) -> Self:
        object.__setattr__(self, "written", keys)
        return self

    @property
    def uses(self) -> dict[str, str]:
        """{key: the user's code that it names}"""
        found = {"algorithm.use": self.algorithm.use, "model.use": self.model.use, "data.use": self.data.use}
        found["algorithm.edges.use"] = getattr(getattr(self.algorithm, "edges", None), "use", "")
        found["training.loss.use"] = self.training.loss.use
        found["training.optimizer.use"] = self.training.optimizer_use
        found |= {f"evaluation.metrics.{number}.use": each.use for number, each in enumerate(self.evaluation.metrics)}
        found |= {f"model.mix.{number}.use": each.use for number, each in enumerate(self.model.mix)}
        return {key: use for key, use in found.items() if use}

    def to_toml(self) -> str:
        tree = _dumped(RunConfig, self.but(algorithm=_DEFAULT))
        tree["algorithm"] = _dumped(type(self.algorithm), self.algorithm)
        if not self.algorithm.use:
            del tree["algorithm"]["use"]
        return tomli_w.dumps(tree)


def _dumped(kind: type, value: Any) -> dict[str, Any]:
    return _adapter(kind).dump_python(value, mode="json", exclude_none=True, warnings=False)


def validate(tree: dict[str, Any], *, from_run: bool = False) -> RunConfig:
    """Raises ConfigError with a line for each key at fault. Executes the code that it names; ``from_run``, whose folder
    anyone may have written, only if that has been done before."""
    tree = _with_installed(tree)
    algorithm, problems = _algorithm(tree["algorithm"], from_run=from_run) if "algorithm" in tree else (None, [])
    try:
        config = as_section(RunConfig, {key: value for key, value in tree.items() if key != "algorithm"})
    except ValidationError as error:
        problems += error.errors()
    if problems:  # of a list with an entry that is wrong, only the entry is told
        above = {problem["loc"][:length] for problem in problems for length in range(len(problem["loc"]))}
        raise ConfigError(*(_explain(each, tree) for each in problems if each["loc"] not in above))
    if algorithm is not None:
        config = config.but(algorithm=algorithm)
    written = {part for key in flat(tree, lists=True) for part in accumulate(key.split("."), "{}.{}".format)}
    return config._as_written(frozenset(written))


def _algorithm(section: Any, *, from_run: bool) -> tuple[Algorithm | None, list[Any]]:
    """Returns it, or what is wrong with its keys, as pydantic tells that. Raises ConfigError."""
    problem = {"loc": ("algorithm",), "input": section}
    if not isinstance(section, dict):
        return None, [problem | {"type": "dict_type"}]
    name: Any = section.get("name")
    own = "use" in section
    if not own and not (isinstance(name, str) and name in ALGORITHMS):
        return None, [problem | {"type": "union_tag_not_found" if name is None else "union_tag_invalid"}]
    try:
        return (_own_algorithm(section, from_run=from_run) if own else as_section(ALGORITHMS[name], section)), []
    except ValidationError as error:
        return None, [each | {"loc": ("algorithm", "use" if own else name, *each["loc"])} for each in error.errors()]


def _own_algorithm(section: dict[str, Any], *, from_run: bool) -> Algorithm:
    """Raises ValidationError and ConfigError."""
    kind = _own_kind(section["use"], from_run=from_run)
    try:
        algorithm = as_section(kind, _defaults(kind) | {"name": kind.name or _words(kind.__name__)} | section)
    except TypeError as error:
        if own_code.blamed(error):
            raise
        raise ConfigError(f"algorithm.use = {section['use']!r}: a bound of a field does not fit: {error}") from None
    if not isinstance(algorithm.traits, Traits):
        raise ConfigError(f"{kind.__name__}.traits = {shown(algorithm.traits)}: must be sheafgossip.Traits(...)")
    return algorithm


def _with_installed(tree: dict[str, Any]) -> dict[str, Any]:
    """Puts in where the class is of an algorithm that an installed package brings, which is called by its name."""
    section: Any = tree.get("algorithm")
    name = section.get("name") if isinstance(section, dict) and "use" not in section else None
    if not isinstance(name, str) or name in ALGORITHMS or name not in installed():
        return tree
    return tree | {"algorithm": section | {"use": installed()[name]}}


def _own_kind(use: Any, *, from_run: bool) -> type[Algorithm]:
    if not isinstance(use, str):
        raise ConfigError(f"algorithm.use = {shown(use)}: must be a string")
    if from_run and not own_code.is_loaded(use, "algorithm.use"):
        raise ConfigError(f"algorithm.use = {use!r}: nothing that a run's folder names is executed")
    kind = own_kind(use)
    try:
        _adapter(kind)
        keys_of(kind)
    except Exception as error:  # of a type that no key can have
        raise ConfigError(
            f"algorithm.use = {use!r}: a field of {kind.__name__} is no key: {' '.join(str(error).split())[:200]}"
        ) from None
    return kind


def _defaults(kind: type[Algorithm]) -> dict[str, Any]:
    """Returns those of plain values, which have to be allowed as any other value."""
    found = {field.name: field.default for field in fields(kind) if field.name != "use"}
    return {name: value for name, value in found.items() if isinstance(value, bool | int | float | str | tuple)}


def _words(name: str) -> str:
    """half-way of HalfWay."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


def as_section(section: type[_S], tree: dict[str, Any]) -> _S:
    """Raises pydantic's ValidationError."""
    # Strict, so that true is no number; as JSON, so that a list may become a tuple all the same
    return _adapter(section).validate_json(json.dumps(tree, default=_plain), strict=True)


def _plain(value: Any) -> Any:
    """Returns the numbers of numpy's; of anything else its text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _explain(problem: Any, tree: Mapping[str, Any]) -> str:
    kind, value, context = problem["type"], problem["input"], problem.get("ctx", {})
    is_unknown = kind in ("extra_forbidden", "unexpected_keyword_argument")  # then the last part is what was written
    above, last = (problem["loc"][:-1], problem["loc"][-1:]) if is_unknown else (problem["loc"], ())
    where = [*(part for part in above if part not in WordOrTable.TAGS), *last]
    if where[:1] == ["algorithm"]:
        del where[1:2]  # the algorithm's name, which pydantic puts between the section and its key
    if kind.startswith("union_tag"):
        where.append("name")
        value = value.get("name") if isinstance(value, dict) else value
    path = ".".join(map(str, where))
    key = path or "the configuration"
    names = ", ".join(map(repr, [*ALGORITHMS, *installed()])) if path == "algorithm.name" else ""
    match kind:
        case _ if is_unknown:
            return _unknown(where, tree)
        case "missing" | "missing_argument" | "union_tag_not_found":
            return f"{key} is missing" + (f"; allowed: {names}" if path == "algorithm.name" else "")
        case "union_tag_invalid" | "literal_error":
            allowed = context.get("expected", names)
            close = difflib.get_close_matches(str(value), re.findall("'(.*?)'", allowed), n=1)
            allowed += ", or a table with the key use" if WordOrTable.TAGS[0] in problem["loc"] else ""
            return f"{key} = {shown(value)}; allowed: {allowed}" + (f"; did you mean {close[0]!r}?" if close else "")
        case "value_error" if isinstance(value, dict):  # a check of several keys of a table, which may name them itself
            said = str(context["error"])
            glue = "." if re.match(r"[\w.]+ = ", said) else ": "
            return glue.join(filter(None, [path, said]))
        case "value_error":
            wanted = str(context["error"])
        case "model_type" | "dataclass_type" | "model_attributes_type" | "dict_type":
            table = _sections().get(path)
            words = {name: get_args(each.annotation) for name, each in keys_of(table).items()} if table else {}
            words |= {"name": tuple(ALGORITHMS)} if path == "algorithm" else {}
            hint = next((name for name, allowed in words.items() if value in allowed), None)
            wanted = "must be a table" + (f"; write {path}.{hint} = {value!r}" if hint else "")
        case "tuple_type":
            entries = value.strip("[] ").split(",") if isinstance(value, str) else [value]
            entries = [entry.strip("\"' ") if isinstance(entry, str) else entry for entry in entries]
            plain = not isinstance(value, dict | list) and len(entries) < 5 and len(str(value)) < 120
            wanted = "must be a list" + (f", such as {entries}" if plain else "")
        case "too_short":
            wanted = f"must have at least {context['min_length']} entries"
        case "too_long":
            wanted = f"must have at most {context['max_length']} entries"
        case "bool_type":
            wanted = "must be true or false"
        case _:
            message = problem["msg"].replace("Input should be", "must be")
            wanted = f"{message[0].lower()}{message[1:]}"
    return f"{key} = {shown(value)}: {wanted}"


def _unknown(where: Sequence[Any], tree: Mapping[str, Any]) -> str:
    if where == ["base"] or where == ["compare"]:
        return f"{where[0]}: is written outside any table of a file"
    section: Any = RunConfig
    for part in where[:-1]:
        if part == "algorithm":
            given = tree.get("algorithm", {})
            section = own_kind(given["use"]) if "use" in given else ALGORITHMS[given.get("name", _DEFAULT.name)]
        elif not isinstance(part, int):
            kind = keys_of(section)[part].annotation  # a table, tables, or perhaps one
            section = next(each for each in (kind, *get_args(kind)) if isinstance(each, type))
    name, allowed = str(where[-1]), list(keys_of(section)) + (["base", "compare"] if section is RunConfig else [])
    if ALGORITHMS.get(getattr(section, "name", "")) is section:
        allowed.remove("use")
    elsewhere = [f"{place}.{name}" for place, table in _sections().items() if name in keys_of(table)]
    close = difflib.get_close_matches(name, allowed, n=1) or elsewhere
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"{'.'.join(map(str, where))}: unknown key{hint}; allowed here: {', '.join(allowed)}"


def _sections() -> dict[str, type[Section]]:
    kinds = {name: key.annotation for name, key in keys_of(RunConfig).items()}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Section)}
