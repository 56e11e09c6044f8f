"""What a client sends, counted: the traffic of its rounds, and messages beside it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from .codecs import Tensors
from .endpoint import Endpoint

CONFIRMATION: Literal["confirmation"] = "confirmation"
"""Messages that carry no vector but tell what was taken, or that the sender is quiet."""
EVALUATION: Literal["evaluation"] = "evaluation"
"""Messages for evaluation only."""

SHOWN = "shown_bytes"
"""In a checkpoint: messages for evaluation to each neighbour, and their wire bytes."""


class Traffic(NamedTuple):
    """Messages to one neighbour in a round, and their bytes: the vectors alone, all frames, all with ZMTP framing."""

    messages: int
    payload_bytes: int
    message_bytes: int
    wire_bytes: int


class Outgoing:
    def __init__(self, endpoint: Endpoint):
        self._endpoint = endpoint
        self._traffic: dict[int, tuple[int, int, int, int]] = {}
        self._beside: dict[tuple[str, int], tuple[int, int]] = {}

    def send(self, nodes: Iterable[int], round: int, phase: int, tensors: Tensors) -> None:
        traffic = self._traffic
        for node, more in self._endpoint.send(nodes, round=round, phase=phase, tensors=tensors).items():
            messages, payload, message, wire = traffic.get(node, (0, 0, 0, 0))
            traffic[node] = messages + 1, payload + more.payload, message + more.message, wire + more.wire

    def send_beside(self, kind: str, nodes: Iterable[int], round: int, phase: int, tensors: Tensors = ()) -> None:
        for node, more in self._endpoint.send(nodes, round=round, phase=phase, tensors=tensors).items():
            messages, wire_bytes = self._beside.get((kind, node), (0, 0))
            self._beside[kind, node] = messages + 1, wire_bytes + more.wire

    def close_round(self) -> dict[int, Traffic]:
        traffic, self._traffic = self._traffic, {}
        return {node: Traffic(*traffic[node]) for node in sorted(traffic)}

    def beside(self, kind: str) -> dict[int, tuple[int, int]]:
        return {node: self._beside[each, node] for each, node in sorted(self._beside) if each == kind}

    def state(self, neighbours: Sequence[int]) -> dict[str, np.ndarray]:
        shown = self.beside(EVALUATION)
        return {SHOWN: np.array([shown.get(node, (0, 0)) for node in neighbours])} if shown else {}

    def load(self, state: Mapping[str, np.ndarray], neighbours: Sequence[int]) -> None:
        if SHOWN in state:
            for node, (messages, wire_bytes) in zip(neighbours, state[SHOWN].tolist(), strict=True):
                if messages:
                    self._beside[EVALUATION, node] = messages, wire_bytes
