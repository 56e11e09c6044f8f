"""The configuration of a run: TOML text to one validated, frozen model; every error a line that names the key.

The sections of algorithms are not here: each algorithm declares its own settings beside its code, and
``algorithm.name`` chooses among them.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, KeysView, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

import tomli_w
from pydantic import Field, ValidationError, model_validator

from ...metrics.config_file import flat, read_text
from ...metrics.config_file import parse as parse_toml
from ...node.algorithms import ALGORITHMS
from ...node.needs import Needs
from ...transport.codecs import CodecName
from .conditions import ChaosSection, ComputeSection, FaultTable, LinksSection, StragglerSection, TimeSection
from .effects import refuse
from .explanation import explain
from .section import ConfigError, Count, Fraction, NotNegative, Positive, Section


class TopologySection(Section):
    """Who is whose neighbour."""

    kind: Literal[
        "erdos-renyi",
        "watts-strogatz",
        "barabasi-albert",
        "ring",
        "torus",
        "star",
        "complete",
        "random-regular",
        "exponential",
        "one-peer-exponential",
        "file",
    ] = "erdos-renyi"
    """The family of graphs, or "file" to read one. exponential: client i sends to i + 1, i + 2, i + 4, ... (modulo the
    number of clients); one-peer-exponential: to one of these a round, in turn. Both are directed."""
    p: Annotated[Fraction, Needs("kind", "erdos-renyi", "watts-strogatz")] = 0.2
    """erdos-renyi: probability of an edge or arc; watts-strogatz: probability of rewiring one."""
    k: Annotated[Count, Needs("kind", "watts-strogatz", "random-regular")] = 4
    """watts-strogatz: neighbours of a client before rewiring (even); random-regular: neighbours of a client."""
    m: Annotated[Count, Needs("kind", "barabasi-albert")] = 2
    """barabasi-albert: edges that a new client brings."""
    rows: Annotated[int, Field(ge=0), Needs("kind", "torus")] = 0
    """torus: rows of the grid; 0 takes the most nearly square grid."""
    path: Annotated[Path | None, Needs("kind", "file")] = None
    """file: an edge list (two client numbers a line) or GraphML; relative paths start at the configuration's folder."""
    connected: bool = True
    """false, with file and an undirected graph: it may fall into several parts, which know nothing of each other."""
    tries: Annotated[Count, Needs("kind", "erdos-renyi", "watts-strogatz", "barabasi-albert", "random-regular")] = 100
    """How many graphs may be drawn until one is connected, strongly so if it is directed."""
    directed: bool = False
    """erdos-renyi: each arc i -> j is drawn by itself; ring: i sends to i + 1; file: a line is an arc from the first
    client to the second, and in GraphML an edge that is not directed is an arc each way. Not every algorithm works on
    directed graphs, or on changing ones: docs/topologies.md."""
    redraw_every: Annotated[int, Field(ge=0)] = 0
    """Kinds that are drawn at random: after so many rounds another graph takes over; 0 keeps the first for the run."""
    weights: Literal["metropolis-hastings", "max-degree"] = "metropolis-hastings"
    """Mixing weights W of the algorithms that average: 1/(1 + max(deg_i, deg_j)), or 1/(1 + the largest degree). On
    directed graphs W_ij is 1/(1 + the number of clients that j sends to)."""


class SyntheticTable(Section):
    """The tasks of data.dataset = "synthetic": one a client, alike within a group."""

    groups: Count = 4
    """Groups of clients, of equal size, with one task in common but for the deviation."""
    dimensions: Count = 20
    """Features of a sample."""
    classes: Annotated[int, Field(ge=2), Needs("data.task", "classification")] = 2
    """classification: how many classes."""
    samples: Annotated[int, Field(ge=4)] = 100
    """Samples of a client, for training and for testing together."""
    deviation: Annotated[float, Field(ge=0)] = 0.1
    """How far a client's parameters are from its group's, as a share of their size."""
    noise: Annotated[float, Field(ge=0)] = 0.1
    """Standard deviation of the noise on the targets, or on the scores of the classes; without noise and deviation they
    have deviation 1."""


