"""Secure aggregation (Bonawitz et al. 2017: Practical Secure Aggregation for Privacy-Preserving Machine Learning,
figure 4, without the parts that are for active adversaries): the server learns the sum of what its clients upload, and
nothing else of it. In each round anew, U the clients that take part, of which t have to stay:

0  client u:  draws keys c_u, s_u, and sends both public ones
   server:    U1 <- who has sent;  sends them all keys
1  client u:  draws b_u, makes Shamir's shares of s_u and b_u, t of |U|, and sends the share of each v in U1 sealed by
              the key that c_u and c_v agree on
   server:    U2 <- who has sent;  passes on to each what is for it
2  client u:  sends y_u = x_u + PRG(b_u) + sum_{v in U2, v > u} PRG(s_uv) - sum_{v in U2, v < u} PRG(s_uv) mod 2^k,
              s_uv agreed by s_u and s_v
   server:    U3 <- who has sent;  tells them who these are
3  client u:  sends its share of b_v for v in U3, and of s_v for the v in U2 that are gone
   server:    finds b_v and s_v, and with them sum_{u in U3} x_u

Of one v a client tells one of the two shares: with b_v and s_v, y_v would be open."""

import importlib.util
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Le

from ...topology.errors import install
from ...topology.section import Needs, Positive
from ...transport.schedule import deadlines_left
from .base import Client, Edge, Facts, Peers, RunFacts, SettingsError, Traits, Vector
from .server import NEEDS_NEW_UPLOADS, ServerAlgorithm, Uploads

if TYPE_CHECKING:
    from ..masked_sums import FixedPoint

_EXCHANGES = 4
_PUBLIC, _SEALED, _SHARE = 64, 80, 32  # bytes: two public keys, two sealed shares, a share
_MOST_CLIENTS = 10_000  # of a round; each sends something to each


def _secured(said: Traits | property) -> property:
    """Returns the traits of a class, by what it says: with ``secure`` no mask serves twice, and no digit is lost."""

    def traits(self: "SecureSum") -> Traits:
        own: Traits = said.__get__(self) if isinstance(said, property) else said
        if not self.secure:
            return own
        missing = self.secure_tolerates == "missing"
        return replace(
            own,
            tolerates=self.secure_tolerates,
            more_tolerant=NEEDS_NEW_UPLOADS.more_tolerant if missing else "algorithm.secure = false",
            codec_may_drop="nothing",
            is_masked=True,
            libraries=(*own.libraries, "sheafgossip.node.masked_sums"),
        )

    return property(traits)


