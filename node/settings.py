"""The sections of the configuration that clients read, too."""

import ipaddress
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen

from ..metrics.text import TEST_METRICS
from ..topology.section import Count, Index, Needs, NotNegative, Positive, Read, Section, WordOrTable
from ..transport.codecs import CodecName


def _of_each(value: Any) -> Any:
    return (value,) if type(value) in (int, str) else tuple(value) if isinstance(value, list) else value


def _padding(value: Any) -> bool | tuple[int, ...]:
    zeros = value if isinstance(value, list | tuple) else [value]
    if type(value) is not bool and not all(type(n) is int and n >= 0 for n in zeros):
        raise ValueError("must be true or false, or how many zeros, such as 1 or [2, 0]")
    return value if type(value) is bool else tuple(zeros)


_OfEach = Annotated[tuple[Count, ...], Read(_of_each), Needs("kind", "cnn")]


@dataclass(frozen=True, kw_only=True)
class LayerSettings(Section):
    """The layers of a model."""

    kind: Literal["logistic", "linear", "mlp", "cnn", "gru", "own"] = "logistic"
    """logistic: multinomial logistic regression; linear: linear regression; mlp and cnn with a last linear layer; gru:
    for series, a gated recurrent unit whose last state a linear layer reads; own: the one that ``use`` makes."""
    filters: Annotated[tuple[Count, ...], Needs("kind", "cnn")] = (32, 64)
    """cnn: filters of each convolution (ReLU and max-pool after each). The next four keys take a number, or a list with
    one for each convolution."""
    kernel: Annotated[_OfEach, "cnn: weights of a convolution's filter a side."] = (3,)
    stride: Annotated[_OfEach, "cnn: pixels from one place of a filter to the next."] = (1,)
    padding: Annotated[bool | tuple[Index, ...], Read(_padding), Needs("kind", "cnn")] = False
    """cnn: zeros on each side of the image; true: as many as keep its size where the stride is 1."""
    pool: Annotated[_OfEach, "cnn: pixels a side of which max-pool takes the largest; 1: all stay."] = (2,)
    norm_groups: Annotated[Index, Needs("kind", "cnn")] = 0
    """cnn: channels are normalized in so many groups after each convolution (GroupNorm); 0 leaves them as they are."""
    hidden: Annotated[tuple[Count, ...], Needs("kind", "mlp", "cnn", "gru")] = ()
    """mlp, cnn: widths of the hidden fully connected layers; gru: the width of its state, one number."""
    dropout: Annotated[float, Ge(0), Lt(1), Needs("hidden")] = 0.0
    """Share of each hidden layer's outputs, or of a GRU's last state, that a training step leaves out at random."""
    head: Annotated[tuple[str, ...], Read(_of_each)] = ()
    """Layers or parameters that are the model's head, such as "fc" for fc.weight and fc.bias, or patterns, such as
    ["fc", "layer4.*.conv*"]; all others are its body. By default the head is the last layer."""


@dataclass(frozen=True)
class ArchitectureSettings(LayerSettings):
    """A model; ``share`` counts where several are mixed."""

    share: Annotated[Positive, Needs("model.mix")] = 1.0
    """With several architectures: this one's share of the clients, relative to the others."""
    use: str = ""
    """Your own model, "FILE.py:NAME" or "package.module:NAME": a function that is called with the shape of a sample,
    the number of outputs and ``options``, and returns a torch.nn.Module that makes (samples, outputs). theta is its
    trainable parameters, flattened in their order. Frozen parameters and buffers, such as the running means of batch
    normalization, stay with the client, and buffers are part of its state. What layers draw, as dropout does, follows
    from the run's seed. Algorithms that treat the head by itself need a ``head``, or a torch.nn.Linear with a bias as
    the last two parameters."""
    options: Annotated[dict[str, Any], Needs("use")] = field(default_factory=dict)
    """Keyword arguments of that function."""

    def __post_init__(self) -> None:
        if self.use and self.kind in ("logistic", "own"):
            object.__setattr__(self, "kind", "own")
        elif self.use or self.kind == "own":
            raise ValueError(f'kind = {self.kind!r}: with use it is "own", without it is not')


@dataclass(frozen=True)
class ModelSettings(ArchitectureSettings):
    """The clients' model."""

    mix: tuple[ArchitectureSettings, ...] = ()
    """Further architectures; clients are dealt among [model] and these in proportion to their shares."""
    init: Literal["uniform", "zeros"] = "uniform"
    """Start of theta: uniform in +-1/sqrt(fan-in), or zeros (logistic and linear only)."""
    same_start: bool = True
    """Clients with one architecture start from the same theta, and those with other outputs (data.tasks) from the same
    layers before the last one; otherwise each draws its own."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of theta, of gradients, and of vectors on the wire without a transport.codec."""