class ClustersTable(Section):
    """The clusters of data.partition = "clusters": contiguous blocks of clients, of equal size, that share classes."""

    count: Count = 5
    """How many."""
    classes: Count = 2
    """Classes of a cluster, drawn at random; the last has fewer where they do not suffice for all."""
    overlap: Annotated[int, Field(ge=0)] = 0
    """How many of these the next cluster has, too (the first is next to the last)."""
    exponent: Annotated[float, Field(ge=0)] = 0.0
    """0: the samples of a cluster are split evenly over its clients; above: its m-th client has about smallest +
    exp(b m**exponent) of them, with a b that deals out all."""
    smallest: Annotated[Count, Needs("exponent")] = 20
    """With an exponent: samples of the smallest client, less one."""


class DriftTable(Section):
    """Tasks that change while they are learned."""

    at_round: Count
    """The first round with the new tasks."""
    rotations: tuple[Literal[0, 90, 180, 270], ...]
    """The angles of the groups from then on, as many as data.rotations. Each client keeps its images, those that it is
    tested on too, and turns them so."""


Task = Literal["classification", "regression"]
_IN_FILES = ("mnist", "fashion-mnist", "cifar10", "school", "har", "vehicle", "gleam", "sensors", "npz", "table")


class DataSection(Section):
    """What is learned, and how it is spread over the clients."""

    dataset: Literal[
        "digits",
        "mnist",
        "fashion-mnist",
        "cifar10",
        "school",
        "har",
        "vehicle",
        "gleam",
        "sensors",
        "synthetic",
        "npz",
        "table",
    ] = "digits"
    """digits comes with scikit-learn (1,797 images of 8x8), synthetic is drawn; npz is your own file with arrays x, y
    and optionally their owners, table one with named columns. Each is described in docs/data.md."""
    root: Annotated[Path | None, Needs("dataset", *_IN_FILES)] = None
    """Folder with the data set's files, or the file where it is one; without it, mnist, fashion-mnist and cifar10 are
    downloaded to a cache."""
    task: Annotated[Literal["classification", "regression"], Needs("dataset", "npz", "table", "synthetic")] = (
        "classification"
    )
    """npz, table, synthetic: what the target is; school and sensors are regression, the others classification."""
    target: Annotated[str, Needs("dataset", "table")] = "target"
    """table: the column to be predicted."""
    client: Annotated[str | None, Needs("dataset", "npz", "table")] = None
    """npz, table: the array or column that names the owner of a sample; "" says that there is none. Without this key it
    is "client", where there is one."""
    series: Annotated[bool, Needs("dataset", "npz")] = False
    """npz: x of shape (n, steps, features) holds series, and not images of one channel."""
    features: Annotated[tuple[str, ...], Needs("dataset", "table")] = ()
    """table: the columns to learn from; without this key all but target, client and those of data.drop."""
    drop: Annotated[tuple[str, ...], Needs("dataset", "table")] = ()
    """table: columns that are left out."""
    text: Annotated[Literal["refuse", "one-hot"], Needs("dataset", "table")] = "refuse"
    """table: what to do with columns of text. one-hot: each of its texts becomes a feature that is 1 in rows with this
    text and 0 in the others; a column of more than 64 different texts is refused all the same."""
    missing: Annotated[Literal["refuse", "drop"], Needs("dataset", "table")] = "refuse"
    """table: what to do with rows in which a value is missing. drop: they are left out."""
    window: Annotated[Count, Needs("dataset", "sensors")] = 12
    """sensors: how many past values a sample shows."""
    horizon: Annotated[Count, Needs("dataset", "sensors")] = 1
    """sensors: how many values that follow are to be predicted."""
    synthetic: Annotated[SyntheticTable, Needs("dataset", "synthetic")] = SyntheticTable()
    """synthetic: how tasks and samples are drawn."""
    samples: Annotated[int, Field(ge=0)] = 0
    """Use only this many samples, drawn at random; 0 uses all."""
    partition: Literal["auto", "even", "classes", "clusters", "dirichlet", "quantity", "overlapping", "natural"] = (
        "auto"
    )
    """even: shuffled and split evenly; classes: a few classes a client; clusters: clusters of clients that share
    classes; dirichlet: class shares drawn from Dirichlet(beta); quantity: sizes follow a power law; overlapping: each
    client draws samples_each from all samples, so that several may hold the same one, and one client's test sample may
    be another's training sample; natural: each client has the samples of one owner (a random choice of owners where
    clients is smaller); auto: natural where samples have owners, else even."""
    classes_per_client: Annotated[Count, Needs("partition", "classes")] = 2
    """classes: how many classes a client holds."""
    imbalance: Annotated[float, Field(ge=0, lt=1), Needs("partition", "classes")] = 0.0
    """classes: those who hold a class share its samples in proportion to weights drawn from 1 - imbalance to
    1 + imbalance; 0 shares them evenly."""
    clusters: Annotated[ClustersTable, Needs("partition", "clusters")] = ClustersTable()
    """clusters: how many, of which classes, how uneven."""
    beta: Annotated[Positive, Needs("partition", "dirichlet")] = 0.5
    """dirichlet: concentration; smaller is more skewed."""
    exponent: Annotated[Positive, Needs("partition", "quantity")] = 1.5
    """quantity: client k (in a random order) gets a share proportional to k**-exponent."""
    samples_each: Annotated[Count, Needs("partition", "overlapping")] = 20
    """overlapping: how many samples a client holds; no sample twice."""
    min_samples: Annotated[int, Field(ge=0), Needs("partition", "auto", "natural")] = 0
    """natural: owners with fewer samples are left out."""
    rotations: tuple[Literal[0, 90, 180, 270], ...] = (0,)
    """Clients form as many groups of equal size as angles are given; a group's images are turned by its angle."""
    mask: Annotated[int, Field(ge=0)] = 0
    """After the turn, a square of so many pixels a side is set to 0 in all images of a client, at a place drawn for
    each client; 0 masks nothing."""
    tasks: tuple[Literal["classes", "parity", "halves"], ...] = ("classes",)
    """Classification: what clients are to tell of a sample, dealt to them in turn. classes: its class, as the data set
    has it; parity: whether the class's number is odd; halves: whether it is in the upper half. For a digit that is the
    digit, whether it is odd, and whether it is at least five."""
    drift: DriftTable | None = None
    """Groups of clients whose images are turned otherwise from some round on."""
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.25
    """Share of each client's samples that is kept for testing."""
    evaluate_on: Literal["test", "validation"] = "test"
    """What models are evaluated on. test: the samples kept for testing; validation: the same share of each client's
    training samples, held out of them, while the test samples are in no shard: for choosing settings."""
    reduced_clients: Fraction = 0.0
    """Share of the clients (drawn at random) whose training data is cut."""
    reduced_to: Annotated[float, Field(gt=0, le=1), Needs("reduced_clients")] = 0.2
    """What is left of the training data of those clients: 0.2 keeps a fifth."""
    features_held: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the input features that each client sees, drawn at random; a server sees all of them. Below 1 the
    models are logistic or linear, and images are flattened."""
    standardize: bool = False
    """Shift and scale every feature of a client to mean 0 and deviation 1 by its own training samples."""
    standardize_targets: bool = False
    """Regression: the same for every target; errors are then in units of the client's own deviation."""


