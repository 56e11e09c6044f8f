"""SFMTL-Graph: the server finds communities of clients with similar heads and classes."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ...topology.randomness import generator
from ...topology.section import Fraction, NotNegative
from .base import Client, Edge, State, Vector
from .fedproto import Representations
from .server import NEEDS_NEW_UPLOADS, Uploads


@dataclass(frozen=True)
class SFMTLGraph(Representations):
    """SFMTL-Graph (Elbakary, Ben Issaid, Bennis 2025): clients share their heads and what their classes look like to
    them.

    A model w_k is a backbone theta_k, which never leaves its client, and a linear head phi_k (C, d_h) with biases (C,).
    Anchors h_k (C_k, d_h) stand for the C_k classes of client k.

    client k:  w_k     <- w_k - eta grad(f_k(w_k) + lam mean_i ||theta_k(x_i) - h_k^(c_i)||^2)   R mini-batches (5), (6)
               h_k^(c) <- mean of theta_k(x_i) over its samples of class c
    server:    a_kl    <- max(0, alpha Sim_head(k, l) + (1 - alpha) Sim_repr(k, l))                           (7)-(10)
               communities C_j: the partition of the clients that Louvain's method finds for the weights a    (11)-(13)
               h_Cj    <- sum_k n_k h_k / sum_k n_k                      over k in C_j, class by class        (14)
               phi_k   <- phi_k - lam tau sum_l a_kl (phi_k - phi_l)     over l in C_j, tau = eta R           (15)

    phi_k and h_k travel to the server, phi_k and h_Cj (of the classes of client k) back. theta of a client is w_k."""

    name: Literal["sfmtl-graph"] = "sfmtl-graph"
    lam: NotNegative = 0.01
    """Weight lambda, of the anchor loss at the clients (6) and of the pull on the heads (15)."""
    alpha: Fraction = 0.49
    """What similar heads count in the similarity of two clients (7); similar anchors count the rest."""

    traits = replace(NEEDS_NEW_UPLOADS, momentum=False, reads_samples=True)

    def messages(self, edge: Edge) -> list[Vector]:
        return [Vector(edge.model.last_size + len(edge.facts) * edge.model.features)]

    def begin(self, client: Client) -> State:
        if client.role == "server":
            weights = np.full(2 * (client.clients,), np.nan, np.float32)  # a_kl, of those who were heard
            return State(community=np.full(client.clients, -1), weights=weights, reply={}, _told="")
        anchors = generator(client.seed, "anchors").standard_normal((client.model.outputs, client.model.features))
        return State(anchors=anchors.astype(client.theta.dtype))

    def upload(self, client: Client) -> np.ndarray:
        for batch in client.batches():
            client.theta -= client.alpha * client.gradient_on(batch, (client.state.anchors, self.lam))  # (6)
        anchors = client.class_features()[self.classes_of(client)]
        return np.append(client.theta[-client.model.last_size :], anchors)

    def download(self, client: Client, vector: np.ndarray) -> None:
        if vector.any():  # zeros: the server has not heard of this client yet
            size, classes = client.model.last_size, self.classes_of(client)
            client.theta[-size:] = vector[:size]
            client.state.anchors[classes] = vector[size:].reshape(len(classes), -1)

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        import networkx

        state, model, clients = server.state, server.model, sorted(uploads)
        peers = [server.neighbours[k] for k in clients]
        n, tau = np.array([peer.samples for peer in peers]), [server.alpha * server.steps_of(k) for k in clients]
        has = np.array([[c in peer.facts for c in range(model.outputs)] for peer in peers])
        phi = np.stack([uploads[k][: model.last_size] for k in clients]).astype(float)
        h = np.zeros((*has.shape, model.features))
        h[has] = np.concatenate([uploads[k][model.last_size :].reshape(-1, model.features) for k in clients])

        a = similarities(phi, h, has, self.alpha)
        state.weights[np.ix_(clients, clients)] = a
        graph, seed = networkx.Graph(), int(server.generator("louvain").integers(1 << 31))
        graph.add_nodes_from(clients)
        graph.add_weighted_edges_from((clients[i], clients[j], float(a[i, j])) for i, j in np.argwhere(np.triu(a) > 0))
        parts = sorted(map(sorted, networkx.community.louvain_communities(graph, seed=seed)))  # (11)-(13)
        for members in parts:
            places = [clients.index(k) for k in members]
            h_c = h.copy()
            for c in range(model.outputs):
                if holders := [i for i in places if has[i, c]]:
                    h_c[holders, c] = np.average(h[holders, c], axis=0, weights=n[holders])  # (14)
            for k, i in zip(members, places, strict=True):
                pull = sum(a[i, j] * (phi[i] - phi[j]) for j in places)
                state.reply[k] = np.append(phi[i] - self.lam * tau[i] * pull, h_c[i, has[i]])  # (15)
            state.community[members] = members[0]
        text = " | ".join(" ".join(map(str, members)) for members in parts)
        if text != state._told:
            server.report.events.append(("communities", text))
        state._told = text

    def reply(self, server: Client, client: int) -> np.ndarray:
        size = server.model.last_size + len(server.neighbours[client].facts) * server.model.features
        return server.state.reply.get(client, np.zeros(size)).astype(server.theta.dtype)


def similarities(phi: np.ndarray, h: np.ndarray, has: np.ndarray, alpha: float) -> np.ndarray:
    """Returns a (M, M), with zeros on the diagonal: (7)-(10), of heads phi (M, C (d_h + 1)), biases last, and anchors h
    (M, C, d_h) of the classes that each client has (M, C). Both similarities are sums over the classes that two clients
    share, divided by the larger of their numbers of them."""
    clients, classes, d_h = h.shape
    total = np.zeros((clients, clients))
    for c in np.flatnonzero(has.any(axis=0)):
        holders = np.flatnonzero(has[:, c])
        anchors = h[holders, c]  # (m, d_h)
        scores = [anchors @ phi[k, :-classes].reshape(classes, d_h).T + phi[k, -classes:] for k in holders]
        z = unit(np.array(scores))  # (m, m, C): phi_k(h_j) is in row k, column j
        own = z[np.arange(len(holders)), np.arange(len(holders))]  # phi_k(h_k)
        heads = np.einsum("jc,kjc->kj", own, z)  # cos(phi_k(h_j), phi_j(h_j))
        heads = (heads + heads.T) / 2  # (8)
        directions = unit(anchors)
        total[np.ix_(holders, holders)] += alpha * heads + (1 - alpha) * directions @ directions.T  # (7), (10)
    counts = has.sum(axis=1)
    a = np.maximum(total / np.maximum(counts[:, None], counts), 0)
    np.fill_diagonal(a, 0)
    return a


def unit(vectors: np.ndarray) -> np.ndarray:
    """Returns each divided by its norm, so that products are cosines (9); zeros stay."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(norms, norms, 1)
