"""Every random draw of a run comes from here: a generator named by (run seed, purpose, key)."""

import hashlib
from functools import cache

import numpy as np


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """Independent of every other purpose and ``key`` (a client, an edge, a round) and of the order of calls."""
    # The length of the key is part of it: SeedSequence takes (1,) and (1, 0) for the same
    entropy = [seed, _number_of(purpose), len(key), *key]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


@cache
def _number_of(purpose: str) -> int:
    return int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little")
