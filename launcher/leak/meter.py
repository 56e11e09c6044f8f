"""The leak meter: attacks on every edge of a finished run, from what was recorded of its messages."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import numpy as np

from ...topology.randomness import generator
from ..config.sections import ConfigError, RunConfig
from ..data.shards import DataSummary, prepare
from ..prepare.assignments import Site, assign, deal_architectures
from ..prepare.preparation import draw_graphs
from ..run.earlier import read_configuration
from ..run.folder import recorded
from .attacks import (
    Data,
    Shadows,
    Victim,
    auc,
    by_matching,
    distance,
    from_first_layer,
    likeliest,
    power,
    prototypes,
)
from .observed import Reader, Seen, messages_of

Attack = Literal["model", "membership", "lira", "inputs", "matching", "property"]
ATTACKS: tuple[Attack, ...] = get_args(Attack)
BY_DEFAULT: tuple[Attack, ...] = ("model", "membership", "inputs", "property")
_MOST_MATCHED = 8  # samples of a step: of more, matching finds nothing of use


@dataclass(frozen=True)
class Asked:
    """``looks``: at so many rounds of an edge; ``false`` is the share of false alarms that a threshold may have."""

    attacks: Collection[Attack] = BY_DEFAULT
    shadows: int = 16
    looks: int = 8
    edges: int = 50
    false: float = 0.05


@dataclass
class EdgeLeak:
    """What ``receiver`` learns from ``sender``. ``reads`` is what it is sent; ``rounds`` are figures by round, those
    that could be had: round, payload_mb up to it, model (relative error of the estimate of theta), update (the same of
    theta - theta^0), auc and tpr (losses), lira_auc and lira_tpr, inputs and matching (relative error of the best
    input found), property (1: guessed right). ``own_inputs`` is the best that its own samples are as a guess."""

    sender: int
    receiver: int
    reads: str
    own_inputs: float | None
    rounds: list[dict[str, float]] = field(default_factory=list)

    def figure(self, name: str) -> list[float]:
        return [row[name] for row in self.rounds if name in row]


@dataclass(frozen=True)
class Leak:
    asked: Asked
    property: str  # what was guessed; "": nothing
    chance: float  # how often the most frequent value of it would be right
    of: int  # how many edges there are messages of
    edges: list[EdgeLeak]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def mean(self, name: str, *, last: bool = False) -> float | None:
        """Over edges the mean over rounds, or of the last one; None where nobody has it."""
        found = [values[-1] if last else float(np.mean(values)) for e in self.edges if (values := e.figure(name))]
        return float(np.mean(found)) if found else None


def measure(folder: Path, asked: Asked = Asked(), tell: Callable[[str], None] = lambda text: None) -> Leak:
    """Raises UserError."""
    folder = folder.resolve()
    config = read_configuration(folder)
    if not config.measuring.vectors.mb:
        raise ConfigError(f"{folder}: its messages were not kept; run it with measuring.vectors.mb = 100")
    if config.algorithm.traits.is_masked:
        raise ConfigError(f"{folder}: algorithm.secure = true masks what clients send: leak can read nothing in it")
    if config.uses or config.data.drift is not None:
        what = next(iter(config.uses), "data.drift")
        raise ConfigError(f"{folder}: {what}: leak needs methods, models and data of the program's own, without drift")
    with TemporaryDirectory(prefix="sheafgossip-leak-") as place:
        return _Meter(folder, config, Path(place), asked).measured(tell)


class _Meter:
    def __init__(self, folder: Path, config: RunConfig, place: Path, asked: Asked):
        self.folder, self.config, self.asked = folder, config, asked
        self.data: DataSummary = prepare(config.data, config.clients, config.seed, place / "shards")
        models = deal_architectures(config, self.data)
        site = Site(place, "")
        self.own = assign(config, place, draw_graphs(config), models, self.data, site)[: config.clients]
        self.victims = [Victim(own) for own in self.own]
        self.messages = {own.node: messages_of(folder, own.node) for own in self.own}
        self.from_server = messages_of(folder, config.clients)
        self.property, self.values = self._values()
        query = "SELECT src, dst, round, payload_bytes FROM traffic"
        self.payload: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        for src, dst, round, size in recorded(folder, query):
            self.payload[src, dst][round] = size

    def _values(self) -> tuple[str, list[int]]:
        """The property to be guessed, and that of each client."""
        groups = [client.group for client in self.data.clients]
        if len({repr(own.architecture) for own in self.own}) > 1:
            return "", []
        if len(set(groups)) > 1:
            return "group", groups
        if self.data.task == "classification":
            return "most frequent class", [int(np.bincount(each.members.y).argmax()) for each in self.victims]
        return "", []

    def measured(self, tell: Callable[[str], None]) -> Leak:
        pairs = [(i, j) for i, sent in self.messages.items() for j in sorted(sent)]
        if not pairs:
            raise ConfigError(f"{self.folder}: holds no messages of clients; its method may send none")
        chosen = generator(self.config.seed, "edges that are attacked").permutation(len(pairs))[: self.asked.edges]
        edges = []
        for number, index in enumerate(sorted(chosen.tolist()), 1):
            i, j = pairs[index]
            tell(f"edge {number} of {len(chosen)}: {i} to {j}")
            if edge := self._edge(i, j):
                edges.append(edge)
        if not edges:
            name = self.config.algorithm.name
            raise ConfigError(f"{self.folder}: leak cannot read what {name} sends: neither whole models nor known rows")
        values = list(self.values)
        chance = max(map(values.count, values)) / len(values) if values else 0.0
        return Leak(self.asked, self.property, chance, len(pairs), edges)

    def _edge(self, i: int, j: int) -> EdgeLeak | None:
        victim, own, start = self.victims[i], self.own[i], self.victims[i].learner.start().astype(np.float64)
        reader = Reader(own, start if own.model.same_start else None)
        seen = list(reader.estimates(j, self.messages[i][j]))
        if not seen:
            return None
        apart = np.mean([np.linalg.norm(each.estimate - each.theta) / np.linalg.norm(each.theta) for each in seen])
        what = "another model" if reader.what == "theta" and apart > 0.1 else reader.what
        peer, guess = self.victims[j].members.x if j < len(self.victims) else None, None
        if peer is not None and peer[0].size == victim.members.x[0].size and own.architecture.is_dense:
            guess = distance(peer.reshape(len(peer), -1), _flat(victim.members))
        edge = EdgeLeak(i, j, what, guess)
        last = {}  # {round that is looked at: the last message until then}
        for round in _spread(self.config.rounds, self.asked.looks):
            if until := sum(each.round <= round for each in seen):
                last[round] = until - 1
        lira = self._shadows(victim, j, [seen[k] for k in {*last.values()}]) if "lira" in self.asked.attacks else None
        guesses = prototypes(own, self._known(i)) if self.property and "property" in self.asked.attacks else {}
        for round, k in last.items():
            now, before = seen[k], seen[k - 1].estimate if k else start
            sent = sum(count for until, count in self.payload[i, j].items() if until <= round)
            row = {"round": round, "payload_mb": sent / 1e6}
            row |= self._of_model(now, start) | self._of_members(victim, now, lira)
            row |= self._of_inputs(victim, now, self._base(i, j, now.round, before))
            if guesses and _has_moved(now.estimate, start):
                row["property"] = float(likeliest(now.estimate - start, guesses) == self.values[i])
            edge.rounds.append(row)
        if "matching" in self.asked.attacks and len(seen) > 1:
            edge.rounds[0] |= self._matched(victim, seen[0].estimate, seen[1].estimate)
        return edge

    def _base(self, i: int, j: int, round: int, before: np.ndarray) -> np.ndarray:
        """Where the client's last local work began, as far as the receiver knows: a server knows what it had sent."""
        if j < self.config.clients:
            return before
        told = [m.vector for m in self.from_server.get(i, ()) if m.round < round and m.vector.size == before.size]
        return told[-1] if told else before

    def _of_model(self, now: Seen, start: np.ndarray) -> dict[str, float]:
        if "model" not in self.asked.attacks:
            return {}
        error, moved = (float(np.linalg.norm(other - now.theta)) for other in (now.estimate, start))
        return {"model": error / float(np.linalg.norm(now.theta)), "update": error / moved} if moved else {}

    def _of_members(self, victim: Victim, now: Seen, lira: Shadows | None) -> dict[str, float]:
        found = dict[str, float]()
        if "membership" in self.asked.attacks:
            members, others = (-losses for losses in victim.losses(now.estimate))
            found |= {"auc": auc(members, others), "tpr": power(members, others, self.asked.false)}
        if lira is not None:
            members, others = lira.scores(self._worked(now.round), now.estimate)
            found |= {"lira_auc": auc(members, others), "lira_tpr": power(members, others, self.asked.false)}
        return found

    def _worked(self, round: int) -> int:
        """After how many rounds of local work a client sends what it sends in this one."""
        traits = self.config.algorithm.traits
        return round if traits.learns_first or traits.server == "answers" else round - 1

    def _shadows(self, victim: Victim, j: int, seen: Sequence[Seen]) -> Shadows:
        of_attacker: dict[int, np.ndarray] = {}
        for message in (m for several in self.messages.get(j, {}).values() for m in several):
            if message.theta.size == victim.own.architecture.size:
                of_attacker.setdefault(message.round, message.theta)
        shadows = Shadows(victim, self.asked.shadows, [self._worked(each.round) for each in seen], of_attacker)
        shadows.learn(seen[-1].estimate)
        return shadows

    def _of_inputs(self, victim: Victim, now: Seen, base: np.ndarray) -> dict[str, float]:
        model = victim.own.architecture
        if "inputs" not in self.asked.attacks or not model.is_dense or not _has_moved(now.estimate, base):
            return {}
        found = from_first_layer(model, now.estimate - base)
        return {"inputs": distance(found, _flat(victim.members))} if len(found) else {}

    def _matched(self, victim: Victim, theta: np.ndarray, after: np.ndarray) -> dict[str, float]:
        """Of the first local step, where it was one, on few samples."""
        training, model, n = self.config.training, victim.own.architecture, len(victim.members.y)
        samples = min(n, training.batch_size) if training.work == "steps" else n
        one = training.is_plain and training.count(n) == 1
        if not (one and samples <= _MOST_MATCHED and model.is_dense and victim.classifies and _has_moved(after, theta)):
            return {}
        alpha = training.alpha_in(1, self.config.rounds)
        found = by_matching(model, theta, (theta - after) / alpha, samples, self.config.seed)
        return {"matching": distance(found, _flat(victim.members))}

    def _known(self, i: int) -> dict[int, Data]:
        """What the attacker has of each value of the property: other clients' test samples."""
        others = [(victim.others, self.values[k]) for k, victim in enumerate(self.victims) if k != i]
        if self.property == "group":
            return {
                value: Data.joined([data for data, group in others if group == value])
                for value in sorted({group for _, group in others})
            }
        every = Data.joined([data for data, _ in others])
        return {int(value): every.take(every.y == value) for value in np.unique(every.y)}


def _has_moved(theta: np.ndarray, before: np.ndarray) -> bool:
    """Whether there is more between them than rounding."""
    return bool(np.linalg.norm(theta - before) > 1e-6 * np.linalg.norm(before))


def _flat(data: Data) -> np.ndarray:
    return data.x.reshape(len(data.x), -1)


def _spread(count: int, looks: int) -> list[int]:
    """Returns about so many of 1, ..., count, with the first two and the last, ever farther apart."""
    return sorted({1, min(2, count), *np.geomspace(1, count, num=max(2, looks)).round().astype(int).tolist()})
