"""What attackers send in place of their vectors: [attack] of the configuration. docs/adversaries.md has the sources.

An attacker learns as all do, and lies in what it sends: v is what an honest client would send. What it knows of the
honest clients is what it has heard of them last, and v itself. It knows who else attacks. Of a message it changes the
vector; the numbers at its end that a method wants exact (``Vector.exact``), such as a norm, only where the kind is
about them. Their sign is the sender's opinion: an attacker that forges them is of the best opinion, +.

It computes on with what it has said, as ``Peers.as_heard`` tells it: where both ends of an edge are to agree on what
they say next, they do."""

from collections.abc import Iterator, Mapping
from statistics import NormalDist
from typing import Literal

import numpy as np

from ..topology.randomness import generator
from ..transport.clock import Clock
from ..transport.peers import Vectors
from .assignment import Assignment

ON_VECTORS = (
    "sign-flip", "noise", "zeros", "inflate", "alie", "ipm", "dissensus", "equivocation", "replay",
    "copy", "forged-norm",
)  # fmt: skip
FROM_OTHERS = ("alie", "ipm", "dissensus")  # they compare what all send
_STRENGTH = {"alie": 0.0, "ipm": 0.5, "inflate": 10.0, "copy": 10.0}  # others: 1
_FORGED = 1e6  # times the squared norm that is true
_STRIKES = 5  # of so many rounds a copying attacker uses one

Place = tuple[int, int]  # which of a round's messages, and the other end


def alie(known: np.ndarray, z: float) -> np.ndarray:
    """A Little Is Enough (Baruch, Baruch, Goldberg 2019): returns mu - z sigma, of each coordinate of ``known``
    (clients, d)."""
    return known.mean(axis=0) - z * known.std(axis=0)


def largest_z(n: int, f: int) -> float:
    """Returns the z of ALIE with f attackers among n: so many honest clients are beyond mu - z sigma that with the
    attackers they are a majority, (n - f - s) / (n - f) = Phi(z) with s = floor(n/2 + 1) - f."""
    s = n // 2 + 1 - f
    return max(0.0, NormalDist().inv_cdf(min(max((n - f - s) / (n - f), 1e-6), 1 - 1e-6)))


def dissensus(
    i: int, x: Mapping[int, np.ndarray], others: np.ndarray, W_i: Mapping[int, float], attackers: frozenset[int]
) -> np.ndarray:
    """Dissensus (He, Karimireddy, Jaggi 2022): returns what undoes the consensus step of client i, as a difference to
    its x_i, - sum_k W_ik (x_k - x_i) / sum_b W_ib over its honest neighbours k and the attackers b among them. The
    ``others`` stand for an x_k that is not known."""
    step = sum((w * (x.get(k, others) - x[i]) for k, w in W_i.items() if k not in attackers), start=0 * x[i])
    return -step / sum(W_i[b] for b in W_i.keys() & attackers)


