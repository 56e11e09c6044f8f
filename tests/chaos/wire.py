"""What messages weigh, from docs/wire.md and docs/codecs.md alone."""

import math
from itertools import pairwise
from typing import Any, NamedTuple

import msgpack


class Weight(NamedTuple):
    messages: int
    payload: int
    message: int
    wire: int

    def __add__(self, other: tuple[Any, ...]) -> "Weight":
        return Weight(*map(int.__add__, self, other))

    def times(self, count: int) -> "Weight":
        return Weight(*(count * number for number in self))


NOTHING = Weight(0, 0, 0, 0)
_A_RUN = 1 << 61  # always nine bytes
_SEAL = 33  # what keys add to a frame


def parameters(config: dict[str, Any]) -> int:
    """Of the model, on synthetic data."""
    synthetic, model = config["data"]["synthetic"], config["model"]
    sizes = [synthetic["dimensions"], *model["hidden"] * (model["kind"] == "mlp"), synthetic["classes"]]
    return sum(after * (before + 1) for before, after in pairwise(sizes))


def vectors(config: dict[str, Any]) -> list[tuple[int, int]]:
    """Of each message of a round: how many numbers, and how many of them, at the end, no codec touches."""
    algorithm, d = config["algorithm"], parameters(config)
    shared = max(1, math.floor(algorithm.get("gamma", 0) * d + 1e-9))
    match algorithm["name"]:
        case "local":
            return []
        case "gradient-tracking":
            return [(2 * d, 0)]
        case "push-sum":
            return [(d + 1, 0)]
        case "selective-sheaf":
            norms = {"whole": 1, "head": 2}[algorithm["blocks"]]
            return [(shared + norms, norms), *[(2, 2)] * algorithm["seek"]]
        case "sheaf-fmtl":
            fused = [(shared + 1, 1)] if algorithm["exchange"] == "fused" else [(shared, 0)] * 2
            return fused if algorithm["eta"] else [(shared, 0)]
    return [(d, 0)]


def weigh(config: dict[str, Any], src: int, dst: int, round: int, phase: int, *, remote: bool = False) -> Weight:
    """One message. ``remote``: between two hosts."""
    transport = config["transport"]
    codec = transport["codec_between"] if remote and transport["codec_between"] != "same" else transport["codec"]
    tensors = _tensors(codec, 8 if config["model"]["dtype"] == "float64" else 4, *vectors(config)[phase], config)
    first = header(src, dst, round, phase, [[0, count] for _, count in tensors])
    sizes = [size * count for size, count in tensors]
    seal = _SEAL if keyed(config) else 0
    return Weight(1, sum(sizes), sum(sizes) + first, sum(frame(size + seal) for size in (first, *sizes)))


def hello(config: dict[str, Any], src: int, dst: int) -> int:
    return frame(header(src, dst, 0, 0, []) + (_SEAL if keyed(config) else 0))


def header(src: int, dst: int, round: int, phase: int, shapes: list[list[int]]) -> int:
    """Bytes of a message's header; ``shapes`` are the code and the length of each tensor."""
    return len(msgpack.packb([1, _A_RUN, src, dst, round, phase, shapes]))


def frame(length: int) -> int:
    """Bytes on the wire of a frame of so many."""
    return length + (2 if length <= 255 else 9)


def keyed(config: dict[str, Any]) -> bool:
    return config["transport"]["keys"] and config["transport"]["protocol"] == "tcp"


def _tensors(codec: str, itemsize: int, length: int, exact: int, config: dict[str, Any]) -> list[tuple[int, int]]:
    """Bytes of a number, and how many, of each."""
    if codec == "none":
        return [(itemsize, length)]
    rounded = length - exact
    if not rounded:
        return [(itemsize, exact)]
    if codec == "top-k":
        kept = min(rounded, max(1, math.ceil(config["transport"]["keep"] * rounded - 1e-9)))
        tensors = [(4, kept), (itemsize, kept)]
    else:
        tensors = [(4, 1), (1, rounded)] if codec == "int8" else [(2, rounded)]
    return tensors + ([(itemsize, exact)] if exact else [])
