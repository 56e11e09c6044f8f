"""What sums of masked vectors are made of: numbers in fixed point, Shamir's shares, agreed keys, masks by a stream
cipher. The protocol is in algorithms/secure.py. Needs the package cryptography."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PRIME = 2**255 - 19  # of the field of shares; secrets below it are legal private keys of X25519
SECRET_BYTES = 32
SEALED_BYTES = 2 * SECRET_BYTES + 16  # two shares, and what tells that nobody has changed them

_MARGIN = 2.0**-40  # of the largest integer, for what double precision rounds


def draw_secret(rng: np.random.Generator) -> int:
    """Returns a number uniform in 0, .., PRIME - 1."""
    while (found := int.from_bytes(rng.bytes(SECRET_BYTES), "little") % 2**255) >= PRIME:
        pass
    return found


def shares_of(secret: int, t: int, n: int, rng: np.random.Generator) -> list[int]:
    """Shamir (1979): returns f(1), .., f(n) of a random polynomial of degree t - 1 over the field, f(0) the secret. Any
    t of them tell it, and t - 1 nothing."""
    coefficients, shares = [secret, *(draw_secret(rng) for _ in range(t - 1))], []
    for x in range(1, n + 1):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * x + coefficient) % PRIME
        shares.append(value)
    return shares


def at_zero(places: Collection[int]) -> dict[int, int]:
    """Returns Lagrange's weights {x: l_x}: f(0) = sum_x l_x f(x) for a polynomial of a degree below their number."""
    weights = {}
    for x in places:
        above = math.prod(other for other in places if other != x) % PRIME
        below = math.prod(other - x for other in places if other != x) % PRIME
        weights[x] = above * pow(below, -1, PRIME) % PRIME
    return weights


def recovered(shares: Mapping[int, int], weights: Mapping[int, int]) -> int:
    """Returns f(0) of {x: f(x)}, with the weights of these x."""
    return sum(weights[x] * share for x, share in shares.items()) % PRIME


def in_bytes(secret: int) -> bytes:
    return secret.to_bytes(SECRET_BYTES, "little")


def private_key(secret: int) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(in_bytes(secret))


def public_key(own: X25519PrivateKey) -> bytes:
    return own.public_key().public_bytes_raw()


def agreed_key(own: X25519PrivateKey, public: bytes, purpose: bytes) -> bytes:
    """Returns 32 bytes that the owners of both keys find, and nobody else."""
    both = own.exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(SHA256(), SECRET_BYTES, None, purpose).derive(both)


def seal(key: bytes, sender: int, text: bytes) -> bytes:
    """Encrypts one text of each of the two who have agreed on the key."""
    return ChaCha20Poly1305(key).encrypt(sender.to_bytes(12, "little"), text, None)


def unseal(key: bytes, sender: int, sealed: bytes) -> bytes:
    """Raises cryptography.exceptions.InvalidTag."""
    return ChaCha20Poly1305(key).decrypt(sender.to_bytes(12, "little"), sealed, None)


def mask(seed: bytes, length: int, bits: int) -> np.ndarray:
    """Returns PRG(seed): so many integers uniform in 0, .., 2^bits - 1, a seed's stream of ChaCha20."""
    stream = Cipher(ChaCha20(seed, bytes(16)), None).encryptor().update(bytes(length * bits // 8))
    return np.frombuffer(stream, np.dtype(f"<u{bits // 8}"))


@dataclass(frozen=True)
class FixedPoint:
    """Vectors as integers modulo 2^bits, of which a sum with ``weights`` that come to at most ``total``, of ``clients``
    at most, cannot overflow: entries are cut to +-range. The mean is exact to half a unit of each client,
    clients / (2 scale sum_k n_k)."""

    bits: int
    range: float
    clients: int
    total: float

    @cached_property
    def scale(self) -> float:
        """Units in 1."""
        return (2.0 ** (self.bits - 1) * (1 - _MARGIN) - self.clients) / (self.range * self.total)

    def encode(self, x: np.ndarray, weight: float) -> np.ndarray:
        """Returns round(weight scale x) modulo 2^bits."""
        cut = np.clip(x.astype(np.float64), -self.range, self.range)
        return np.rint(weight * self.scale * cut).astype(np.int64).astype(f"<u{self.bits // 8}")

    def mean(self, total: np.ndarray, weights: Sequence[float]) -> np.ndarray:
        """Returns sum_k n_k x_k / sum_k n_k of the sum of encoded vectors."""
        return total.view(f"<i{self.bits // 8}").astype(np.float64) / (self.scale * sum(weights))
