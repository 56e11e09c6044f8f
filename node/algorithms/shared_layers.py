"""FedAvg-c, FedSAK and SFMTL-Graph: models of which clients share some layers, and keep the others to themselves. A
model is a feature extractor phi_i and a prediction head v_i, its last linear layer: theta_i = (phi_i, v_i). What is
shared, w_i, is all of it where only the data differ; the head where extractors differ; the extractor where tasks do."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from ...topology.randomness import generator
from ...topology.section import Fraction, NotNegative, Positive
from ..model.architecture import Architecture, Parameter
from .base import Client, Edge, Facts, RunFacts, SettingsError, State, Vector
from .server import NEEDS_NEW_UPLOADS, ServerAlgorithm, Uploads, weighted_mean


@dataclass(frozen=True)
class SharedLayers(ServerAlgorithm):
    """A subclass writes ``aggregate`` and ``reply``."""

    share: Literal["model", "extractor", "head"] = "model"
    """Layers w_i that clients share: the whole model, all layers but the last, or the last one. Their shapes must be
    the same for all clients; other layers may differ."""

    theta_is = "own"
    traits = replace(NEEDS_NEW_UPLOADS, same_size=False)

    def shared(self, model: Architecture) -> Sequence[Parameter]:
        """Returns the blocks of theta that make up w."""
        *extractor, weight, bias = model.parameters()
        return {"model": (*extractor, weight, bias), "extractor": extractor, "head": (weight, bias)}[self.share]

    def w(self, client: Client) -> np.ndarray:
        """Returns w_i (d_w,), a part of theta_i."""
        head = client.theta.size - client.model.head_size
        return client.theta[{"model": slice(None), "extractor": slice(head), "head": slice(head, None)}[self.share]]

    def messages(self, edge: Edge) -> list[Vector]:
        return [Vector(sum(block.size for block in self.shared(edge.model)))]  # alike at both ends

    def check(self, run: RunFacts) -> None:
        key = f"algorithm.share = {self.share!r}"
        shapes = [[block.shape for block in self.shared(model)] for model in run.models]
        if not shapes[0]:
            raise SettingsError(key, f"a {run.models[0].kind} model is a head only; allowed are 'model' and 'head'")
        for client, other in enumerate(shapes):
            if other != shapes[0]:
                first, second = (" + ".join("x".join(map(str, block)) for block in each) for each in (shapes[0], other))
                raise SettingsError(
                    key,
                    f"clients 0 and {client} differ in the layers that are to be shared, {first} and {second}; choose "
                    "layers that are alike, or give all clients one model and one task",
                )

    def upload(self, client: Client) -> np.ndarray:
        client.learn()
        return self.w(client)

    def download(self, client: Client, vector: np.ndarray) -> None:
        self.w(client)[:] = vector


@dataclass(frozen=True)
class FedAvgC(SharedLayers):
    """FedAvg-c (Liao et al. 2024, their baseline): FedAvg over the layers w_i that clients have in common.

    client i:  (w_i, rest_i) <- local work from (w, rest_i)
    server:    w <- sum_i n_i/n w_i                  over the clients of the round, n_i their training samples"""

    name: Literal["fedavg-c"] = "fedavg-c"

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        self.w(server)[:] = weighted_mean(server, uploads)

    def reply(self, server: Client, client: int) -> np.ndarray:
        return self.w(server)


@dataclass(frozen=True)
class FedSAK(SharedLayers):
    """FedSAK (Liao et al. 2024): the server couples the layers that clients share by the trace norm of their tensor.

    client i:  theta_i <- local work from theta_i, with w_i in its place                                     (8)
               sends w_i, its shared layers w_i^1 .. w_i^L
    server:    W^l = stack(w_1^l, .., w_M^l) in R^{d_1 x .. x d_{p-1} x M}      for each layer l             (4)
               L_r = sum_l sum_k ||W^l_(k)||_*          W^l_(k): W^l unfolded along its mode k, d_k x the rest (5)
               w_i <- w_i - eta lam (d L_r / d W)_i     d||A||_* = U V^T for A = U S V^T                  (6), (7)
               sends each client its own w_i back, in the same round

    M are the clients of the round; of the others the server keeps the last w_i. U and V hold the singular vectors of
    the singular values that are not zero."""

    name: Literal["fedsak"] = "fedsak"
    lam: Annotated[NotNegative, "Weight lambda of the trace norm: how closely clients are coupled."] = 0.01
    eta: Annotated[Positive, "Step size eta_w of the server along the trace norm's subgradient."] = 0.1

    answers = "same"

    def begin(self, client: Client) -> State:
        """The server keeps {client: its w_i}."""
        return State(w=dict.fromkeys(client.neighbours, self.w(client)) if client.role == "server" else {})

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        w = np.stack(list(uploads.values()))  # (M, d_w)
        shapes = [block.shape for block in self.shared(server.model)]
        moved = w - self.eta * self.lam * trace_norm_subgradient(w, shapes)  # (7)
        server.state.w |= zip(uploads, moved.astype(w.dtype), strict=True)

    def reply(self, server: Client, client: int) -> np.ndarray:
        return server.state.w[client]


def trace_norm_subgradient(w: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    """Returns dL_r/dW (M, d_w) float64 at w (M, d_w): M clients, whose vectors are the layers of these shapes."""
    subgradient, end = np.zeros(w.shape), 0
    for shape in shapes:
        start, end = end, end + int(np.prod(shape))
        layer = w[:, start:end].astype(np.float64).reshape(-1, *shape)  # W^l, clients first
        for k in range(layer.ndim):  # a mode each, in any order
            unfolded = np.moveaxis(layer, k, 0)
            slope = orthogonal_factor(unfolded.reshape(len(unfolded), -1), np.finfo(w.dtype).eps)  # U V^T
            subgradient[:, start:end] += np.moveaxis(slope.reshape(unfolded.shape), 0, k).reshape(len(w), -1)
    return subgradient


def orthogonal_factor(matrix: np.ndarray, rounding: float) -> np.ndarray:
    """Returns U V^T of the compact singular value decomposition: a subgradient of the trace norm (6). Singular values
    that the relative ``rounding`` of the matrix's numbers explains count as zero. It moves none by more than about
    ``rounding`` s_0, whatever the shape; the decomposition's own is far smaller, but grows with the shape."""
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    rank = int((s > s[0] * max(8 * rounding, max(matrix.shape) * np.finfo(s.dtype).eps)).sum())
    return u[:, :rank] @ vt[:rank]


