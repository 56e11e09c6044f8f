"""What an algorithm is: its settings, what it sends, and one round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from ...topology.errors import UserError
from ...transport.channel import Channel
from ...transport.peers import Peers
from ..assignment import Assignment, Neighbour
from ..client import Client
from ..maps import Maps
from ..model.architecture import Architecture


class SettingsError(UserError):
    """Settings that do not fit the clients; ``key`` is the configuration key at fault."""

    def __init__(self, key: str, message: str):
        super().__init__(f"{key}: {message}")


@dataclass(slots=True)
class RoundReport:
    """What an algorithm tells of its last round, for the records."""

    disagreements: dict[int, float] = field(default_factory=dict)
    """{j: ||P_ij theta_i - P_ji theta_j||} as the round began."""
    weights: dict[int, float] = field(default_factory=dict)
    """{j: w_ij}, the factor on P_ij in the round, where the algorithm weighs its edges."""
    cosines: dict[int, float] = field(default_factory=dict)
    """{j: how alike the updates of i and j are estimated to be}, where the algorithm asks."""
    penalty: float = 0.0
    """The client's half of its edges' terms in the objective (8): lam/4 sum_j ||P_ij theta_i - P_ji theta_j||^2."""
    gradient_norm: float | None = None
    """The client's part of ||grad Psi(theta, P)|| as the round began, where one full gradient step tells it."""
    warnings: list[str] = field(default_factory=list)
    """Texts for the user, each once a run."""
    events: list[tuple[str, str]] = field(default_factory=list)
    """(kind, detail) of what else is worth a record."""
    cause_of_divergence: str = "the local steps diverged; lower training.alpha"
    """What to blame, should theta turn out to be infinite."""


@dataclass(frozen=True, slots=True)
class Way:
    """One direction of an edge: what the lengths of its vectors may follow from.

    ``model`` is that of the client or server that asks; the sender has d_i parameters, the receiver d_j, ``common`` of
    them in common. On the edge of a server, ``down`` tells that it is the sender, and ``classes`` counts those of the
    client's training samples.
    """

    model: Architecture
    d_i: int
    d_j: int
    common: int = 0
    down: bool = False
    classes: int = 0


