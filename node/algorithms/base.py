"""What an algorithm is: its settings, what is fixed about it, what travels on an edge, and one round."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from ...topology import Graph, GraphSequence
from ...topology.errors import UserError
from ...topology.section import Section
from ...transport.peers import Peers
from ..assignment import Assignment
from ..client import Client
from ..maps import Maps
from ..model.architecture import Architecture

_T = TypeVar("_T")


class SettingsError(UserError):
    """Settings that do not fit the run: ``SettingsError("algorithm.way", "must be ...")``."""

    def __init__(self, key: str, message: str):
        super().__init__(f"{key}: {message}")


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What is fixed about an algorithm with its settings: what it needs, and what it can stand."""

    same_size: bool = False
    """It compares whole models: neighbours of different sizes are refused."""
    tolerates: Literal["late", "missing", "nothing"] = "late"
    """What may happen to a message: it may come in another round, or never (late); only never (missing); or neither. A
    scenario that does more is refused. Where messages may be missing, the result of ``peers.exchange`` lacks those
    senders."""
    more_tolerant: str = ""
    """Settings with which it would tolerate more, as the user would write them, for that refusal."""
    no_scenario: str = ""
    """Why no scenario can be planned for it, as a line for the user."""
    codec_may_drop: Literal["entries", "digits", "nothing", "by tolerance"] = "by tolerance"
    """What a codec may take from a vector: digits, as rounding does, or even entries, which come later then: only where
    a round goes a small step towards what it hears, so that many rounds add up. Nothing where both ends compute
    something that must stay alike, or a sum that must stay the same. By default digits; nothing where it tolerates
    nothing."""
    changing_graphs: bool = False
    """The graph may be another one in each round: nothing is kept for an edge, and no W has to last."""
    directed_graphs: Literal["none", "regular", "all"] = "none"
    """On which directed graphs it works; regular ones have a doubly stochastic W. It sends to ``client.successors``
    then, and hears from ``client.predecessors``."""
    learns_first: bool = False  # local work comes before the exchanges of a round, rather than after the first one
    meets: bool = False
    """Clients exchange in pairs, by time: one that has done its local work meets a neighbour that is free. A round
    lasts until the next meeting, with the one in ``client.neighbours``; ``peers.left_out()`` tells that it was that
    one's, and local work goes on."""
    silent_edges: bool = False
    """An exchange may leave out neighbours, those that ``peers.exchange`` is told are ``quiet``. Both ends of an edge
    have to know, from earlier exchanges. In a scenario each still gets a message without a vector, and is heard if it
    sends."""
    new_edges: bool = False
    """Clients may come to exchange that the graph does not join: then ``client.neighbours`` are all clients, and
    ``weight`` is 0 where the graph has no edge."""
    server: Literal["none", "answers", "exchanges"] = "none"
    """Whether the clients talk to a server, a process of its own without data, and not to one another: one that gathers
    what they send in a round and answers (``ServerAlgorithm``), or one that exchanges as they do."""
    reads_topology: bool = False
    """[topology] has an effect though there is a server: ``facts`` takes something from it."""
    mixes: bool = True
    """The mixing weights W_ij have a part in it, and so has ``topology.weights``."""
    has_maps: bool = False
    """``client.state.maps`` are restriction maps: they are recorded, and saved on demand."""
    is_masked: bool = False
    """What clients send the server is masked: by secure aggregation it learns their sum, and nobody reads one of them.
    """
    momentum: bool = True
    """``training.momentum``, ``optimizer`` and ``clip`` have a part in local steps: not where these are its own."""
    reads_samples: bool = False
    """What it sends depends on training samples otherwise than by gradients, as by ``client.loss_of`` or
    ``class_features``, or by ``client.train_loss``: [privacy] refuses it."""
    libraries: tuple[str, ...] = ()
    """Large modules that ``round`` imports: they are loaded once for all clients."""

    def __post_init__(self) -> None:
        if self.codec_may_drop == "by tolerance":
            object.__setattr__(self, "codec_may_drop", "nothing" if self.tolerates == "nothing" else "digits")


