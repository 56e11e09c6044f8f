"""FLT, federated learning with taskonomy (Jamali-Rad, Abdizadeh, Szabo): FedAvg among clients with related data.

Once, before the first round (Algorithm 2):
server:    sends an encoder G                                  (with fine-tuning the whole autoencoder)
client m:  M_m  <- the k centroids that k-means finds in G(D_m)                    after some epochs of fine-tuning
server:    Z    <- UMAP of all centroids, u_mr in R^2 or R^3
           A_ij <- min_rs ||u_ir - u_js||,    related(i, j) <- A_ij <= gamma
           C    <- clusters: the rows of "related", joined by Ward's method
Then in each round (Algorithm 3):
client m:  w_m  <- local work from the model it has got
server:    case I    w_j <- sum_m n_m w_m / sum_m n_m      over the clients m of the round that are related to j
           case II   w_c <- the same                       over those of cluster c

Printed are sign(A - gamma), and averages that do not add up to one: what is written here is what they are for. A model
stays as it is where none of its clients takes part in a round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt

from ...topology.errors import install
from ...transport.peers import Peers
from ..client import Client
from ..encoder import Autoencoder, EncoderError
from ..model.architecture import Architecture
from ..needs import Needs
from .base import SettingsError, Way
from .server import Fraction, ServerAlgorithm, Uploads, weighted_mean

RADIUS = 2.0
"""Of the centroids' principal components: at this scale a gamma near 1 is of use, as it is with UMAP."""


@dataclass(frozen=True)
class FLTSettings:
    name: Literal["flt"] = "flt"
    fraction: Fraction = 1.0
    case: Annotated[
        Literal["related", "clusters"],
        "Whose models are averaged for a client: those of the clients related to it (case I), or those of its cluster "
        "(case II).",
    ] = "clusters"
    encoder: Annotated[
        str,
        'File of `sheafgossip encoder train`, relative to the folder of the configuration; "" takes one with random '
        "parameters.",
    ] = ""
    embedding: Annotated[int, Ge(1), "Numbers e that the encoder makes of an image."] = 128
    fine_tune_epochs: Annotated[
        int, Ge(0), "Epochs for which a client trains the autoencoder on its own samples first; 0 does not."
    ] = 0
    centroids: Annotated[int, Ge(1), "k of k-means."] = 5
    manifold: Annotated[
        Literal["auto", "umap", "pca"],
        "What maps all centroids to few dimensions; auto: umap where umap-learn is installed, else pca, and says so.",
    ] = "auto"
    dimensions: Annotated[int, Ge(1), "Of what it maps them to."] = 2
    neighbours: Annotated[
        int, Ge(2), Needs("manifold", "auto", "umap"), "umap: how many neighbours of a centroid it looks at."
    ] = 15
    gamma: Annotated[float, Gt(0), "Clients at most so far apart there are related."] = 1.0
    clusters: Annotated[
        int,
        Ge(0),
        Needs("case", "clusters"),
        "How many clusters; 0: as many as there are before the largest step in the heights of Ward's tree.",
    ] = 0


