"""pFedHN (Shamsian et al. 2021): a hypernetwork at the server makes each client's model from the client's embedding.

    server:    theta_m <- HN(z_m; psi_H)             for each client of the round, with z_m = x_m; sends it theta_m
    client m:  theta~_m <- local work from theta_m   sends theta~_m
    server:    psi <- Adam step on L_H = 1/|S| sum_m ||theta_m - theta~_m||^2     over the clients S of the round

psi are the embeddings X = E(M; psi_E), x_m in R^f of the clients m = 1 .. M, and HN's psi_H. HN starts with
HN(z) = theta^0, the start that all clients know, so the first model is not sent. This is also the shell of GHN and SHN
(Nguyen et al. 2024, Algorithm 1), which put message passing between X and z.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt

from ...topology.randomness import generator
from ..client import Client
from .server import Fraction, ServerAlgorithm, Uploads

if TYPE_CHECKING:
    from torch import Tensor

Width = Annotated[int, Ge(1)]


@dataclass(frozen=True)
class PFedHNSettings:
    name: Literal["pfedhn"] = "pfedhn"
    fraction: Fraction = 1.0
    eta: Annotated[float, Gt(0), "Step size of Adam, with which the server fits psi."] = 0.001
    weight_decay: Annotated[float, Ge(0), "Weight of psi itself in the gradient that Adam is given."] = 0.00005
    embedding: Annotated[Width, "Length f of a client's embedding."] = 16
    hidden: Annotated[Width, "Width of the hypernetwork's hidden layers."] = 64
    depth: Annotated[Width, "Hidden layers of the hypernetwork."] = 2


class PFedHN(ServerAlgorithm):
    """The client's half, and of the server's all but what comes between X and HN (``features``)."""

    Settings: ClassVar[type[Any]] = PFedHNSettings
    has_common_model = False

    def __init__(self, settings: Any, client: Client):
        super().__init__(settings, client)
        self._is_server = client.role == "server"
        if self._is_server:
            from .. import hypernetwork  # loads torch

            self._net = hypernetwork
            self._draws = client
            self._theta: np.ndarray | None = None
            self._learn_anew(self.embeddings() | self.hypernetwork())

    @classmethod
    def numbers_at_server(cls, settings: Any, d_0: int, clients: int) -> int:
        return 7 * d_0 * (settings.hidden + 1) + 2 * d_0 * clients  # psi, Adam's moments and what it makes on the way

    def upload(self, client: Client) -> np.ndarray:
        client.learn()
        return client.theta

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        S, theta_tilde = list(uploads), self._net.tensor(np.stack(list(uploads.values())))

        def loss() -> Tensor:
            return (self.generate(self.features()[S]) - theta_tilde).square().sum() / len(S)

        self.learned.fit(loss, eta=self.settings.eta, weight_decay=self.settings.weight_decay)
        self.end_round(server)
        self._theta = None

    def reply(self, server: Client, client: int) -> np.ndarray:
        if self._theta is None:  # of all clients at once
            self._theta = self._net.values(self.generate(self.features()))
        return self._theta[client]

    def end_round(self, server: Client) -> None:
        """psi has been fitted."""

    # -- the model of models -------------------------------------------------------------------------------------------

    def features(self) -> Tensor:
        """Z (M, f)."""
        return self.psi["X"]

    def generate(self, z: Tensor) -> Tensor:
        """HN(z; psi_H) (.., d) of z (.., f): an MLP whose last layer has a part for each block of theta."""
        for layer in range(self.settings.depth):
            z = (z @ self.psi[f"HN{layer}.weight"].T + self.psi[f"HN{layer}.bias"]).relu()
        return z @ self.psi["HN.weight"].T + self.psi["HN.bias"]

    @property
    def psi(self) -> dict[str, Tensor]:
        return self.learned.blocks

    def embeddings(self) -> dict[str, np.ndarray]:
        """Small at first, so that what is learned tells clients apart, not how they were drawn."""
        return {"X": 0.1 * self._rng("X").standard_normal((self._draws.clients, self.settings.embedding))}

    def hypernetwork(self) -> dict[str, np.ndarray]:
        width, blocks = self.settings.embedding, dict[str, np.ndarray]()
        for layer in range(self.settings.depth):
            blocks |= self._linear(f"HN{layer}", width, self.settings.hidden)
            width = self.settings.hidden
        theta = self._draws.theta
        return blocks | {"HN.weight": np.zeros((theta.size, width)), "HN.bias": theta}

    def _linear(self, name: str, inputs: int, outputs: int) -> dict[str, np.ndarray]:
        """Uniform in +-1/sqrt(inputs), torch's own bounds."""
        bound, rng = 1 / math.sqrt(inputs), self._rng(name)
        return {
            f"{name}.weight": rng.uniform(-bound, bound, (outputs, inputs)),
            f"{name}.bias": rng.uniform(-bound, bound, outputs),
        }

    def _rng(self, name: str) -> np.random.Generator:
        return generator(self._draws.seed, f"start of psi: {name}")

    def _learn_anew(self, blocks: Mapping[str, np.ndarray]) -> None:
        self.learned = self._net.Learned(blocks, self._draws.theta.dtype)

    # ------------------------------------------------------------------------------------------------------------------

    def state_bytes(self) -> int:
        return self.learned.nbytes() if self._is_server else 0

    def state(self) -> dict[str, np.ndarray]:
        return self.learned.state() if self._is_server else {}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        if self._is_server:
            self.learned.load(state)
            self._theta = None