@dataclass(frozen=True, slots=True)
class Vector:
    """A vector that travels."""

    length: int
    exact: int = 0  # so many of its last numbers tell something on their own: a codec leaves them as they are
    opening: bool = False  # it travels once, before the others of the first round, and no codec touches it
    integers: Literal["", "uint8", "int32", "int64"] = ""
    """What it is an array of, if not of numbers as theta's; no codec touches it then."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One direction of an edge, as one of its ends knows it; both have to find the same vectors for it."""

    sender: int
    receiver: int
    d_i: int  # parameters of the sender's model
    d_j: int  # parameters of the receiver's model
    model: Architecture  # that of the end that asks
    from_server: bool
    facts: Any  # what the end that asks was told of the edge


@dataclass(frozen=True)
class Setup:
    """What is known of a run before it is known who talks to whom."""

    clients: int
    rounds: int
    seed: int
    topology: Callable[[], GraphSequence]
    """The graphs of [topology]. Raises UserError where they cannot be drawn, or where the traits do not allow them."""


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run before it starts. Where there is a server, its number comes after those of the clients,
    and it is all clients' only neighbour."""

    graph: Graph  # with ``clients``, ``edges``, and ``neighbours(i)``
    models: Sequence[Architecture]  # of each process
    task: Literal["classification", "regression"]
    same_start: bool  # all clients start with one theta
    classes: Sequence[tuple[int, ...]]  # of each client's training samples, ascending; none where the task has none
    features: Sequence[tuple[int, ...] | None]  # which of them each client sees; None: all
    samples: Sequence[int]  # how many each client trains on
    topology: Callable[[], GraphSequence]  # the graphs of [topology], not the run's where there is a server

    def require_same_size(self, key: str) -> None:
        """Raises SettingsError unless all neighbours' models have one size."""
        for i, j in self.graph.edges:
            if self.models[i].size != self.models[j].size:
                raise SettingsError(
                    key,
                    f"compares whole models, but clients {i} and {j} have {self.models[i].size} and "
                    f"{self.models[j].size} parameters; give all one model and task (leave out model.mix and "
                    "data.tasks), or use algorithm.name = 'sheaf-fmtl' or 'local'",
                )

    def require_body(self, key: str) -> None:
        """Raises SettingsError where a model has no body, and ArchitectureError where it does not tell its head."""
        for model in self.models:
            if not model.size_of("body"):
                use = "use model.kind 'cnn', 'gru', or 'mlp' with model.hidden"
                raise SettingsError(key, f"needs a body below the head, and the {model.label} model has none; {use}")


@dataclass(frozen=True)
class Facts:
    """What an algorithm asks to be told of the run: numbers, text, and lists of these, of any depth."""

    nodes: Mapping[int, Any] = field(default_factory=dict)  # {client or server: its ``client.facts``}
    edges: Mapping[tuple[int, int], Any] = field(default_factory=dict)
    """{(i, j): what i is told of its edge to j}: ``facts`` of its neighbour j, and of the edge in ``messages``."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What an algorithm costs a process, beside what all do; both decide whether a run is taken to fit the machine."""

    numbers: int = 0  # about how many it keeps beside theta by the end; a few vectors need not be counted
    opening_flops: int = 0  # operations for each training sample, once before the first round


@dataclass(frozen=True, slots=True)
class Work:
    """What a client computes with its model in a round, at most: planned time counts it, a pass forward as a third of a
    gradient. What ``begin`` and evaluations compute is no part of it."""

    gradients: float = 1  # in each local step, on its mini-batch
    on_one_batch: int = 1  # so many of these gradients are all on one and the same mini-batch
    passes: float = 0  # forward alone, as ``client.loss_of`` and ``features_of`` do; likewise
    full_gradients: float = 0  # in the round, on all training samples
    full_passes: float = 0  # forward alone, likewise

    def steps(self, count: float, a_pass: float) -> float:
        """Returns how many local steps take as long, where a round has ``count`` and a pass over all training samples
        takes ``a_pass``."""
        return count * (self.gradients + self.passes / 3) + a_pass * (self.full_gradients + self.full_passes / 3)