@dataclass(frozen=True)
class SecureSum(ServerAlgorithm):
    """Of an algorithm whose server takes the mean of its clients' vectors, and nothing else of them. With ``secure``
    its ``aggregate`` gets that mean, as the upload of one of those that it is of. What the ``traits`` of a subclass say
    is changed accordingly."""

    secure: bool = False
    """Secure aggregation: the server learns the sum of what clients upload, and not what each of them does (see
    docs/servers.md)."""
    secure_bits: Annotated[Literal[32, 64], Needs("secure")] = 32
    """k: numbers are masked as integers modulo 2^k."""
    secure_range: Annotated[Positive, Needs("secure")] = 16.0
    """What is uploaded is cut to plus or minus this, so that no sum overflows; the mean is then off by less than about
    clients * range / 2^k."""
    secure_threshold: Annotated[Positive, Le(1), Needs("secure")] = 0.5
    """t, as a share of the clients of a round, and at least two: with fewer left the server's model stays as it is, and
    fewer of them, together with the server, learn no more of the others than their sum."""

    weighted: ClassVar[bool] = False
    """Whether the mean is weighted by training samples."""
    secure_tolerates: ClassVar[Literal["missing", "nothing"]] = "missing"
    """As in ``Traits``: nothing where the server adds up what clients send over rounds."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "traits" in vars(cls) or isinstance(cls.traits, Traits):
            cls.traits = _secured(cls.traits)  # type: ignore[assignment]

    @property
    def exchanges(self) -> int:  # type: ignore[override]
        return _EXCHANGES if self.secure else 1

    def least_heard(self, run: Any) -> int:
        m = self.taking_part(run.clients)
        return max(2, math.ceil(self.secure_threshold * m - 1e-9)) if self.secure else 1

    def messages(self, edge: Edge) -> list[Vector]:
        return self.with_masks(edge, *super().messages(edge))

    def with_masks(self, edge: Edge, vector: Vector) -> list[Vector]:
        """Returns what travels where that is ``vector`` without masks: for subclasses that write ``messages``."""
        if not self.secure:
            return [vector]
        m = edge.facts
        sealed = Vector(_SEALED * (m - 1), integers="uint8")
        if edge.from_server:
            return [Vector(_PUBLIC * m, integers="uint8"), sealed, Vector(-(-m // 8), integers="uint8"), vector]
        masked: Any = f"int{self.secure_bits}"
        shares = Vector(_SHARE * m, integers="uint8")
        return [Vector(_PUBLIC, integers="uint8"), sealed, replace(vector, integers=masked), shares]

    def check(self, run: RunFacts) -> None:
        super().check(run)
        if not self.secure:
            return
        key, m = "algorithm.secure", self.taking_part(run.graph.clients - 1)
        if self.traits.server == "none":
            raise SettingsError(key, "= true: is what clients do with a server; use server = true")
        if getattr(self, "mixing", "average") != "average":
            why = f"the server learns a sum, and mixing = {self.mixing!r} needs each vector"  # type: ignore[attr-defined]
            raise SettingsError(key, f"= true: {why}; use mixing = 'average'")
        if not 2 <= m <= _MOST_CLIENTS:
            why = f"{m} client{'s' * (m > 1)} would take part in a round"
            raise SettingsError(key, f"= true: {why}; allowed are 2 to {_MOST_CLIENTS:,}")
        if importlib.util.find_spec("cryptography") is None:
            raise SettingsError(key, f"= true: needs cryptography: {install('secure')}")

    def facts(self, run: RunFacts) -> Facts:
        """The end of each edge is told |U|, and every process what the weights of a round come to at most."""
        facts, server = super().facts(run), run.graph.clients - 1
        if not self.secure:
            return facts
        m = self.taking_part(server)
        total = sum(sorted(run.samples)[-m:]) if self.weighted else m
        ends = [(i, server) for i in range(server)] + [(server, i) for i in range(server)]
        return Facts(dict.fromkeys(range(server + 1), total), dict.fromkeys(ends, m))

    def fixed_point(self, own: Client) -> "FixedPoint":
        from ..masked_sums import FixedPoint

        return FixedPoint(self.secure_bits, self.secure_range, self.taking_part(own.clients), own.facts)

    def hand_in(self, client: Client, peers: Peers) -> int:
        if not self.secure:
            return super().hand_in(client, peers)
        (server,) = client.neighbours
        vector, numbers = self.upload(client), self.fixed_point(client)
        if (np.abs(vector) > self.secure_range).any():
            text = f"numbers of client {client.node} beyond {self.secure_range:g} were cut to that"
            client.report.warnings.append(f"secure aggregation: {text}; raise algorithm.secure_range")
        x = numbers.encode(vector, client.train_samples if self.weighted else 1)
        U, rng = self.participants(client, peers.round), client.generator("secure aggregation", peers.round)
        own = Participant(client.node, U, self.least_heard(client), rng)
        steps: list[Callable[[np.ndarray], np.ndarray]] = [own.keys, own.shares, lambda sealed: own.masked(x, sealed)]
        answer = np.empty(0, np.uint8)
        for exchange, step in enumerate([*steps, own.reveal]):
            peers.skip_to(exchange)
            peers.send({server: step(answer)})
            if exchange < _EXCHANGES - 1:
                received = peers.receive(bounded=2)
                if server not in received:
                    return deadlines_left(_EXCHANGES, exchange)
                answer = received[server]
        return deadlines_left(_EXCHANGES, _EXCHANGES - 1)

    def gather(self, server: Client, peers: Peers, now: Sequence[int]) -> Uploads:
        if not self.secure:
            return super().gather(server, peers, now)
        t, sums = self.least_heard(server), Sums(now)
        heard: Collection[int] = now
        for exchange, step in enumerate([sums.keys, sums.passed_on, sums.came, sums.revealed]):
            peers.skip_to(exchange)
            received = peers.receive(sorted(heard))
            heard = received.keys()
            if len(heard) < t:
                what = f"secure aggregation: {len(heard)} of {len(now)} clients are left, fewer than {t}"
                server.report.events.append(("secure", f"{what}; the model stays"))
                return {}
            answers = step(received)
            if exchange < _EXCHANGES - 1:
                peers.send(answers)
        u = min(sums.y)
        weights = [server.neighbours[k].samples if self.weighted else 1 for k in sums.y]
        return {u: self.fixed_point(server).mean(sums.total(), weights)}


class Participant:
    """Client u in one round; ``U`` are all that take part, in ascending order, ``t`` of their shares tell a secret.
    Vectors are of bytes, unless stated otherwise; zeros stand for who is gone."""

    def __init__(self, u: int, U: Sequence[int], t: int, rng: np.random.Generator):
        from .. import masked_sums

        self._m, self._u, self._U, self._t, self._rng = masked_sums, u, U, t, rng
        c, self._s, self._b = (masked_sums.draw_secret(rng) for _ in range(3))
        self._c_key, self._s_key = masked_sums.private_key(c), masked_sums.private_key(self._s)
        self._keys: dict[int, bytes] = {}  # agreed with each other one of U1, for shares
        self._public: dict[int, bytes] = {}  # s_v of each
        self._sealed: dict[int, bytes] = {}

    def keys(self, _: np.ndarray) -> np.ndarray:
        return _bytes(self._m.public_key(self._c_key) + self._m.public_key(self._s_key))

    def shares(self, keys: np.ndarray) -> np.ndarray:
        """``keys`` (|U|, 64)"""
        m, told = self._m, _by_client(self._U, keys)
        self._public = {v: key[32:] for v, key in told.items()}
        self._keys = {v: m.agreed_key(self._c_key, key[:32], b"shares") for v, key in told.items() if v != self._u}
        of_s, of_b = (m.shares_of(secret, self._t, len(self._U), self._rng) for secret in (self._s, self._b))
        own = {v: m.in_bytes(of_s[n]) + m.in_bytes(of_b[n]) for n, v in enumerate(self._U)}
        self._own = own[self._u]
        sealed = {v: m.seal(key, self._u, own[v]) for v, key in self._keys.items()}
        return _bytes(b"".join(sealed.get(v, bytes(_SEALED)) for v in self._U if v != self._u))

    def masked(self, x: np.ndarray, sealed: np.ndarray) -> np.ndarray:
        """``sealed`` (|U| - 1, 80): from each other one. Returns y_u (d,), signed, of x_u (d,), unsigned."""
        m, bits = self._m, 8 * x.itemsize
        self._sealed = _by_client([v for v in self._U if v != self._u], sealed)
        y = x + m.mask(m.in_bytes(self._b), len(x), bits)
        for v in self._sealed:
            s_uv = m.agreed_key(self._s_key, self._public[v], b"mask")
            y = add(y, m.mask(s_uv, len(x), bits), self._u < v)
        return y.view(f"<i{x.itemsize}")

    def reveal(self, came: np.ndarray) -> np.ndarray:
        """``came`` has a bit of each of U. Returns (|U|, 32)."""
        U3 = {v for v, bit in zip(self._U, np.unpackbits(came), strict=False) if bit}
        told = {v: self._m.unseal(self._keys[v], v, sealed) for v, sealed in self._sealed.items()}
        told[self._u] = self._own
        shares = {v: both[32:] if v in U3 else both[:32] for v, both in told.items()}
        return _bytes(b"".join(shares.get(v, bytes(_SHARE)) for v in self._U))


class Sums:
    """The server in one round."""

    def __init__(self, U: Sequence[int]):
        from .. import masked_sums

        self._m, self._U = masked_sums, U
        self.y: dict[int, np.ndarray] = {}  # of those in U3

    def keys(self, received: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        self._public = {u: key.tobytes() for u, key in received.items()}
        told = _bytes(b"".join(self._public.get(u, bytes(_PUBLIC)) for u in self._U))
        return dict.fromkeys(received, told)

    def passed_on(self, received: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        sent = {u: _by_client([v for v in self._U if v != u], sealed) for u, sealed in received.items()}
        self._U2 = list(received)
        return {
            v: _bytes(b"".join(sent.get(u, {}).get(v, bytes(_SEALED)) for u in self._U if u != v)) for v in received
        }

    def came(self, received: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        self.y = {u: y.view(f"<u{y.itemsize}") for u, y in received.items()}
        return dict.fromkeys(received, np.packbits([u in received for u in self._U]))

    def revealed(self, received: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        place = {u: 1 + n for n, u in enumerate(self._U)}
        weights, told = self._m.at_zero([place[u] for u in received]), {}
        for v in self._U2:
            at = slice(_SHARE * (place[v] - 1), _SHARE * place[v])
            shares = {place[u]: int.from_bytes(each[at].tobytes(), "little") for u, each in received.items()}
            told[v] = self._m.recovered(shares, weights)
        self._secrets = told  # b_v, or s_v of those that are gone
        return {}

    def total(self) -> np.ndarray:
        """Returns sum_{u in U3} x_u (d,), modulo 2^k."""
        m, first = self._m, next(iter(self.y.values()))
        length, bits = len(first), 8 * first.itemsize
        z = sum(self.y.values(), start=np.zeros_like(first))
        for v in self._U2:
            if v in self.y:
                z = z - m.mask(m.in_bytes(self._secrets[v]), length, bits)
                continue
            s_v = m.private_key(self._secrets[v])
            for u in self.y:
                s_uv = m.agreed_key(s_v, self._public[u][32:], b"mask")
                z = add(z, m.mask(s_uv, length, bits), v < u)  # the other sign than u's
        return z


def add(y: np.ndarray, mask: np.ndarray, plus: bool) -> np.ndarray:
    return y + mask if plus else y - mask


def _bytes(told: bytes) -> np.ndarray:
    return np.frombuffer(told, np.uint8)


def _by_client(clients: Sequence[int], vector: np.ndarray) -> dict[int, bytes]:
    """Returns what is told of each, without those of whom it is zeros."""
    rows = vector.reshape(len(clients), -1)
    return {v: row.tobytes() for v, row in zip(clients, rows, strict=True) if row.any()}