class ArchitectureSection(Section):
    """A model; ``share`` counts where several are mixed."""

    kind: Literal["logistic", "linear", "mlp", "cnn", "gru"] = "logistic"
    """logistic: multinomial logistic regression; linear: linear regression; mlp and cnn with a last linear layer; gru:
    for series, a gated recurrent unit whose last state a linear layer reads."""
    filters: Annotated[tuple[Count, ...], Needs("kind", "cnn")] = (32, 64)
    """cnn: filters of each convolution (ReLU, 2x2 max-pool after each)."""
    kernel: Annotated[Count, Needs("kind", "cnn")] = 3
    """cnn: weights of a convolution's filter a side."""
    padding: Annotated[bool, Needs("kind", "cnn")] = False
    """cnn: whether convolutions keep the size of the image, zeros around it."""
    norm_groups: Annotated[int, Field(ge=0), Needs("kind", "cnn")] = 0
    """cnn: channels are normalized in so many groups after each convolution (GroupNorm); 0 leaves them as they are."""
    hidden: Annotated[tuple[Count, ...], Needs("kind", "mlp", "cnn", "gru")] = ()
    """mlp, cnn: widths of the hidden fully connected layers; gru: the width of its state, one number."""
    share: Annotated[Positive, Needs("model.mix")] = 1.0
    """With several architectures: this one's share of the clients, relative to the others."""