@dataclass(frozen=True)
class SFMTLGraph(ServerAlgorithm):
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

    theta_is = "own"
    traits = replace(NEEDS_NEW_UPLOADS, momentum=False)

    def messages(self, edge: Edge) -> list[Vector]:
        return [Vector(edge.model.head_size + len(edge.facts) * edge.model.features)]

    def facts(self, run: RunFacts) -> Facts:
        """Both ends of an edge know of which classes the client has samples."""
        return Facts(edges={ends: run.classes[i] for i, j in run.graph.edges for ends in ((i, j), (j, i))})

    def check(self, run: RunFacts) -> None:
        key = "algorithm.name = 'sfmtl-graph'"
        if run.task != "classification":
            raise SettingsError(key, "has an anchor for each class, and data.task is 'regression'")
        for model in run.models:
            if model.head_size == model.size:
                wrong = f"needs a backbone below the last layer, and model.kind = {model.kind!r} has none"
                raise SettingsError(key, f"{wrong}; use 'cnn', 'gru', or 'mlp' with model.hidden")

    def begin(self, client: Client) -> State:
        if client.role == "server":
            return State(community=np.full(client.clients, -1), reply={}, _told="")
        (server,) = client.neighbours.values()
        anchors = generator(client.seed, "anchors").standard_normal((client.model.outputs, client.model.features))
        return State(anchors=anchors.astype(client.theta.dtype), _classes=list(server.facts))

    def upload(self, client: Client) -> np.ndarray:
        for batch in client.batches():
            client.theta -= client.alpha * client.gradient_on(batch, (client.state.anchors, self.lam))  # (6)
        anchors = client.class_features()[client.state._classes]
        return np.append(client.theta[-client.model.head_size :], anchors)

    def download(self, client: Client, vector: np.ndarray) -> None:
        if vector.any():  # zeros: the server has not heard of this client yet
            size, classes = client.model.head_size, client.state._classes
            client.theta[-size:] = vector[:size]
            client.state.anchors[classes] = vector[size:].reshape(len(classes), -1)

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        import networkx

        state, model, clients = server.state, server.model, sorted(uploads)
        peers = [server.neighbours[k] for k in clients]
        n, tau = np.array([peer.samples for peer in peers]), [server.alpha * server.steps_of(k) for k in clients]
        has = np.array([[c in peer.facts for c in range(model.outputs)] for peer in peers])
        phi = np.stack([uploads[k][: model.head_size] for k in clients]).astype(float)
        h = np.zeros((*has.shape, model.features))
        h[has] = np.concatenate([uploads[k][model.head_size :].reshape(-1, model.features) for k in clients])

        a = similarities(phi, h, has, self.alpha)
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
        size = server.model.head_size + len(server.neighbours[client].facts) * server.model.features
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
