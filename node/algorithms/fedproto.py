"""FedProto: what clients share is what their classes look like to them, whatever their models are."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ...topology.section import NotNegative
from ..assignment import Assignment
from .base import Client, Edge, Facts, RunFacts, SettingsError, State, Vector, Work
from .server import TAKES_OLD_UPLOADS, ServerAlgorithm, Uploads

_NEVER = -1e6  # the score of a class without a prototype


@dataclass(frozen=True)
class Representations(ServerAlgorithm):
    """Clients share what their last layers see of the samples of each class; layers below them may differ."""

    theta_is = "own"
    traits = replace(TAKES_OLD_UPLOADS, same_size=False, reads_samples=True)

    def facts(self, run: RunFacts) -> Facts:
        """Both ends of an edge know of which classes the client has samples."""
        return Facts(edges={ends: run.classes[i] for i, j in run.graph.edges for ends in ((i, j), (j, i))})

    def work(self, own: Assignment, round: int) -> Work:
        return Work(full_passes=1)  # class_features

    def classes_of(self, client: Client) -> list[int]:
        (server,) = client.neighbours.values()
        return list(server.facts)

    def check(self, run: RunFacts) -> None:
        key, first = f"algorithm.name = {self.name!r}", run.models[0]
        if run.task != "classification":
            raise SettingsError(key, "shares what classes look like, and data.task is 'regression'")
        run.require_body(key)
        for model in run.models:
            if model.parameters_of("head") != model.parameters()[-2:]:
                why = "a head is the last layer here, which sees what stands for a class as it sees a sample"
                raise SettingsError(f"model.head = {list(model.head)}", f"{why}; leave it out")
            if (model.features, model.outputs) != (first.features, first.outputs):
                sizes = " and ".join(f"{each.features} to {each.outputs}" for each in (first, model))
                raise SettingsError(
                    key, f"needs last layers of one size, and there are {sizes}; layers below may differ"
                )


@dataclass(frozen=True)
class FedProto(Representations):
    """FedProto (Tan et al. 2022): classes have prototypes C^(c) (d_h,), near which all clients' features phi_k stay.

    client k:  theta_k <- theta_k - alpha grad(f_k(theta_k) + lam mean_i ||phi_k(x_i) - C^(y_i)||^2)    R mini-batches
               C_k^(c) <- mean of phi_k(x_i) over its n_kc samples of class c
    server:    C^(c)   <- sum_k n_kc C_k^(c) / n_c,    n_c = sum_k n_kc      over the clients of the round with class c

    C_k and n_k travel to the server, C and n back, of all classes. What is evaluated takes a sample to be of the class
    with the nearest C^(c): that is theta_k with the last layer 2 C^(c) phi - ||C^(c)||^2. Until a client knows C of all
    its classes it learns with lam = 0, and what is evaluated has its own last layer."""

    name: Literal["fedproto"] = "fedproto"
    lam: NotNegative = 0.1
    """Weight lambda of the distance between features and prototypes."""

    traits = replace(Representations.traits, momentum=False)

    def messages(self, edge: Edge) -> list[Vector]:
        classes = edge.model.outputs if edge.from_server else len(edge.facts)
        return [Vector(classes * (edge.model.features + 1), exact=classes)]

    def begin(self, client: Client) -> State:
        """Prototypes (classes, d_h), and of how many samples each is the mean, (classes,)."""
        shape = client.model.outputs, client.model.features
        return State(prototypes=np.zeros(shape, client.theta.dtype), n=np.zeros(shape[0], client.theta.dtype))

    def upload(self, client: Client) -> np.ndarray:
        classes, state = self.classes_of(client), client.state
        pull = (state.prototypes, self.lam) if state.n[classes].all() else None
        for batch in client.batches():
            client.theta -= client.alpha * client.gradient_on(batch, pull)
        return np.append(client.class_features()[classes], client.class_counts()[classes]).astype(client.theta.dtype)

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        state = server.state
        sums, n = np.zeros(state.prototypes.shape), np.zeros(state.n.shape)
        for k, upload in uploads.items():
            classes = list(server.neighbours[k].facts)
            means, n_k = np.split(upload, [-len(classes)])
            sums[classes] += n_k[:, None] * means.reshape(len(classes), -1)
            n[classes] += n_k
        found = n > 0  # the others keep what they have
        state.prototypes[found], state.n[found] = sums[found] / n[found, None], n[found]

    def reply(self, server: Client, client: int) -> np.ndarray:
        return np.append(server.state.prototypes, server.state.n)

    def download(self, client: Client, vector: np.ndarray) -> None:
        C, n = np.split(vector, [-client.model.outputs])
        client.state.prototypes, client.state.n = C.reshape(len(n), -1).copy(), n.copy()

    def personal_model(self, client: Client) -> np.ndarray:
        C, n = client.state.prototypes, client.state.n
        if client.role == "server" or not n[self.classes_of(client)].all():
            return client.theta
        biases = np.where(n > 0, -np.sum(C * C, axis=1), _NEVER)
        return np.concatenate([client.theta[: -client.model.last_size], 2 * C.ravel(), biases]).astype(C.dtype)