class Attacker:
    """Of one client; what it keeps from round to round is in checkpoints. Vectors of an opening are honest."""

    waits_for: frozenset[int]  # whose message of the same exchange it wants to know before it sends its own

    def __init__(self, assignment: Assignment, clock: Clock):
        self._own, self._clock, self._section = assignment, clock, assignment.attack
        kind, run = self._section.kind, assignment.run
        self._attackers = frozenset(run.attackers)
        self._s = self._section.strength
        if self._s is None:
            self._s = largest_z(run.clients, len(run.attackers)) if kind == "alie" else _STRENGTH.get(kind, 1.0)
        others = {peer.node for peer in assignment.neighbours} - self._attackers
        self.waits_for = frozenset(others if kind == "copy" else ())
        self._heard: dict[Place, np.ndarray] = {}  # of the honest
        self._old: dict[Place, np.ndarray] = {}  # what is sent again and again

    def forge(self, vectors: Vectors) -> Vectors:
        """Returns what is sent in place of these; the same if it is asked again."""
        clock, section = self._clock, self._section
        last = max(1, section.from_round - 1)
        forged = dict(vectors)
        for j, v in vectors.items():
            m = self._message(j, "sent")
            exact = clock.channels[j].exact[m] if m >= 0 and clock.channels[j].exact else 0
            if m < 0 or exact == len(v):
                continue
            if section.kind == "replay" and clock.round <= last:
                self._old[m, j] = v.copy()
            if clock.round >= section.from_round:
                end = len(v) - exact
                with np.errstate(over="ignore", invalid="ignore"):
                    told, numbers = self._in_place_of(v[:end], (m, j), exact), v[end:]
                    said = np.append(told, self._numbers(numbers, (m, j))).astype(v.dtype)
                forged[j] = np.nan_to_num(said)  # a message that is not finite would be dropped
        return forged

    def _in_place_of(self, v: np.ndarray, place: Place, exact: int) -> np.ndarray:
        s, length, (m, j) = self._s, len(v), place
        assert s is not None
        match self._section.kind:
            case "sign-flip" | "forged-norm":
                return -s * v
            case "zeros":
                return 0 * v
            case "inflate":
                return s * v
            case "noise":
                return v + s * self._noise(v, m, j)
            case "equivocation":  # neighbours in turn are told +, - the same: their mean is right
                return v + s * (-1) ** sorted(self._clock.neighbours).index(j) * self._noise(v, m)
            case "replay":
                return self._old[place][:length] if place in self._old else v
            case "copy":
                theirs = self._heard.get(place)
                return v if theirs is None else (-s if self._strikes else 1) * theirs[:length]
        x = {k: vector[:length] for (n, k), vector in self._heard.items() if n == m and len(vector) == length + exact}
        known = np.stack([v, *x.values()])
        match self._section.kind:
            case "alie":
                return alie(known, s)
            case "ipm":  # inner-product manipulation (Xie, Koyejo, Gupta 2019): - epsilon mean
                return -s * known.mean(axis=0)
        return x[j] + s * dissensus(j, x, known.mean(axis=0), self._own.weights_of[j], self._attackers) if j in x else v

    def _numbers(self, exact: np.ndarray, place: Place) -> np.ndarray:
        """Returns what takes the place of a message's exact numbers, squares of norms."""
        s = self._s
        assert s is not None
        match self._section.kind:
            case "inflate":
                return s**2 * np.abs(exact)
            case "forged-norm":
                return _FORGED * np.abs(exact)
            case "copy" if place in self._heard:
                theirs = self._heard[place]
                return (s**2 if self._strikes else 1) * np.abs(theirs[len(theirs) - len(exact) :])
        return exact

    @property
    def _strikes(self) -> bool:
        return (self._clock.round - self._section.from_round) % _STRIKES == _STRIKES - 1

    def _noise(self, v: np.ndarray, *key: int) -> np.ndarray:
        """Returns normal noise, about as long as v."""
        rng = generator(self._own.run.seed, "attack", self._own.node, self._clock.round, *key)
        return np.sqrt(np.mean(v**2)) * rng.standard_normal(len(v))

    def hear(self, vectors: Vectors) -> None:
        """Takes notice of what has come in."""
        if self._section.kind in (*FROM_OTHERS, "copy"):
            for j, vector in vectors.items():
                if j not in self._attackers and (m := self._message(j, "taken") - 1) >= 0:
                    self._heard[m, j] = vector

    def _message(self, j: int, which: Literal["sent", "taken"]) -> int:
        """Returns the number of the next message to j, or from j, in a round; below 0 in an opening."""
        clock = self._clock
        channel = clock.channels[j]
        first = channel.opens if which == "sent" else channel.opened
        return getattr(clock, which)[j] - (len(first) if clock.round == 1 else 0)

    def state(self) -> dict[str, np.ndarray]:
        """{"attack.heard.MESSAGE.NEIGHBOUR": what was heard last} and the same of what is sent again"""
        return {f"attack.{name}.{m}.{j}": vector for name, kept in self._kept() for (m, j), vector in kept.items()}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        for name, kept in self._kept():
            start = f"attack.{name}."
            places = (each.removeprefix(start).split(".") for each in state if each.startswith(start))
            kept.update({(int(m), int(j)): state[f"{start}{m}.{j}"] for m, j in places})

    def _kept(self) -> Iterator[tuple[str, dict[Place, np.ndarray]]]:
        yield from (("heard", self._heard), ("old", self._old))


def attacker_of(assignment: Assignment, clock: Clock) -> Attacker | None:
    """Returns what a client lies with; None where it does not, or not with its vectors."""
    attacks = assignment.attacks and assignment.attack.kind in ON_VECTORS
    return Attacker(assignment, clock) if attacks and not assignment.probes else None
