"""SFMTL-Graph (Elbakary, Ben Issaid, Bennis 2025): clients share their heads and what their classes look like to them.

A model w_k is a backbone theta_k, which never leaves its client, and a linear head phi_k (C, d_h) with biases (C,).
Anchors h_k (C_k, d_h) stand for the C_k classes of client k.

client k:  w_k     <- w_k - eta grad(f_k(w_k) + lam mean_i ||theta_k(x_i) - h_k^(c_i)||^2)    R mini-batches (5), (6)
           h_k^(c) <- mean of theta_k(x_i) over its samples of class c
server:    a_kl    <- max(0, alpha Sim_head(k, l) + (1 - alpha) Sim_repr(k, l))                           (7)-(10)
           communities C_j: the partition of the clients that Louvain's method finds for the weights a    (11)-(13)
           h_Cj    <- sum_k n_k h_k / sum_k n_k                      over k in C_j, class by class        (14)
           phi_k   <- phi_k - lam tau sum_l a_kl (phi_k - phi_l)     over l in C_j, tau = eta R           (15)

phi_k and h_k travel to the server, phi_k and h_Cj (of the classes of client k) back. theta of a client is w_k.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from ...topology.randomness import generator
from ..client import Client
from .base import Edge, Facts, RunFacts, SettingsError, State, Vector
from .server import NEEDS_NEW_UPLOADS, ServerAlgorithm, Uploads


@dataclass(frozen=True)
class SFMTLGraph(ServerAlgorithm):
    name: Literal["sfmtl-graph"] = "sfmtl-graph"
    lam: Annotated[
        float, Ge(0), "Weight lambda, of the anchor loss at the clients (6) and of the pull on the heads (15)."
    ] = 0.01
    alpha: Annotated[
        float,
        Ge(0),
        Le(1),
        "What similar heads count in the similarity of two clients (7); similar anchors count the rest.",
    ] = 0.49

    theta_is = "own"
    traits = replace(NEEDS_NEW_UPLOADS, momentum=False)

    def messages(self, edge: Edge) -> list[Vector]:
        return [Vector(edge.model.head_size + len(edge.facts) * edge.model.features)]

    def facts(self, run: RunFacts) -> Facts:
        """Both ends of an edge know of which classes the client has samples."""
        return Facts(edges={ends: run.classes[i] for i, j in run.graph.edges for ends in ((i, j), (j, i))})

    def check(self, run: RunFacts) -> None:
        if run.task != "classification":
            raise SettingsError(
                "algorithm.name = 'sfmtl-graph'", "has an anchor for each class, and data.task is 'regression'"
            )
        for model in run.models:
            if model.kind == "logistic" or (model.kind == "mlp" and not model.hidden):
                raise SettingsError(
                    "algorithm.name = 'sfmtl-graph'",
                    f"needs a backbone below the last layer, and model.kind = {model.kind!r} has none; use 'cnn', "
                    "'gru', or 'mlp' with model.hidden",
                )

    def begin(self, client: Client) -> State:
        if client.role == "server":
            return State(community=np.full(client.clients, -1), reply={}, _told="")
        shape = client.model.outputs, client.model.features
        return State(anchors=generator(client.seed, "anchors").standard_normal(shape).astype(client.theta.dtype))

    # -- the client's half ---------------------------------------------------------------------------------------------

    def upload(self, client: Client) -> np.ndarray:
        for batch in client.batches():
            client.theta -= client.alpha * client.gradient_on(batch, (client.state.anchors, self.lam))  # (6)
        anchors = client.class_features()[_classes(client)]
        return np.concatenate([_head(client), anchors.ravel()])

    def download(self, client: Client, vector: np.ndarray) -> None:
        if vector.any():  # zeros: the server has not heard of this client yet
            head, classes = _head(client), _classes(client)
            head[:] = vector[: head.size]
            client.state.anchors[classes] = vector[head.size :].reshape(len(classes), -1)

    # -- the server's half ---------------------------------------------------------------------------------------------

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        size, lam, alpha = server.model.head_size, self.lam, server.alpha
        phi = {k: vector[:size].astype(float) for k, vector in uploads.items()}
        h = {
            k: dict(zip(server.neighbours[k].facts, vector[size:].reshape(-1, server.model.features), strict=True))
            for k, vector in uploads.items()
        }
        a = similarities(phi, h, self.alpha)
        seed = int(server.generator("louvain").integers(1 << 31))
        for members in communities(phi, a, seed):
            h_c = mean_anchors({k: h[k] for k in members}, {k: server.neighbours[k].samples for k in members})  # (14)
            for k in members:
                tau = alpha * server.steps_of(k)
                pull = sum(a[k, other] * (phi[k] - phi[other]) for other in members if other != k)
                anchors = [h_c[c] for c in server.neighbours[k].facts]
                server.state.reply[k] = np.concatenate([phi[k] - lam * tau * pull, *anchors])  # (15)
            server.state.community[members] = members[0]
        self._tell(server, sorted(uploads))

    def reply(self, server: Client, client: int) -> np.ndarray:
        size = server.model.head_size + len(server.neighbours[client].facts) * server.model.features
        return server.state.reply.get(client, np.zeros(size)).astype(server.theta.dtype)

    def _tell(self, server: Client, heard: list[int]) -> None:
        """An event where the communities are others than a round before."""
        groups: dict[int, list[int]] = {}
        for k in heard:
            groups.setdefault(int(server.state.community[k]), []).append(k)
        text = " | ".join(" ".join(map(str, group)) for group in groups.values())
        if text != server.state._told:
            server.report.events.append(("communities", text))
        server.state._told = text


def _head(client: Client) -> np.ndarray:
    """phi_k and its biases, a part of theta."""
    return client.theta[client.theta.size - client.model.head_size :]


def _classes(client: Client) -> list[int]:
    """Those that a client has samples of, as it was told of the edge to the server."""
    (server,) = client.neighbours.values()
    return list(server.facts)


Anchors = Mapping[int, Mapping[int, np.ndarray]]
"""{client: {class: anchor (d_h,)}}"""


def similarities(phi: Mapping[int, np.ndarray], h: Anchors, alpha: float) -> dict[tuple[int, int], float]:
    """{(k, l): a_kl} of all pairs, both ways: (7)-(10), with heads phi as flat vectors.

    Both similarities are sums over the classes that the two share, divided by the larger of their numbers of classes.
    """
    clients = list(phi)
    weights = {k: vector[: -(len(vector) // (len(next(iter(h[k].values()))) + 1))] for k, vector in phi.items()}
    total = np.zeros((len(clients), len(clients)))
    for c in sorted({c for classes in h.values() for c in classes}):
        holders = [place for place, k in enumerate(clients) if c in h[k]]
        anchors = np.array([h[clients[place]][c] for place in holders], float)  # (m, d_h)
        scores = []
        for place in holders:
            k = clients[place]
            matrix = weights[k].reshape(-1, anchors.shape[1])
            scores.append(anchors @ matrix.T + phi[k][weights[k].size :])
        z = unit(np.array(scores))  # (m, m, C): phi_k(h_j) is in row k, column j
        own = z[np.arange(len(holders)), np.arange(len(holders))]  # phi_k(h_k)
        heads = np.einsum("jc,kjc->kj", own, z)  # cos(phi_k(h_j), phi_j(h_j))
        heads = (heads + heads.T) / 2  # (8)
        directions = unit(anchors)
        total[np.ix_(holders, holders)] += alpha * heads + (1 - alpha) * directions @ directions.T  # (7), (10)
    counts = np.array([len(h[k]) for k in clients])
    total = np.maximum(total / np.maximum(counts[:, None], counts), 0)
    pairs = ((i, j) for i in range(len(clients)) for j in range(len(clients)) if i != j)
    return {(clients[i], clients[j]): float(total[i, j]) for i, j in pairs}


def unit(vectors: np.ndarray) -> np.ndarray:
    """Each divided by its norm, so that products are cosines (9); zeros stay."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(norms, norms, 1)


def communities(clients: Iterable[int], a: Mapping[tuple[int, int], float], seed: int) -> list[list[int]]:
    """A partition of the clients of high modularity (11) for the weights a_kl > 0, by Louvain's method."""
    import networkx

    graph = networkx.Graph()
    graph.add_nodes_from(clients)
    graph.add_weighted_edges_from((*pair, weight) for pair, weight in a.items() if pair[0] < pair[1] and weight > 0)
    return sorted(map(sorted, networkx.community.louvain_communities(graph, seed=seed)))


def mean_anchors(h: Anchors, samples: Mapping[int, int]) -> dict[int, np.ndarray]:
    """{class: anchor} of a community: (14), the mean over its clients that have the class, weighted by n_k."""
    means = {}
    for c in sorted({c for classes in h.values() for c in classes}):
        holders = [k for k in h if c in h[k]]
        means[c] = np.average([h[k][c].astype(float) for k in holders], axis=0, weights=[samples[k] for k in holders])
    return means