class ModelSection(ArchitectureSection):
    """The clients' model."""

    mix: tuple[ArchitectureSection, ...] = ()
    """Further architectures; clients are dealt among [model] and these in proportion to their shares."""
    init: Literal["uniform", "zeros"] = "uniform"
    """Start of theta: uniform in +-1/sqrt(fan-in), or zeros (logistic and linear only)."""
    same_start: bool = True
    """Clients with one architecture start from the same theta, and those with other outputs (data.tasks) from the same
    layers before the last one; otherwise each draws its own."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of theta, of gradients, and of vectors on the wire without a transport.codec."""


class TrainingSection(Section):
    """The local work of a round."""

    work: Literal["full", "steps", "epochs"] = "full"
    """full: one step on all training samples; steps: mini-batch steps; epochs: passes over the training samples."""
    alpha: Positive = 0.1
    """Learning rate."""
    steps: Annotated[Count, Needs("work", "steps")] = 1
    """steps: mini-batch steps a round."""
    epochs: Annotated[Count, Needs("work", "epochs")] = 1
    """epochs: passes a round."""
    batch_size: Annotated[Count, Needs("work", "steps", "epochs")] = 32
    """Samples of a mini-batch."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of SGD, kept between rounds."""
    l2: Annotated[float, Field(ge=0)] = 0.0
    """Weight of l2/2 ||theta||^2 in the local loss."""


class EvaluationSection(Section):
    """When the test samples are looked at. Round 0 and the last round always are."""

    every: Annotated[int, Field(ge=0)] = 1
    """Rounds between evaluations; 0 evaluates only at the start and the end."""


class CheckpointSection(Section):
    """When state is written. Round 0 and the last round always are."""

    every: Annotated[int, Field(ge=0)] = 0
    """Rounds between checkpoints; 0 writes only the first and the last."""
    save_maps: bool = False
    """Also write every restriction map as a dense matrix P.<neighbour> (large)."""


class TransportSection(Section):
    """How vectors move."""

    protocol: Literal["ipc", "tcp"] = "ipc"
    """ipc: Unix sockets in a private folder; tcp: ports of ``host``."""
    host: Annotated[str, Needs("protocol", "tcp")] = "127.0.0.1"
    """tcp: the IPv4 address of this machine that data sockets are bound to."""
    keys: Annotated[bool, Needs("protocol", "tcp")] = True
    """tcp: clients prove who they are with keys made for the run, and nobody else can read what they send (see
    docs/security.md); false: plain, allowed on loopback addresses (127.x.x.x) only."""
    timeout: Positive = 600.0
    """Seconds a client waits for its neighbours in one exchange before the run fails."""
    codec: CodecName = "none"
    """How vectors travel. none: as they are; float16, bfloat16: 2 bytes a number, to the nearest; int8: 1 byte a
    number, rounded at random but right on average; top-k: the largest entries only, and what is left out is added to
    the next vector. See docs/codecs.md."""
    codec_between: Literal[CodecName, "same"] = "same"
    """The same on edges between clients on two hosts, where bytes cost more."""
    keep: Annotated[float, Field(gt=0, le=1), Needs("codec or codec_between", "top-k")] = 0.1
    """top-k: share of the entries that are sent, each with its place: 8 bytes with model.dtype = "float32"."""

    @property
    def between(self) -> CodecName:
        return self.codec if self.codec_between == "same" else self.codec_between

    @model_validator(mode="after")
    def _reachable(self) -> TransportSection:
        try:
            address = ipaddress.IPv4Address(self.host)
        except ValueError:
            raise ValueError(f"host = {self.host!r} is not an IPv4 address such as 127.0.0.1") from None
        if address.is_unspecified or address.is_multicast:
            raise ValueError(f"host = {self.host!r} is none that neighbours can connect to; name a single address")
        if not self.keys and not address.is_loopback:
            raise ValueError(f"host = {self.host!r} needs keys = true; without keys it must be 127.x.x.x")
        return self

    @property
    def keyed(self) -> bool:
        """Whether data sockets have keys; over ipc they need none."""
        return self.keys and self.protocol == "tcp"


