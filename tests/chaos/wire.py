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


def layers(config: dict[str, Any]) -> list[tuple[int, int]]:
    """The weights and biases of each layer of the model, on synthetic data, from the first one on."""
    synthetic, model = config["data"]["synthetic"], config["model"]
    if model["use"]:  # tests/methods/normalized.py
        return [(8 * synthetic["dimensions"], 8), (8, 8), (8 * synthetic["classes"], synthetic["classes"])]
    sizes = [synthetic["dimensions"], *model["hidden"] * (model["kind"] == "mlp"), synthetic["classes"]]
    return [(before * after, after) for before, after in pairwise(sizes)]


def parameters(config: dict[str, Any]) -> int:
    return sum(map(sum, layers(config)))


def vectors(config: dict[str, Any], *, down: bool = False, classes: int = 0) -> list[tuple[int, int]]:
    """Of each message of a round: how many numbers, and how many of them, at the end, no codec touches. ``down``: from
    a server; ``classes``: how many of them its client has."""
    algorithm, d, head = config["algorithm"], parameters(config), layers(config)[-1]
    of_class = head[0] // head[1]  # inputs of the last layer

    def share(name: str, length: int = d) -> int:
        return min(length, max(1, math.ceil(algorithm[name] * length - 1e-9)))

    match algorithm["name"]:
        case "local":
            return []
        case "gradient-tracking" | "scaffold":
            return [(2 * d, 0)]
        case "push-sum":
            return [(d + 1, 0)]
        case "fedper" | "fedrep":
            return [(d - sum(head), 0)]
        case "dfedpgp":
            return [(d - sum(head) + 1, 0)]
        case "fedbn":
            return [(d - sum(layers(config)[1]), 0)]
        case "dfedsam":
            return [(d, 0)] * algorithm["gossip_steps"]
        case "sfl":
            return [(2 * d if down else d, 0)]
        case "ifca" if down:
            return [(algorithm["k"] * d, 0)]
        case "ifca" | "dfca" | "facade":
            return [(d + 1, 1)]
        case "fedproto":
            count = head[1] if down else classes
            return [(count * (of_class + 1), count)]
        case "fedgh":
            return [(sum(head) if down else classes * of_class, 0)]
        case "pens" | "dpfl":
            return [(1, 1), (d, 0)]
        case "dac":
            return [(1, 1), (d + config["clients"], config["clients"])]
        case "choco-sgd" | "beer":
            vectors = 2 if algorithm["name"] == "beer" else 1
            return [(vectors * (2 if algorithm["compression"] == "top-k" else 1) * share("keep"), 0)]
        case "divshare":
            return [(math.ceil(d / algorithm["fragments"]) + 1, 1)]
        case "dispfl":
            bits = math.ceil(d / 24)
            return [(sum(share("density", weights) + biases for weights, biases in layers(config)) + bits, bits)]
        case "selective-sheaf":
            norms = {"whole": 1, "head": 2}[algorithm["blocks"]]
            return [(_rows(config) + norms, norms), *[(2, 2)] * algorithm["seek"]]
        case "prototype-sheaf":
            compared = of_class if algorithm["compare"] == "features" else config["data"]["synthetic"]["dimensions"]
            about = head[1] * (min(algorithm["sketch"], compared) + 2) + 2
            return [(about, about), (_rows(config), 0), *[(2, 2)] * (algorithm["seek"] > 0)]
        case "sheaf-fmtl":
            shared = _rows(config)
            fused = [(shared + 1, 1)] if algorithm["exchange"] == "fused" else [(shared, 0)] * 2
            return fused if algorithm["eta"] else [(shared, 0)]
    return [(d, 0)]


def _rows(config: dict[str, Any]) -> int:
    return max(1, math.floor(config["algorithm"]["gamma"] * parameters(config) + 1e-9))


def weigh(
    config: dict[str, Any], src: int, dst: int, round: int, phase: int, *, remote: bool = False, classes: int = 0
) -> Weight:
    """One message. ``remote``: between two hosts."""
    transport = config["transport"]
    codec = transport["codec_between"] if remote and transport["codec_between"] != "same" else transport["codec"]
    length, exact = vectors(config, down=src == config["clients"], classes=classes)[phase]
    tensors = _tensors(codec, 8 if config["model"]["dtype"] == "float64" else 4, length, exact, config)
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