class FLT(ServerAlgorithm):
    Settings = FLTSettings
    has_common_model = False
    libraries = ("torch.nn.functional", "sklearn.cluster")  # once, not 160 MB and a second in each client

    def __init__(self, settings: Any, client: Client):
        super().__init__(settings, client)
        self.is_server = client.role == "server"
        self.averaged = np.eye(client.clients, dtype=bool)
        """(models, clients): whose models each of the server's models is the mean of."""
        self.model_of = np.arange(client.clients)
        """(clients,): which of them each client gets."""
        self.models: list[np.ndarray] = []

    @classmethod
    def opening(cls, settings: Any, way: Way) -> tuple[int, ...]:
        autoencoder = Autoencoder(way.model.input_shape, settings.embedding)
        if way.down:
            return (autoencoder.size if settings.fine_tune_epochs else autoencoder.encoder_size,)
        return (settings.centroids * settings.embedding,)

    @classmethod
    def check_models(cls, settings: Any, models: Sequence[Architecture], task: str, same_start: bool) -> None:
        for shape in {model.input_shape: None for model in models}:
            try:
                autoencoder = Autoencoder(shape, settings.embedding)
            except EncoderError as error:
                raise SettingsError("algorithm.name = 'flt'", str(error)) from None
            if settings.encoder:
                try:
                    autoencoder.load(Path(settings.encoder))
                except EncoderError as error:
                    raise SettingsError(f"algorithm.encoder = {settings.encoder!r}", str(error)) from None

    @classmethod
    def opening_flops(cls, settings: Any, model: Architecture, samples: int) -> int:
        autoencoder = Autoencoder(model.input_shape, settings.embedding)
        trained = 2 * 3 * settings.fine_tune_epochs  # encoder and decoder, about alike; back takes twice as much
        return samples * (1 + trained) * autoencoder.encoding_flops

    # -- once ----------------------------------------------------------------------------------------------------------

    def open(self, client: Client, peers: Peers) -> None:
        autoencoder = Autoencoder(client.model.input_shape, self.settings.embedding)
        if self.is_server:
            vector = self._encoder(client, autoencoder)
            peers.send(dict.fromkeys(client.neighbours, vector))
            self._relate(client, peers.receive())
            return
        (server,) = client.neighbours
        peers.send({server: self._centroids(client, autoencoder, peers.receive().get(server))})

    def _encoder(self, server: Client, autoencoder: Autoencoder) -> np.ndarray:
        if self.settings.encoder:
            vector = autoencoder.load(Path(self.settings.encoder))
        else:
            vector = autoencoder.start(server.generator("encoder"))
        size = autoencoder.size if self.settings.fine_tune_epochs else autoencoder.encoder_size
        return vector[:size].astype(server.theta.dtype)

    def _centroids(self, client: Client, autoencoder: Autoencoder, encoder: np.ndarray | None) -> np.ndarray:
        """M_m, (k e,), a centroid several times where there are fewer samples than k; 0 without an encoder."""
        k, e = self.settings.centroids, self.settings.embedding
        if encoder is None:
            return np.zeros(k * e, client.theta.dtype)
        from sklearn.cluster import KMeans

        encoder, images = encoder.copy(), client.inputs()
        for _ in autoencoder.train(encoder, images, self.settings.fine_tune_epochs, client.generator("fine-tuning")):
            pass
        embedded = autoencoder.embed(encoder, images)
        seed = int(client.generator("k-means").integers(1 << 31))
        kmeans = KMeans(min(k, len(embedded)), n_init=10, random_state=seed).fit(embedded)
        return np.resize(kmeans.cluster_centers_, (k, e)).ravel().astype(client.theta.dtype)

    def _relate(self, server: Client, received: Uploads) -> None:
        """Who is related to whom; clients that were not heard only to themselves."""
        signatures = {m: vector.reshape(self.settings.centroids, -1) for m, vector in received.items() if vector.any()}
        heard = sorted(signatures)
        if len(heard) > 1:
            z = self._manifold(server, np.concatenate([signatures[m] for m in heard]))
            distances = nearest(z.reshape(len(heard), self.settings.centroids, -1))
            self.averaged[np.ix_(heard, heard)] = distances <= self.settings.gamma
        if self.settings.case == "clusters":
            self.model_of = clusters(self.averaged, self.settings.clusters)
            self.averaged = np.arange(self.model_of.max() + 1)[:, None] == self.model_of
            groups = [" ".join(map(str, np.flatnonzero(row))) for row in self.averaged]
            self._say("clusters", " | ".join(groups))
        else:
            related = (self.averaged.sum(axis=1) - 1).tolist()
            self._say("related", f"{min(related)} to {max(related)} other clients to each")
        self.models = [server.theta.copy() for _ in self.averaged]

    def _manifold(self, server: Client, centroids: np.ndarray) -> np.ndarray:
        """Z (n, dimensions) of all centroids (n, e)."""
        manifold, dimensions = self.settings.manifold, self.settings.dimensions
        if manifold != "pca":
            try:
                from umap import UMAP
            except ImportError:
                if manifold == "umap":
                    raise RuntimeError(
                        f"algorithm.manifold = 'umap' needs umap-learn: {install('flt')}, or use 'pca'"
                    ) from None
                text = "umap-learn is not installed: principal components take the place of UMAP"
                print(text, flush=True)
                self.report.warnings.append(f"{text}; {install('flt')}, or set algorithm.manifold")
            else:
                umap = UMAP(
                    n_components=dimensions,
                    n_neighbors=min(self.settings.neighbours, len(centroids) - 1),
                    random_state=int(server.generator("umap").integers(1 << 31)),
                    n_jobs=1,
                )
                return umap.fit_transform(centroids)
        z = principal_components(centroids, dimensions)
        radius = np.sqrt((z**2).sum(axis=1).mean())  # root mean square distance from the mean
        return z * (RADIUS / radius if radius else 1)

    def _say(self, kind: str, text: str) -> None:
        print(f"{kind}: {text}", flush=True)
        self.report.events.append((kind, text))

    # -- each round ----------------------------------------------------------------------------------------------------

    def upload(self, client: Client) -> np.ndarray:
        client.learn()
        return client.theta

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        for row, averaged in enumerate(self.averaged):
            heard = {m: vector for m, vector in uploads.items() if averaged[m]}
            if heard:
                self.models[row] = weighted_mean(server, heard).astype(server.theta.dtype)
        server.theta[:] = np.mean(self.models, axis=0)  # of no use but to look at

    def reply(self, server: Client, client: int) -> np.ndarray:
        return self.models[self.model_of[client]]

    # ------------------------------------------------------------------------------------------------------------------

    def state_bytes(self) -> int:
        return sum(array.nbytes for array in self.state().values())

    def state(self) -> dict[str, np.ndarray]:
        if not self.models:
            return {}
        return {
            "averaged": self.averaged.astype(np.uint8),
            "model_of": self.model_of,
            "models": np.array(self.models),
        }

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        if "models" in state:
            self.averaged, self.model_of = state["averaged"].astype(bool), state["model_of"].copy()
            self.models = list(state["models"].copy())