class Algorithm:
    """One instance lives in each client process, for the whole run.

    A subclass names its ``Settings`` (a frozen dataclass whose ``name`` is the algorithm's), announces in ``vectors``
    what travels, and does the work of one round in ``round``. It sees a client and its peers; never a socket, clock or
    file.
    """

    Settings: ClassVar[type[Any]]

    maps: Maps | None = None
    """The client's restriction maps, where the algorithm has them."""

    with_everyone: ClassVar[bool] = True
    """Whether every exchange is with all neighbours. Where it is with some of them, a run can have no scenario."""

    has_momentum: ClassVar[bool] = True
    """Whether training.momentum has a part in the local steps: not where they are the algorithm's own."""

    libraries: ClassVar[tuple[str, ...]] = ()
    """Modules that every client imports where it needs them: their memory and the time to load them are shared."""

    global_model: np.ndarray | None = None
    """The model (d,) that the clients have in common, as this client has it, where there is one: its test metric is
    recorded beside that of the client's own."""

    changing_graphs: ClassVar[bool] = False
    """Whether the graph may change between rounds: not where something is kept for each edge, or one W is needed."""

    directed_graphs: ClassVar[Literal["none", "regular", "all"]] = "none"
    """On which directed graphs it works: regular ones are those whose W is doubly stochastic. It sends to
    ``client.successors`` then, and hears from ``client.predecessors``."""

    def __init__(self, settings: Any, client: Client):
        self.settings = settings
        self.report = RoundReport()

    @classmethod
    def opening_flops(cls, settings: Any, model: Architecture, samples: int) -> int:
        """Of what a client with so many training samples computes once, before the first round."""
        return 0

    @classmethod
    def is_told_relations(cls, settings: Any) -> bool:
        """Whether the server is told the edges of [topology], over which nothing is sent: ``client.relations``."""
        return False

    @classmethod
    def vectors(cls, settings: Any, d_i: int, d_j: int, common: int = 0) -> tuple[int, ...]:
        """Lengths of the vectors that a client with d_i parameters sends one with d_j in a round, in their order.

        ``common`` counts the parameters that both have, where clients see different features; else it is 0.
        """
        return ()

    @classmethod
    def ways(cls, own: Assignment, peer: Neighbour) -> tuple[Way, Way]:
        """To a neighbour, and from it."""
        model, d_i, common = own.architecture, own.architecture.size, len(peer.common)
        down, classes = own.role == "server", len(own.classes or peer.classes)
        return (
            Way(model, d_i, peer.parameters, common, down, classes),
            Way(model, peer.parameters, d_i, common, not down, classes),
        )

    @classmethod
    def lengths(cls, settings: Any, way: Way) -> tuple[int, ...]:
        """Of the vectors that travel that way in a round: ``vectors``, unless more than the sizes of models decides."""
        return cls.vectors(settings, way.d_i, way.d_j, way.common)

    @classmethod
    def opening(cls, settings: Any, way: Way) -> tuple[int, ...]:
        """Lengths of the vectors that travel that way once, before those of the first round."""
        return ()

    @classmethod
    def exact(cls, settings: Any) -> tuple[int, ...]:
        """How many numbers at the end of each of these vectors, but for those of the opening, tell something on their
        own: a codec leaves them as they are. By default none."""
        return ()

    @classmethod
    def may_lose(cls, settings: Any) -> Literal["entries", "digits", "nothing"]:
        """What a codec may take from a vector: digits, as rounding does, or even entries, which come later then.

        Entries only where a round goes a small step towards what it hears, so that many rounds add up.
        """
        return "nothing" if cls.bears(settings) == "nothing" else "digits"

    @classmethod
    def link(cls, settings: Any, own: Assignment, peer: Neighbour) -> Channel:
        out, back = cls.ways(own, peer)
        return Channel(
            sends=cls.lengths(settings, out),
            receives=cls.lengths(settings, back),
            opens=cls.opening(settings, out),
            opened=cls.opening(settings, back),
            may_be_quiet=cls.may_be_quiet(settings),
            codec=own.codec_of(peer),
            exact=cls.exact(settings),
        )

    @classmethod
    def has_server(cls, settings: Any) -> bool:
        """Whether the clients talk to a server, a process of its own without data, and not to one another."""
        return False

    @classmethod
    def numbers_kept(cls, settings: Any, d_i: int, d_j: Sequence[int], rounds: int) -> int:
        """About how many numbers a client keeps beside theta by the end, with neighbours of d_j parameters.

        It decides whether a run is taken to fit into memory; a few vectors need not be counted.
        """
        return 0

    @classmethod
    def map_rows(cls, settings: Any, d_i: int, d_j: int, common: int = 0) -> int:
        """d_ij, the rows of an edge's restriction map; 0 where there is none."""
        return 0

    @classmethod
    def mixes(cls, settings: Any) -> bool:
        """Whether the run's mixing weights W_ij have a part in it."""
        return not cls.map_rows(settings, 1, 1, 1)

    @classmethod
    def numbers_at_server(cls, settings: Any, d_0: int, clients: int) -> int:
        """The same of the server, with d_0 parameters."""
        return 0

    @classmethod
    def check(cls, settings: Any, sizes: Sequence[int], edges: Sequence[tuple[int, int]]) -> None:
        """Raises SettingsError when the settings do not fit the d_i of the clients and the graph's edges (i, j)."""

    @classmethod
    def check_models(cls, settings: Any, models: Sequence[Architecture], task: str, same_start: bool) -> None:
        """Raises SettingsError when the settings do not fit the models, of which a server's comes last, or the task, or
        need one start for all of them."""

    @classmethod
    def may_be_quiet(cls, settings: Any) -> bool:
        """Whether an exchange may leave out neighbours, those that ``peers.exchange`` is told are ``quiet``. Both ends
        of an edge have to know without asking; in a scenario they are told."""
        return False

    @classmethod
    def may_meet(cls, settings: Any) -> bool:
        """Whether clients may come to talk that the graph does not join: then all are connected with one another, and
        ``weight`` of a client's neighbour is 0 where the graph has no edge."""
        return False

    @classmethod
    def bears(cls, settings: Any) -> Literal["late", "missing", "nothing"]:
        """What may happen to a message: it may be of another round (late), or at least be missing, or nothing may.

        Where messages may be missing, ``peers.exchange`` leaves out the neighbours that it has none from.
        """
        return "late"

    @classmethod
    def hardier(cls, settings: Any) -> str:
        """The settings with which it would bear more, as the user would write them; "" where there are none."""
        return ""

    def round(self, client: Client, peers: Peers) -> None:
        raise NotImplementedError

    def personal_model(self, client: Client) -> np.ndarray:
        """The parameters (d,) that the client itself would use: what is evaluated."""
        return client.theta

    @contextmanager
    def as_at_the_end(self, client: Client, peers: Peers) -> Iterator[bool]:
        """With the models that the client would have if the run ended with this round: those are evaluated. Gives
        whether they are known."""
        yield True

    def state_bytes(self) -> int:
        """Memory of what the algorithm keeps between rounds, theta apart."""
        return 0 if self.maps is None else self.maps.state_bytes()

    def state(self) -> dict[str, np.ndarray]:
        """What a later process needs, beside theta, to go on exactly here."""
        return {} if self.maps is None else self.maps.state()

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Goes on from what ``state`` gave."""
        if self.maps is not None:
            self.maps.load(state)


def same_size(what: str, sizes: Sequence[int], edges: Sequence[tuple[int, int]]) -> None:
    """For algorithms that compare theta itself: raises SettingsError unless all neighbours' models have one size."""
    for i, j in edges:
        if sizes[i] != sizes[j]:
            raise SettingsError(
                what,
                f"compares whole models, but clients {i} and {j} have {sizes[i]} and {sizes[j]} parameters; "
                "give all one model and task (leave out model.mix and data.tasks), or use algorithm.name = "
                "'sheaf-fmtl' or 'local'",
            )


def mixing_pull(client: Client, mine: np.ndarray, theirs: Mapping[int, np.ndarray]) -> np.ndarray:
    """What mixing adds to one's own vector: sum_j W_ij v_j = v_i + sum_{j != i} W_ij (v_j - v_i), as W's rows sum to 1.

    The terms of neighbours that were not heard are left out.
    """
    return sum((client.neighbours[j].weight * (theirs[j] - mine) for j in theirs), start=0 * mine)
