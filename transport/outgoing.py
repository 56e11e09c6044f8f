"""What a client sends, counted: the traffic of its rounds, and messages beside it."""

from collections import defaultdict
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
        self._sent: defaultdict[str, dict[int, tuple[int, int, int, int]]] = defaultdict(dict)  # by kind and neighbour

    def send(self, nodes: Iterable[int], round: int, phase: int, tensors: Tensors = (), beside: str = "") -> None:
        """``beside`` is the kind of a message that is no traffic of the round."""
        sent = self._sent[beside]
        for node, more in self._endpoint.send(nodes, round=round, phase=phase, tensors=tensors).items():
            messages, payload, message, wire = sent.get(node, (0, 0, 0, 0))
            sent[node] = messages + 1, payload + more.payload, message + more.message, wire + more.wire

    def close_round(self) -> dict[int, Traffic]:
        traffic = self._sent.pop("", {})
        return {node: Traffic(*traffic[node]) for node in sorted(traffic)}

    def beside(self, kind: str) -> dict[int, tuple[int, int]]:
        """{neighbour: messages of this kind sent to it beside the traffic, and their wire bytes}"""
        return {node: (messages, wire) for node, (messages, _, _, wire) in sorted(self._sent[kind].items())}

    def state(self, neighbours: Sequence[int]) -> dict[str, np.ndarray]:
        shown = self.beside(EVALUATION)
        return {SHOWN: np.array([shown.get(node, (0, 0)) for node in neighbours])} if shown else {}

    def load(self, state: Mapping[str, np.ndarray], neighbours: Sequence[int]) -> None:
        for node, (messages, wire) in zip(neighbours, state[SHOWN].tolist() if SHOWN in state else (), strict=False):
            if messages:
                self._sent[EVALUATION][node] = messages, 0, 0, wire