class PlacementSection(Section):
    """Which client runs on which host, where there are several: docs/cluster.md."""

    by: Literal["partition", "round-robin", "random"] = "partition"
    """partition: so that few edges lead from one host to another (METIS); round-robin: in turn; random: drawn."""
    hosts: Annotated[int, Field(ge=0)] = 0
    """With --engine ray: at most so many of the cluster's hosts; 0 takes all. With the local engine: so many hosts that
    this machine stands for, to see what would go between them."""
    clients_a_core: NotNegative = 0.0
    """How many clients a host runs for each of its cores, at most; 0 sets no limit."""
    memory_gb: NotNegative = 0.0
    """Memory that clients may take on a host, by the estimate that is made before the start; 0: all that is free."""


class MeasuringSection(Section):
    """What is measured beside the rounds."""

    enabled: bool = True
    """false: traffic, edges, memory, CPU time and work are not recorded; rounds, events and processes are."""
    every: Annotated[Positive, Needs("enabled")] = 1.0
    """Seconds between two samples of a client's memory and CPU time (taken at the end of a round); more where samples
    would take over 0.5% of its CPU time."""
    kernel: Annotated[bool, Needs("enabled"), Needs("transport.protocol", "tcp")] = False
    """tcp on Linux: also record the kernel's own byte counters of every connection."""


if TYPE_CHECKING:
    AlgorithmSection = Any
else:
    AlgorithmSection = Annotated[
        Union[tuple(algorithm.Settings for algorithm in ALGORITHMS.values())],  # noqa: UP007 (made from the table)
        Field(discriminator="name"),
    ]


class RunConfig(Section):
    """One run, completely: the same values give the same bits."""

    name: Annotated[str, Field(max_length=100)] = ""
    """What the run is called in tables; by default the algorithm's name."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Every random draw of the run follows from it."""
    clients: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    """Client processes. "all" makes them as many as the samples have owners."""
    rounds: Annotated[int, Field(ge=1, le=1_000_000_000)] = 100
    """Rounds of local work and exchange."""
    topology: TopologySection = TopologySection()
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    training: TrainingSection = TrainingSection()
    algorithm: AlgorithmSection = ALGORITHMS["sheaf-fmtl"].Settings()
    """Settings of the algorithm that ``algorithm.name`` chooses."""
    evaluation: EvaluationSection = EvaluationSection()
    checkpoints: CheckpointSection = CheckpointSection()
    transport: TransportSection = TransportSection()
    placement: PlacementSection = PlacementSection()
    measuring: MeasuringSection = MeasuringSection()
    time: TimeSection = TimeSection()
    compute: ComputeSection = ComputeSection()
    stragglers: StragglerSection = StragglerSection()
    links: LinksSection = LinksSection()
    faults: tuple[FaultTable, ...] = ()
    """What goes wrong, and when."""
    chaos: ChaosSection = ChaosSection()

    @model_validator(mode="after")
    def _placed(self) -> RunConfig:
        if self.placement.hosts > self.clients:
            raise ValueError(f"placement.hosts = {self.placement.hosts}: allowed are 0 to {self.clients}, one a client")
        return self

    @property
    def has_scenario(self) -> bool:
        """Whether anything but the machine itself decides on time."""
        return any(
            getattr(self, name) != RunConfig.model_fields[name].default
            for name in ("time", "compute", "stragglers", "links", "faults", "chaos")
        )

    @property
    def label(self) -> str:
        return self.name or self.algorithm.name

    def to_toml(self) -> str:
        """The resolved configuration; reading it again gives an equal one."""
        return tomli_w.dumps(RunConfig.__pydantic_serializer__.to_python(self, mode="json", exclude_none=True))


