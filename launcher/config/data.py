"""The sections of the configuration about data."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from annotated_types import Ge, Gt, Le, Lt

from ...topology.errors import UserError
from ...topology.section import Count, Fraction, Index, Needs, NotNegative, Positive, Section


class ConfigError(UserError):
    """A configuration is wrong: a line for each key at fault."""


@dataclass(frozen=True)
class SyntheticTable(Section):
    """The tasks of data.dataset = "synthetic": one a client, alike within a group."""

    groups: Annotated[Count, "Groups of clients, of equal size, with one task in common but for the deviation."] = 4
    dimensions: Annotated[Count, "Features of a sample."] = 20
    classes: Annotated[int, Ge(2), Needs("data.task", "classification"), "classification: how many classes."] = 2
    samples: Annotated[int, Ge(4), "Samples of a client, for training and for testing together."] = 100
    deviation: NotNegative = 0.1
    """How far a client's parameters are from its group's, as a share of their size."""
    noise: NotNegative = 0.1
    """Standard deviation of the noise on the targets, or on the scores of the classes; without noise and deviation they
    have deviation 1."""


@dataclass(frozen=True)
class ClustersTable(Section):
    """The clusters of data.partition = "clusters": contiguous blocks of clients, of equal size, that share classes."""

    count: Annotated[Count, "How many."] = 5
    classes: Count = 2
    """Classes of a cluster, drawn at random; the last has fewer where they do not suffice for all."""
    overlap: Annotated[Index, "How many of these the next cluster has, too (the first is next to the last)."] = 0
    related: bool = False
    """A cluster has classes that are alike, the five of one superclass of cifar100 for one, else of consecutive
    numbers; false draws them."""
    exponent: NotNegative = 0.0
    """0: the samples of a cluster are split evenly over its clients; above: its m-th client has about smallest +
    exp(b m**exponent) of them, with a b that deals out all."""
    smallest: Annotated[Count, Needs("exponent"), "With an exponent: samples of the smallest client, less one."] = 20


Angle = Annotated[int, Ge(0), Lt(360)]  # degrees


@dataclass(frozen=True)
class DriftTable(Section):
    """Tasks that change while they are learned."""

    at_round: Annotated[Count, "The first round with the new tasks."]
    rotations: tuple[Angle, ...]
    """The angles of the groups from then on, as many as data.rotations. Each client keeps its images, those that it is
    tested on too, and turns them so."""


Task = Literal["classification", "regression"]
_Images = Literal["mnist", "fashion-mnist", "emnist", "cifar10", "cifar100"]
_Pictures = Literal["folders", "compcars", "adience"]
_Files = Literal[_Images, _Pictures, "school", "har", "vehicle", "gleam", "sensors", "leaf"]
_InFiles = Literal[_Files, "npz", "table", "huggingface"]
_COLUMNS = ("table", "huggingface", "own")  # own, where it returns a data set of Hugging Face
_Partition = Literal["auto", "even", "classes", "clusters", "dirichlet", "quantity", "overlapping", "natural"]


@dataclass(frozen=True)
class DataSection(Section):
    """What is learned, and how it is spread over the clients."""

    dataset: Literal["digits", _InFiles, "synthetic", "own"] = "digits"
    """digits comes with scikit-learn (1,797 images of 8x8), synthetic is drawn; npz is your own file with arrays x, y
    and optionally their owners, table one with named columns, huggingface a folder of that library, folders one of
    pictures in DOMAIN/CLASS; own is what ``use`` returns. Each is described in docs/data.md."""
    use: str = ""
    """Your own data, "FILE.py:NAME" or "package.module:NAME": a function that the launcher alone calls, with
    ``options``. It returns (x, y), or (x, y, client) with the owner of each sample; a dict with x, y and client; a data
    set of such tuples, as torch has them; a Dataset of Hugging Face; or {"train": ..., "test": ...} of these, whose
    split can be kept (``split``)."""
    options: Annotated[dict[str, Any], Needs("use"), "Keyword arguments of that function."] = field(
        default_factory=dict, hash=False
    )
    root: Annotated[Path | None, Needs("dataset", *get_args(_InFiles))] = None
    """Folder with the data set's files, or the file where it is one; without it, mnist, fashion-mnist and cifar10 are
    downloaded to a cache."""
    task: Annotated[Task, Needs("dataset", "npz", "table", "huggingface", "synthetic", "own")] = "classification"
    """npz, table, huggingface, synthetic, own: what the target is; school and sensors are regression, the others
    classification."""
    target: Annotated[str, Needs("dataset", *_COLUMNS)] = "target"
    """table, huggingface: the column to be predicted; huggingface without such a column: the one of labels."""
    client: Annotated[str | None, Needs("dataset", "npz", *_COLUMNS)] = None
    """npz, table, huggingface, own: the array or column that names the owner of a sample; "" says that there is none.
    Without this key it is "client", where there is one."""
    series: Annotated[bool, Needs("dataset", "npz", "huggingface", "own")] = False
    """npz, huggingface, own: x of shape (n, steps, features) holds series, and not images of one channel."""
    features: Annotated[tuple[str, ...], Needs("dataset", *_COLUMNS)] = ()
    """table, huggingface: the columns to learn from; without this key all but target, client and those of data.drop,
    and of a huggingface data set only the pictures, if it has some."""
    drop: Annotated[tuple[str, ...], Needs("dataset", *_COLUMNS), "table, huggingface: columns that are left out."] = ()
    text: Annotated[Literal["refuse", "one-hot"], Needs("dataset", "table")] = "refuse"
    """table: what to do with columns of text. one-hot: each of its texts becomes a feature that is 1 in rows with this
    text and 0 in the others; a column of more than 64 different texts is refused all the same."""
    missing: Annotated[Literal["refuse", "drop"], Needs("dataset", "table")] = "refuse"
    """table: what to do with rows in which a value is missing. drop: they are left out."""
    window: Annotated[Count, Needs("dataset", "sensors"), "sensors: how many past values a sample shows."] = 12
    horizon: Annotated[Count, Needs("dataset", "sensors")] = 1
    """sensors: how many values that follow are to be predicted."""
    years: Annotated[tuple[int, int] | None, Needs("dataset", "sensors")] = None
    """sensors, of NOAA's file of temperatures alone: the first year that is taken, and the last."""
    subset: Annotated[
        Literal["balanced", "byclass", "bymerge", "letters", "digits", "mnist"], Needs("dataset", "emnist")
    ] = "balanced"
    """emnist: which of its six sets, with 47, 62, 47, 26, 10 and 10 classes."""
    superclasses: Annotated[bool, Needs("dataset", "cifar100")] = False
    """cifar100: the 20 superclasses are to be told, and not the 100 classes."""
    image_size: Annotated[int, Ge(0), Le(1024), Needs("dataset", *get_args(_Pictures))] = 0
    """folders, compcars, adience: height and width that all pictures are resized to; 0 leaves them, and all must have
    one size."""
    words: Annotated[Index, Needs("dataset", "leaf")] = 0
    """leaf: whole texts (Sent140) become counts of their words, each at one of so many places, by its hash; 0 refuses
    such texts."""
    synthetic: Annotated[SyntheticTable, Needs("dataset", "synthetic")] = SyntheticTable()
    """synthetic: how tasks and samples are drawn."""
    samples: Annotated[Index, "Use only this many samples, drawn at random; 0 uses all."] = 0
    partition: _Partition = "auto"
    """even: shuffled and split evenly; classes: a few classes a client; clusters: clusters of clients that share
    classes; dirichlet: class shares drawn from Dirichlet(beta); quantity: sizes follow a power law; overlapping: each
    client draws samples_each from all samples, so that several may hold the same one, and one client's test sample may
    be another's training sample; natural: each client has the samples of one owner (a random choice of owners where
    clients is smaller); auto: natural where samples have owners, else even."""
    classes_per_client: Annotated[Count, Needs("partition", "classes"), "classes: how many classes a client holds."] = 2
    imbalance: Annotated[float, Ge(0), Lt(1), Needs("partition", "classes")] = 0.0
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
    min_samples: Annotated[Index, Needs("partition", "auto", "natural")] = 0
    """natural: owners with fewer samples are left out."""
    clients_per_owner: Annotated[Count, Needs("partition", "auto", "natural")] = 1
    """natural: the samples of each owner are split evenly, at random, among so many clients."""
    rotations: tuple[Angle, ...] = (0,)
    """Clients form as many groups of equal size as angles are given; a group's images are turned by its angle, in
    degrees, counter-clockwise. Multiples of 90 move pixels; others interpolate between them, with 0 outside the image.
    """
    mask: Index = 0
    """After the turn, a square of so many pixels a side is set to 0 in all images of a client, at a place drawn for
    each client; 0 masks nothing."""
    tasks: tuple[Literal["classes", "parity", "halves", "pairs", "one"], ...] = ("classes",)
    """Classification: what clients are to tell of a sample, dealt to them in turn. classes: its class, as the data set
    has it; parity: whether the class's number is odd; halves: whether it is in the upper half; pairs: the number's
    half, rounded down; one: whether it is ``one_class``. For a digit that is the digit, whether it is odd, whether it
    is at least five, and which of 0 or 1, 2 or 3, .. it is."""
    one_class: Index = 0
    """The class that the task one tells from all others."""
    drift: DriftTable | None = None
    """Groups of clients whose images are turned otherwise from some round on."""
    test_fraction: Annotated[float, Gt(0), Lt(1), "Share of each client's samples that is kept for testing."] = 0.25
    split: Literal["auto", "random", "official"] = "auto"
    """Which samples those are. random: drawn; official: those that the data set has for testing (mnist, fashion-mnist,
    emnist, cifar10, cifar100, har, leaf, npz, huggingface, folders, adience, own; a client needs one of either kind,
    and test_fraction has no part); auto: official where leaf, huggingface, folders or own data has some, else drawn."""
    evaluate_on: Literal["test", "validation"] = "test"
    """What models are evaluated on. test: the samples kept for testing; validation: the same share of each client's
    training samples, held out of them, while the test samples are in no shard: for choosing settings."""
    reduced_clients: Annotated[Fraction, "Share of the clients (drawn at random) whose training data is cut."] = 0.0
    reduced_to: Annotated[float, Gt(0), Le(1), Needs("reduced_clients")] = 0.2
    """What is left of the training data of those clients: 0.2 keeps a fifth."""
    features_held: Annotated[float, Gt(0), Le(1)] = 1.0
    """Share of the input features that each client sees, drawn at random; a server sees all of them. Below 1 the
    models are logistic, linear or an mlp without model.mix, and images are flattened."""
    features_from: Path | None = None
    """Instead: CSV file with the columns client and feature, both from 0; a line for each feature that a client sees.
    """
    standardize: bool = False
    """Shift and scale every feature of a client to mean 0 and deviation 1 by its own training samples."""
    standardize_targets: bool = False
    """Regression: the same for every target; errors are then in units of the client's own deviation."""

    @property
    def holds_features(self) -> str:
        """What has clients see some features only, as a message tells it; "" where they see all."""
        if self.features_from:
            return "data.features_from gives each client some features"
        return "data.features_held is below 1" if self.features_held < 1 else ""

    def __post_init__(self) -> None:
        if self.features_from and self.features_held < 1:
            raise ValueError("features_held and features_from exclude each other: give one of them")
        if self.use and self.dataset in ("digits", "own"):
            object.__setattr__(self, "dataset", "own")
        elif self.use or self.dataset == "own":
            raise ValueError(f'dataset = {self.dataset!r}: with use it is "own", without it is not')