def nearest(points: np.ndarray) -> np.ndarray:
    """A_ij = min_rs ||u_ir - u_js||, (M, M), of points u (M, k, dimensions)."""
    from scipy.spatial.distance import cdist

    count, k, _ = points.shape
    flat = points.reshape(count * k, -1)
    return cdist(flat, flat).reshape(count, k, count, k).min(axis=(1, 3))


def principal_components(points: np.ndarray, count: int) -> np.ndarray:
    """(n, count) of points (n, e), around their mean."""
    centred = points - points.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    found = centred @ directions[:count].T
    return np.pad(found, ((0, 0), (0, count - found.shape[1])))


def clusters(related: np.ndarray, wanted: int = 0) -> np.ndarray:
    """(M,): cluster 0, 1, ... of each client, in the order of their first clients. Ward's method on the rows of
    ``related`` (M, M); without a number ``wanted``, its tree is cut where the heights of two joins are farthest apart.
    """
    from scipy.cluster.hierarchy import fcluster, linkage

    if len(related) == 1:
        return np.zeros(1, int)
    tree = linkage(related.astype(float), method="ward")
    if not wanted:
        steps = np.diff(np.concatenate([[0.0], tree[:, 2]]))
        wanted = len(related) - int(np.argmax(np.round(steps, 9))) if tree[-1, 2] > 0 else 1
    labels = fcluster(tree, wanted, criterion="maxclust")
    order = {label: number for number, label in enumerate(dict.fromkeys(labels.tolist()))}
    return np.array([order[label] for label in labels.tolist()])