def load(path: Path, overrides: Sequence[str] = (), setting: Mapping[str, Any] | None = None) -> list[RunConfig]:
    """The runs that a configuration file describes: one, or one for each of its [[compare]] tables.

    ``overrides`` are "key=value" texts; they win over the file, a [[compare]] table wins over them, and ``setting``,
    {key with dots: value}, over all. Relative paths start at the file's folder, those in overrides and setting at the
    current one. Raises ConfigError.
    """
    tree = read(path)
    tree.pop("reproduction", None)  # what `sheafgossip reproduce` says of the runs
    several = bool(tree.get("compare"))
    variants = tree.pop("compare", None) or [{}]
    wanted, last = _overrides(overrides), _tree(setting or {}, "--grid")
    if "compare" in wanted:
        raise ConfigError("--set compare: [[compare]] tables are written in the file")

    def runs(wanted: dict[str, Any], last: dict[str, Any]) -> list[RunConfig]:
        below = _merge(tree, wanted)
        return [
            _validated(_merge(_merge(below, variant), last), setting or {}, number if several else 0)
            for number, variant in enumerate(variants, 1)
        ]

    _require_a_taker(_keys(wanted) - _keys(last), _merge(tree, wanted), variants)
    configs = runs(wanted, last)
    try:
        as_written = runs({}, {}) if wanted or last else configs
    except ConfigError:  # only with what the command line adds is the file whole
        as_written = configs
    _require_effects(path, as_written)
    if not last:  # else the sweep sees to all points of its grids
        refuse_without_effect(overrides, configs)
    return configs


def _validated(tree: dict[str, Any], setting: Mapping[str, Any], table: int) -> RunConfig:
    """``table`` numbers the [[compare]] table that it comes from; 0: there is none. Raises ConfigError."""
    try:
        return validate(_counted(tree))
    except ConfigError as error:
        run = [f"{key} = {value}" for key, value in setting.items()]
        run += [f"[[compare]] table {table}"] if table else []
        raise ConfigError(*(f"{line} ({', '.join(run)})" if run else line for line in error.args)) from None


def refuse_without_effect(overrides: Sequence[str], configs: Sequence[RunConfig], option: str = "--set") -> None:
    """Raises ConfigError where an override of the command line has no effect in any of the runs."""
    refuse({key: f"{option} {text}: " for text in overrides for key in _keys(_overrides([text]))}, configs)


def _require_effects(path: Path, configs: Sequence[RunConfig]) -> None:
    """What a file says itself, and not the one that it starts from, has an effect. Raises ConfigError."""
    tree = parse_toml(read_text(path))
    variants = tree.pop("compare", [])
    refuse(dict.fromkeys(_keys(tree), ""), configs)
    for variant, config in zip(variants, configs, strict=False):
        refuse(dict.fromkeys(_keys(variant), ""), [config])


def _keys(tree: Mapping[str, Any]) -> KeysView[str]:
    """a.b of {"a": {"b": 1}}; tables in a list are numbered."""
    return flat(tree, lists=True).keys()


def _require_a_taker(wanted: Iterable[str], below: dict[str, Any], variants: Sequence[dict[str, Any]]) -> None:
    """Raises ConfigError where [[compare]] tables leave nothing of an override."""
    for key in sorted(wanted):
        if not any(_comes_through(key, below, variant) for variant in variants):
            raise ConfigError(
                f"--set {key}: every [[compare]] table of the file sets it, or another algorithm, and wins; change it "
                "there, or take a file without [[compare]] tables"
            )


def _comes_through(key: str, below: dict[str, Any], variant: dict[str, Any]) -> bool:
    """Whether a [[compare]] table leaves ``key`` of what is outside of it as it is."""
    section = key.partition(".")[0]
    if section == "algorithm" and _names_another(below.get(section), variant.get(section)):
        return False
    return not any(key == set_ or key.startswith(f"{set_}.") for set_ in _keys(variant))