class State(SimpleNamespace):
    """What a client keeps from round to round beside theta: ``State(psi=...)`` keeps ``client.state.psi``. Arrays,
    {neighbour: array} and restriction maps are saved in checkpoints, found again by a client that goes on from one, and
    counted in the records of memory. Names that begin with an underscore are not saved. Whatever is more than that
    writes these methods itself."""

    maps: Maps | None = None  # the client's restriction maps, where the algorithm has them

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns what a later process needs to go on exactly here."""
        return self._numbers() | ({} if self.maps is None else self.maps.state())

    def _numbers(self) -> dict[str, np.ndarray]:
        found = {}
        for name, value in self._kept():
            several = value.items() if isinstance(value, dict) else [(None, value)]
            for key, array in several:
                place = name if key is None else f"{name}.{key}"
                if key is not None and not isinstance(key, int | np.integer):
                    raise UserError(f"client.state.{name}: the key {key!r} is no client's number")
                if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
                    what = f"array of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
                    raise UserError(f"client.state.{place}: {what}; arrays of numbers are kept, and dicts of them")
                found[place] = array
        return found

    def _kept(self) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in vars(self).items() if name != "maps" and not name.startswith("_")]

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Goes on from what ``arrays`` gave, in which other arrays may stand, too. Raises UserError where one lacks."""
        if self.maps is not None:
            self.maps.load(arrays)
        for name, value in self._kept():
            if isinstance(value, np.ndarray):
                if name not in arrays:
                    why = "the algorithm was another one when it was written; start the run anew"
                    raise UserError(f"client.state.{name} is not in the checkpoint: {why}")
                setattr(self, name, arrays[name].copy())
            elif isinstance(value, dict):
                saved = [key.rpartition(".") for key in arrays if key.startswith(f"{name}.")]
                setattr(self, name, {int(key): arrays[f"{name}.{key}"].copy() for _, _, key in saved})

    def nbytes(self) -> int:
        maps = 0 if self.maps is None else self.maps.state_bytes()
        return maps + sum(array.nbytes for array in self._numbers().values())


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A frozen dataclass whose fields are the keys of [algorithm]; one is the same for all clients of a run. It says
    what is fixed about it (``traits``), what travels (``messages``), what a client keeps (``begin``), and does one
    round. What changes from round to round is in ``client.theta`` and ``client.state``. It sees a client and its peers;
    never a socket, clock or file. The methods below ``round`` have something to say in few algorithms."""

    __pydantic_config__: ClassVar[dict[str, Any]] = Section.__pydantic_config__

    name: str = ""  # what it is called, by default as the class: half-way of HalfWay
    use: str = ""  # where the class is, if it is none of the program's: "FILE.py:NAME" or "package.module:NAME"

    @property
    def traits(self) -> Traits:
        """What is fixed about it: an attribute of the class, or a property where it depends on the settings."""
        return Traits()

    def messages(self, edge: Edge) -> Sequence[Vector]:
        """Returns the vectors that travel from ``edge.sender`` to ``edge.receiver`` in a round, in their order; by
        default one of the size of the sender's theta. Other lengths are an error at the sender, and dropped by the
        receiver."""
        return [Vector(edge.d_i)]

    def pattern(self, run: Setup) -> GraphSequence:
        """Returns who sends to whom in each round, without a server: a client's ``successors`` and ``predecessors``. By
        default [topology]'s graphs."""
        return run.topology()

    def participants(self, run: Any, round: int) -> Sequence[int] | None:
        """Returns who does local work in a round; None: all clients, in every round. ``run`` is whatever tells seed,
        clients and rounds: a client, or a configuration."""
        return None

    def check(self, run: RunFacts) -> None:
        """Raises SettingsError where settings, models, task or graph do not fit, before anything is started; what
        ``traits`` say needs no word."""

    def begin(self, client: Client) -> State:
        """Returns what the client keeps from round to round beside theta, as it is before the first one:
        ``State(psi=client.theta.copy())`` makes ``client.state.psi``."""
        return State()

    def round(self, client: Client, peers: Peers) -> None:
        """Changes ``client.theta`` and ``client.state``, and tells ``client.report`` what is worth a record. The object
        serves all clients of a run, so nothing of it changes. Draws come from ``client.generator``."""
        raise NotImplementedError

    def facts(self, run: RunFacts) -> Facts:
        """Returns what processes are told of the run before it starts. Raises SettingsError when it cannot be had."""
        return Facts()

    def cost(self, own: Assignment) -> Cost:
        """Returns what it costs a process; ``own.architecture`` is its model, ``own.neighbours`` are the other ends of
        its edges."""
        return Cost()

    def work(self, own: Assignment, round: int) -> Work:
        """Returns what a client that takes part in a round computes: by default one gradient in each local step, as
        ``client.learn`` does."""
        return Work()

    def personal_model(self, client: Client) -> np.ndarray:
        """Returns the parameters (d,) that the client itself would use: what is evaluated."""
        return client.theta

    def common_model(self, client: Client) -> np.ndarray | None:
        """Returns the model (d,) that the clients have in common, as this client has it, where there is one: its test
        metric is recorded beside that of the client's own."""
        return None

    @contextmanager
    def as_at_the_end(self, client: Client, peers: Peers) -> Iterator[bool]:
        """With the models that the client would have if the run ended with this round: those are evaluated. Gives
        whether they are known."""
        yield True