@dataclass(frozen=True)
class LossSettings(Section):
    """Your own loss, in place of cross-entropy or the squared error."""

    use: str = ""
    """"FILE.py:NAME" or "package.module:NAME": a function of the model's outputs (samples, outputs), the targets, and
    ``options`` that returns the loss of each sample, all as torch tensors."""
    options: Annotated[dict[str, Any], Needs("use"), "Keyword arguments of that function."] = field(
        default_factory=dict
    )


@dataclass(frozen=True)
class OptimizerSettings(Section):
    """Any other optimizer, in place of a word."""

    use: str
    """"package.module:NAME", such as "torch.optim:Adagrad", or "FILE.py:NAME": a subclass of torch.optim.Optimizer that
    is made with the model's parameters, ``alpha`` as lr, which follows ``schedule``, and ``options``, and needs no
    closure. It gets clipped gradients; its tensors and numbers, of parameters and groups, are kept between rounds and
    in checkpoints. It costs a run 6 s of CPU time, and each client 5 MB."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of that class."""


_Beta = Annotated[float, Ge(0), Lt(1)]


@dataclass(frozen=True)
class Training(Section):
    """The local work of a round."""

    work: Literal["full", "steps", "epochs"] = "full"
    """full: one step on all training samples; steps: mini-batch steps; epochs: passes over the training samples."""
    alpha: Annotated[Positive, "Learning rate."] = 0.1
    steps: Annotated[Count, Needs("work", "steps"), "steps: mini-batch steps a round."] = 1
    epochs: Annotated[Count, Needs("work", "epochs"), "epochs: passes a round."] = 1
    batch_size: Annotated[Count, Needs("work", "steps", "epochs"), "Samples of a mini-batch."] = 32
    optimizer: Annotated[Literal["sgd", "adam", "adamw"] | OptimizerSettings, WordOrTable()] = "sgd"
    """What a local step makes of its gradient; what it keeps is kept between rounds."""
    momentum: Annotated[float, Ge(0), Lt(1), Needs("optimizer", "sgd"), "Momentum of SGD, kept between rounds."] = 0.0
    betas: Annotated[tuple[_Beta, ...], MinLen(2), MaxLen(2), Needs("optimizer", "adam", "adamw")] = (0.9, 0.999)
    """adam, adamw: what is left, after a step, of the means of gradients and of their squares."""
    weight_decay: Annotated[NotNegative, Needs("optimizer", "adamw")] = 0.01
    """adamw: each step also takes alpha * weight_decay * theta from theta."""
    clip: NotNegative = 0.0
    """A gradient of a mini-batch that is longer is scaled down to this norm; 0 leaves all as they are."""
    schedule: Literal["constant", "step", "cosine"] = "constant"
    """How alpha goes on. step: times ``schedule_factor`` after every ``schedule_every`` rounds; cosine: down along half
    a cosine, to 0 after the last round."""
    schedule_every: Annotated[Count, Needs("schedule", "step"), "step: rounds between two cuts of alpha."] = 50
    schedule_factor: Annotated[float, Gt(0), Le(1), Needs("schedule", "step"), "step: what a cut leaves of it."] = 0.5
    l2: Annotated[NotNegative, "Weight of l2/2 ||theta||^2 in the local loss."] = 0.0
    loss: LossSettings = LossSettings()
    """Your own loss, if not the task's: cross-entropy, or the squared error."""

    @property
    def optimizer_use(self) -> str:
        """Where the optimizer is, if it is none of the words."""
        return "" if isinstance(self.optimizer, str) else self.optimizer.use

    @property
    def is_plain(self) -> bool:
        """Whether a local step is theta <- theta - alpha grad f(theta)."""
        return self.optimizer == "sgd" and not self.momentum and not self.clip

    def alpha_in(self, round: int, rounds: int) -> float:
        """Returns the learning rate of a round, from 1, of so many."""
        if self.schedule == "step":
            return self.alpha * self.schedule_factor ** ((round - 1) // self.schedule_every)
        if self.schedule == "cosine":
            return self.alpha * (1 + math.cos(math.pi * (round - 1) / rounds)) / 2
        return self.alpha

    def count(self, samples: int) -> int:
        if self.work == "full":
            return 1
        if self.work == "steps":
            return self.steps
        return self.epochs * self.a_pass(samples)

    def a_pass(self, samples: int) -> int:
        """Returns how many local steps go over all training samples once."""
        return 1 if self.work == "full" else -(-samples // min(self.batch_size, samples))

    def expected(self, samples: int) -> int:
        """Returns how many samples a full mini-batch has, of so many."""
        return samples if self.work == "full" else min(self.batch_size, samples)

    def samples_of(self, samples: int) -> float:
        """Returns how many samples the steps of a round go over, in the mean over rounds."""
        return samples * self.count(samples) / self.a_pass(samples)


@dataclass(frozen=True)
class MetricSettings(Section):
    """A metric of your own: in table ``metric`` of the records, and beside accuracy wherever figures are shown."""

    use: str
    """"FILE.py:NAME" or "package.module:NAME": a function of the outputs (samples, outputs) for all test samples of a
    client, the targets, and ``options``, as NumPy arrays, that returns a number, or NaN where there is none."""
    name: Annotated[str, MaxLen(100)] = ""
    """What it is called; by default as the function."""
    better: Literal["higher", "lower"] = "higher"
    """Which values are better, where runs are compared and clients that fare worst are told."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of that function."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.use.rpartition(":")[2])
        if self.name in TEST_METRICS:
            raise ValueError(f"name = {self.name!r}: that is what a run's own test metric is called")


@dataclass(frozen=True)
class Evaluation(Section):
    """When the test samples are looked at. Round 0 and the last round always are."""

    every: Annotated[Index, "Rounds between evaluations; 0 evaluates only at the start and the end."] = 1
    metrics: tuple[MetricSettings, ...] = ()
    """Metrics of your own, beside accuracy or the squared error."""
    confusion: bool = False
    """Classification, up to 1,000 classes: each client's confusion matrix on its test samples after the last round, in
    table ``confusion``; the summary tells the most frequent mistakes."""
    train: bool = False
    """Also that of the same models on all training samples, as metric train_accuracy or train_mse."""
    fine_tune: Index = 0
    """Steps that each client's own model takes on all of its training samples, at the rate of [training], before it is
    tested. They change nothing of the training."""

    def __post_init__(self) -> None:
        names = [metric.name for metric in self.metrics] + [f"train_{name}" for name in TEST_METRICS if self.train]
        if twice := [name for number, name in enumerate(names) if name in names[:number]]:
            raise ValueError(f"metrics: two are called {twice[0]}; give one another name")


@dataclass(frozen=True)
class Checkpoints(Section):
    """When state is written. Round 0 and the last round always are."""

    every: Annotated[Index, "Rounds between checkpoints; 0 writes only the first and the last."] = 0
    save_maps: Annotated[bool, "Also write every restriction map as a dense matrix P.<neighbour> (large)."] = False


@dataclass(frozen=True)
class Transport(Section):
    """How vectors move."""

    protocol: Annotated[Literal["ipc", "tcp"], "ipc: Unix sockets in a private folder; tcp: ports of ``host``."] = "ipc"
    host: Annotated[str, Needs("protocol", "tcp")] = "127.0.0.1"
    """tcp: the IPv4 address of this machine that data sockets are bound to."""
    keys: Annotated[bool, Needs("protocol", "tcp")] = True
    """tcp: clients prove who they are with keys made for the run, and nobody else can read what they send (see
    docs/security.md); false: plain, allowed on loopback addresses (127.x.x.x) only."""
    emulate: Annotated[bool, Needs("protocol", "tcp")] = False
    """true: on the wall clock the kernel shapes links as [links] has their rates, each client in a network namespace of
    its own; needs Linux and root (see docs/stragglers.md). false: receivers wait as long as the plan's messages take.
    """
    timeout: Positive = 600.0
    """Seconds a client waits for its neighbours in one exchange before the run fails."""
    codec: CodecName = "none"
    """How vectors travel. none: as they are; float16, bfloat16: 2 bytes a number, to the nearest; int8: 1 byte a
    number, rounded at random but right on average; top-k: the largest entries only, and what is left out is added to
    the next vector. See docs/codecs.md."""
    codec_between: Literal[CodecName, "same"] = "same"
    """The same on edges between clients on two hosts, where bytes cost more."""
    keep: Annotated[float, Gt(0), Le(1), Needs("codec or codec_between", "top-k")] = 0.1
    """top-k: share of the entries that are sent, each with its place: 8 bytes with model.dtype = "float32"."""

    def __post_init__(self) -> None:
        try:
            address = ipaddress.IPv4Address(self.host)
        except ValueError:
            raise ValueError(f"host = {self.host!r} is not an IPv4 address such as 127.0.0.1") from None
        if address.is_unspecified or address.is_multicast:
            raise ValueError(f"host = {self.host!r} is none that neighbours can connect to; name a single address")
        if not self.keys and not address.is_loopback:
            raise ValueError(f"host = {self.host!r} needs keys = true; without keys it must be 127.x.x.x")

    @property
    def between(self) -> CodecName:
        return self.codec if self.codec_between == "same" else self.codec_between

    @property
    def keyed(self) -> bool:
        return self.keys and self.protocol == "tcp"


@dataclass(frozen=True)
class Privacy(Section):
    """Differential privacy of every training sample of a client, by DP-SGD in its local work. See docs/privacy.md."""

    clip: NotNegative = 0.0
    """C: what each sample adds to a gradient is scaled down to this norm; 0: no privacy."""
    noise: Annotated[NotNegative | None, Needs("clip")] = None
    """Standard deviation of the normal noise on the sum of these, in each coordinate, as a multiple of ``clip``; 0 only
    clips, and no epsilon holds."""
    epsilon: Annotated[Positive | None, Needs("clip")] = None
    """Instead of ``noise``: what no client's epsilon is to be above after all rounds; the noise follows from it."""
    delta: Annotated[float, Gt(0), Lt(1), Needs("clip")] = 1e-5
    """Epsilon is told for this delta, which has to be below 1 / training samples of each client."""
    correlated: Annotated[NotNegative, Needs("clip")] = 0.0
    """Standard deviation of more noise, likewise, that each two neighbours draw together and add with opposite signs:
    in the sum over clients it cancels. Epsilon is then against any one of the other clients, which knows its own."""

    def __post_init__(self) -> None:
        if self.correlated and not self.noise:
            raise ValueError(f"correlated = {self.correlated:g} needs a noise above 0, as it cancels where all is seen")
        if self.clip and (self.noise is None) == (self.epsilon is None):
            given = "clip needs one of them" if self.noise is None else "they exclude each other"
            raise ValueError(f"noise and epsilon: {given}; epsilon finds the noise")


@dataclass(frozen=True)
class VectorLog(Section):
    """What clients send, kept for `sheafgossip leak`."""

    mb: NotNegative = 0.0
    """Keeps what every message carried, as its receiver decodes it, and the sender's theta, in at most so many MB of
    the run's folder, each client its share; 0 keeps none. It changes no bit of the run."""
    clients: Annotated[tuple[Index, ...], Needs("mb"), "Whose messages are kept; none named: everybody's."] = ()
    every: Annotated[Count, Needs("mb"), "Rounds between two of which messages are kept."] = 1


@dataclass(frozen=True)
class Measuring(Section):
    """What is measured beside the rounds."""

    enabled: bool = True
    """false: traffic, edges, memory, CPU time and work are not recorded; rounds, events and processes are."""
    every: Annotated[Positive, Needs("enabled")] = 1.0
    """Seconds between two samples of a client's memory and CPU time (taken at the end of a round); more where samples
    would take over 0.5% of its CPU time."""
    kernel: Annotated[bool, Needs("enabled"), Needs("transport.protocol", "tcp")] = False
    """tcp on Linux: also record the kernel's own byte counters of every connection."""
    vectors: VectorLog = VectorLog()
    """What clients send, kept for `sheafgossip leak` (see docs/privacy.md)."""


def _staleness(value: Any) -> int | str:
    if value in ("inf", math.inf):
        return "inf"
    if type(value) is not int or value < 0:
        raise ValueError("must be a whole number of at least 0, or inf")
    return value


@dataclass(frozen=True)
class Time(Section):
    """How clients keep step, and which clock tells the time. See docs/stragglers.md."""

    clock: Literal["wall", "virtual"] = "wall"
    """wall: what really happens on this machine; slow clients sleep, deadlines pass. virtual: planned before the start
    from the sections below, the same on every machine; each client uses exactly the messages that the plan names."""
    staleness: Annotated[int | Literal["inf"], Read(_staleness)] = 0
    """How many rounds a client may be ahead of its slowest neighbour: 0 is synchronous, "inf" never waits."""
    silence: Literal["wait", "stale", "skip"] = "wait"
    """When the deadline has passed, or a neighbour is gone: stale uses its last vector, skip and wait leave it out.
    Only wait may go without a deadline."""
    deadline_s: Positive | None = None
    """Seconds that a client waits for its neighbours in one exchange, on the run's clock."""
    notice_s: Annotated[NotNegative, Needs("clock", "virtual")] = 0.0
    """virtual: seconds from a client's end until its neighbours know of it and wait no more."""
    deaths: Literal["fail", "continue"] = "fail"
    """What the run does when a client dies that should not: end with an error, or go on without it."""
    replay: Annotated[Path | None, Needs("clock", "virtual")] = None
    """virtual: file with what a run on the wall clock has used, which `sheafgossip replay` writes; it happens again."""

    def __post_init__(self) -> None:
        if self.silence != "wait" and self.deadline_s is None and self.staleness != "inf":
            raise ValueError(f"silence = {self.silence!r} needs deadline_s")