def read(path: Path, above: Sequence[Path] = ()) -> dict[str, Any]:
    """The tables of a file on top of those of its ``base``, paths made absolute. Raises ConfigError.

    ``above`` are the files that this one is the base of.
    """
    included = f" (the base of {above[0]})" if above else ""
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}{included}") from None
    try:
        tree = parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}{included}") from None
    variants = tree.get("compare", [])
    if not isinstance(variants, list) or not all(isinstance(variant, dict) for variant in variants):
        raise ConfigError(f"{path}: compare must be written as [[compare]] tables")
    for part in (tree, *variants):
        _absolute_paths(part, path.parent)
    base = tree.pop("base", None)
    if base is None:
        return tree
    below = path.parent / str(base)
    if (
        not isinstance(base, str)
        or not base
        or _resolved(path.parent, base, f"{path}: base") in {file.resolve() for file in (path, *above)}
    ):
        raise ConfigError(f"{path}: base = {base!r}: must be the name of another configuration file")
    return _merge(read(below, (path, *above)), tree)


def validate(tree: dict[str, Any]) -> RunConfig:
    """Raises ConfigError with a line for each key at fault."""
    try:
        # Strict, so that true is no number; as JSON, so that a list may become a tuple all the same
        return RunConfig.model_validate_json(json.dumps(tree, default=str), strict=True)
    except ValidationError as error:
        raise ConfigError(*explain(error, tree, RunConfig)) from None


def _counted(tree: dict[str, Any]) -> dict[str, Any]:
    """With the number of clients that "all" stands for. Raises ConfigError."""
    if tree.get("clients") != _ALL:
        return tree
    from ..data import DataError, count_clients

    config = validate(tree | {"clients": 1})
    try:
        return tree | {"clients": count_clients(config.data, config.seed)}
    except DataError as error:
        raise ConfigError(str(error)) from None


_ALL = "all"
_PATH_KEYS = (("topology", "path"), ("data", "root"), ("stragglers", "path"), ("algorithm", "encoder"))


def _absolute_paths(tree: dict[str, Any], start: Path) -> dict[str, Any]:
    for section, key in _PATH_KEYS:
        values = tree.get(section)
        if isinstance(values, dict) and isinstance(values.get(key), str) and values[key]:
            values[key] = str(_resolved(start, values[key], f"{section}.{key}"))
    return tree


def _resolved(start: Path, name: str, key: str) -> Path:
    try:
        return (start / Path(name).expanduser()).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # nobody of that name, links in a circle, a zero byte
        raise ConfigError(f"{key} = {name!r}: is no path ({error})") from None


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Tables merge key by key; a table that names another algorithm replaces the whole one."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            merged[key] = value if key == "algorithm" and _names_another(below, value) else _merge(below, value)
        else:
            merged[key] = value
    return merged


def _names_another(below: Any, over: Any) -> bool:
    """Whether a table [algorithm] starts anew."""
    name = below.get("name") if isinstance(below, dict) else None
    return isinstance(over, dict) and over.get("name", name) != name


def _overrides(texts: Sequence[str]) -> dict[str, Any]:
    values = {}
    for text in texts:
        if any("\ud800" <= letter <= "\udfff" for letter in text):  # bytes of a shell that are no letters
            raise ConfigError(f"--set {text}: is not UTF-8 text")
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {text}: write it as key=value, for example --set training.alpha=0.05")
        values[key.strip()] = parse(value)
    return _tree(values, "--set")


def parse(value: str) -> Any:
    """As in TOML; bare words need no quotes."""
    try:
        return parse_toml(f"value = {value}")["value"]
    except ValueError:
        return value.strip()


def _tree(values: Mapping[str, Any], option: str) -> dict[str, Any]:
    """{"a.b": 1} as {"a": {"b": 1}}, from an option of the command line."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *sections, last = key.split(".")
        if not all((*sections, last)):
            raise ConfigError(f"{option} {key}: a part of the key is missing, as in training.alpha")
        table = tree
        for section in sections:
            table = table.setdefault(section, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{option} {key}: {section} is a value, not a section")
        table[last] = value
    return _absolute_paths(tree, Path.cwd())