def mixing_pull(client: Client, mine: np.ndarray, theirs: Mapping[int, np.ndarray]) -> np.ndarray:
    """Returns what mixing adds to one's own vector: sum_j W_ij v_j = v_i + sum_{j != i} W_ij (v_j - v_i), as W's rows
    sum to 1. The terms of neighbours that were not heard are left out."""
    return sum((client.neighbours[j].weight * (theirs[j] - mine) for j in theirs), start=0 * mine)


def weighted_mean(server: Client, models: Mapping[int, np.ndarray]) -> np.ndarray:
    """Returns sum_k n_k/n w_k over the clients that have sent w_k: n_k their numbers of training samples, n the sum."""
    n = {j: server.neighbours[j].samples for j in models}
    start = np.zeros(len(next(iter(models.values()))))  # in double precision, whatever theta is in
    return sum((n[k] / sum(n.values()) * w_k for k, w_k in models.items()), start)


def make_room(state: State, names: Iterable[str]) -> None:
    """For what rounds have added to what ``begin`` returns: ``names`` are all those that ``arrays`` gave."""
    for name in names:
        name, dot, _ = name.partition(".")
        vars(state).setdefault(name, {} if dot else np.empty(0))


def returned(by: Algorithm, method: str, found: Any, kind: type[_T]) -> _T:
    """Raises SettingsError where it is of another kind."""
    if not isinstance(found, kind):
        why = f"returned {type(found).__name__}; it has to be a sheafgossip.{kind.__name__}(...)"
        raise SettingsError(f"{type(by).__name__}.{method}", why)
    return found


def work_of(algorithm: Algorithm, own: Assignment, samples: int, round: int) -> tuple[float, float]:
    """Returns how many local steps, and how many samples in local steps, take as long as what a client with so many
    training samples computes in a round. Raises SettingsError."""
    work, training = returned(algorithm, "work", algorithm.work(own, round), Work), own.training
    steps = work.steps(training.count(samples), training.a_pass(samples))
    if not 0 <= steps < math.inf:
        raise SettingsError(f"{type(algorithm).__name__}.work", f"returned {work}; all of it is at least 0")
    return steps, work.steps(training.samples_of(samples), samples)


def facts_of(algorithm: Algorithm, run: RunFacts) -> Facts:
    """Raises SettingsError where its settings do not fit the run."""
    algorithm.check(run)
    return returned(algorithm, "facts", algorithm.facts(run), Facts)


def pattern_of(algorithm: Algorithm, run: Setup) -> GraphSequence:
    """Raises SettingsError where it is none of the run's clients, or they meet by time and it is not one graph."""
    graphs = returned(algorithm, "pattern", algorithm.pattern(run), GraphSequence)
    key, clients = f"{type(algorithm).__name__}.pattern", graphs.graphs[0].clients
    if clients != run.clients:
        raise SettingsError(key, f"returned graphs of {clients} clients; the run has {run.clients}")
    if algorithm.traits.meets and (graphs.changes or graphs.directed):
        raise SettingsError(key, "clients that meet by time have one undirected graph for all rounds")
    return graphs
