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

Its baseline PCA + k-means + HC has no encoder and no UMAP: M_m are centroids of the client's own principal components,
and A_ij the least distance of two of them."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from ...topology.errors import UserError, install
from ...topology.section import Count, Index, Needs, Positive
from ...transport.array_file import ArrayFile
from ..assignment import Assignment
from ..model.architecture import Architecture, Parameter, layer
from .base import Client, Cost, Edge, Peers, RunFacts, SettingsError, State, Vector, weighted_mean
from .server import NEEDS_NEW_UPLOADS, ServerAlgorithm, Uploads

_DEEP, _FLAT = 16, 4  # channels of the two convolutions


class Groups(State):
    """At the server, from the opening on: ``averaged`` (models, clients), whose models each of the server's models is
    the mean of; ``model_of`` (clients,), which of them each client gets; the ``models`` (models, d); ``centroids`` Z
    (clients, k, f) and their ``distances`` A (clients, clients), nan where a client was not heard, and who is
    ``related`` (clients, clients)."""

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        names = ("averaged", "model_of", "models", "centroids", "distances", "related")
        vars(self).update({name: arrays[name].copy() for name in names if name in arrays})


@dataclass(frozen=True)
class FLT(ServerAlgorithm):
    name: Literal["flt"] = "flt"
    case: Literal["related", "clusters"] = "clusters"
    """Whose models are averaged for a client: those of the clients related to it (case I), or those of its cluster
    (case II)."""
    encoding: Literal["autoencoder", "pca"] = "autoencoder"
    """What clients encode their images by: the server's encoder, or the first ``embedding`` principal components of
    their own; their centroids' distances then count as they are (the paper's baseline PCA + k-means + HC)."""
    encoder: Annotated[str, Needs("encoding", "autoencoder")] = ""
    """File of `sheafgossip encoder train`, relative to the folder of the configuration; "" takes one with random
    parameters."""
    embedding: Annotated[Count, "Numbers e that the encoder makes of an image."] = 128
    fine_tune_epochs: Annotated[Index, Needs("encoding", "autoencoder")] = 0
    """Epochs for which a client trains the autoencoder on its own samples first; 0 does not."""
    centroids: Annotated[Count, "k of k-means."] = 5
    manifold: Annotated[Literal["auto", "umap", "pca"], Needs("encoding", "autoencoder")] = "auto"
    """What maps all centroids to few dimensions; auto: umap where umap-learn is installed, else pca, and says so."""
    dimensions: Annotated[Count, Needs("encoding", "autoencoder"), "Of what it maps them to."] = 2
    neighbours: Annotated[int, Ge(2), Needs("manifold", "auto", "umap")] = 15
    """umap: how many neighbours of a centroid it looks at."""
    gamma: Annotated[Positive, "Clients at most so far apart there are related."] = 1.0
    clusters: Annotated[Index, Needs("case", "clusters")] = 0
    """How many clusters; 0: as many as there are before the largest step in the heights of Ward's tree."""

    theta_is = "own"
    # loaded once, not 160 MB and a second in each client
    traits = replace(NEEDS_NEW_UPLOADS, reads_samples=True, libraries=("torch.nn.functional", "sklearn.cluster"))

    def messages(self, edge: Edge) -> list[Vector]:
        length = self._size_sent(edge.model) if edge.from_server else self.centroids * self.embedding
        return [Vector(length, opening=True), Vector(edge.d_i)]

    def _size_sent(self, model: Architecture) -> int:
        if self.encoding == "pca":
            return 1  # a 1, which asks for the centroids
        blocks = Autoencoder(model.input_shape, self.embedding).parameters()
        return sum(block.size for block in (blocks if self.fine_tune_epochs else blocks[:6]))

    def check(self, run: RunFacts) -> None:
        if self.encoding == "pca":
            return
        key = "algorithm.name = 'flt'"
        try:
            autoencoders = [Autoencoder(shape, self.embedding) for shape in {model.input_shape for model in run.models}]
            key = f"algorithm.encoder = {self.encoder!r}"
            for autoencoder in autoencoders if self.encoder else ():
                autoencoder.load(Path(self.encoder))
        except EncoderError as error:
            raise SettingsError(key, str(error)) from None

    def cost(self, own: Assignment) -> Cost:
        if self.encoding == "pca":
            return Cost(opening_flops=2 * math.prod(own.architecture.input_shape) * self.embedding)  # of the projection
        encoder = Autoencoder(own.architecture.input_shape, self.embedding).parameters()[:6]
        encoding = 2 * sum(block.size * block.places for block in encoder)  # of one image
        trained = 2 * 3 * self.fine_tune_epochs  # encoder and decoder, about alike; back takes twice as much
        return Cost(opening_flops=(1 + trained) * encoding)

    def begin(self, client: Client) -> State:
        return Groups() if client.role == "server" else State()

    def open(self, client: Client, peers: Peers) -> None:
        shape = client.model.input_shape if self.encoding == "autoencoder" else (1, 4, 4)
        autoencoder = Autoencoder(shape, self.embedding)
        if client.role == "server":
            load, start = autoencoder.load, autoencoder.start
            if self.encoding == "pca":
                vector = np.ones(1)
            else:
                vector = load(Path(self.encoder)) if self.encoder else start(client.generator("encoder"))
            sent = vector[: self._size_sent(client.model)].astype(client.theta.dtype)
            peers.send(dict.fromkeys(client.neighbours, sent))
            self._relate(client, peers.receive())
            return
        (server,) = client.neighbours
        peers.send({server: self._centroids(client, autoencoder, peers.receive().get(server))})

    def _centroids(self, client: Client, autoencoder: "Autoencoder", encoder: np.ndarray | None) -> np.ndarray:
        """Returns M_m (k e,), a centroid several times where there are fewer samples than k; 0 without an encoder."""
        k, e = self.centroids, self.embedding
        if encoder is None:
            return np.zeros(k * e, client.theta.dtype)
        from sklearn.cluster import KMeans

        encoder, images = encoder.copy(), client.inputs()
        if self.encoding == "pca":
            embedded = principal_components(images.reshape(len(images), -1).astype(float), e)
        else:
            for _ in autoencoder.train(encoder, images, self.fine_tune_epochs, client.generator("fine-tuning")):
                pass
            embedded = autoencoder.embed(encoder, images)
        seed = int(client.generator("k-means").integers(1 << 31))
        kmeans = KMeans(min(k, len(embedded)), n_init=10, random_state=seed).fit(embedded)
        return np.resize(kmeans.cluster_centers_, (k, e)).ravel().astype(client.theta.dtype)

    def _relate(self, server: Client, received: Uploads) -> None:
        """Finds out who is related to whom; clients that were not heard are so only to themselves."""
        state, related = server.state, np.eye(server.clients, dtype=bool)
        width = self.embedding if self.encoding == "pca" else self.dimensions
        state.centroids = np.full((server.clients, self.centroids, width), np.nan, np.float32)
        state.distances = np.full(related.shape, np.nan, np.float32)
        signatures = {m: vector.reshape(self.centroids, -1) for m, vector in received.items() if vector.any()}
        heard = sorted(signatures)
        if len(heard) > 1:
            from scipy.spatial.distance import cdist

            z = np.concatenate([signatures[m] for m in heard])
            if self.encoding == "autoencoder":
                z = self._manifold(server, z)
            points = len(heard), self.centroids
            state.centroids[heard] = z.reshape(*points, -1)
            nearest = cdist(z, z).reshape(points * 2).min(axis=(1, 3))  # A_ij = min_rs ||u_ir - u_js||
            related[np.ix_(heard, heard)], state.distances[np.ix_(heard, heard)] = nearest <= self.gamma, nearest
        if self.case == "clusters":
            state.model_of = clusters(related, self.clusters)
            averaged = np.arange(state.model_of.max() + 1)[:, None] == state.model_of
            text = " | ".join(" ".join(map(str, np.flatnonzero(row))) for row in averaged)
        else:
            state.model_of, averaged = np.arange(server.clients), related
            counts = (related.sum(axis=1) - 1).tolist()
            text = f"{min(counts)} to {max(counts)} other clients to each"
        print(f"{self.case}: {text}", flush=True)
        server.report.events.append((self.case, text))
        state.related = related.astype(np.uint8)
        state.averaged, state.models = averaged.astype(np.uint8), np.tile(server.theta, (len(averaged), 1))

    def _manifold(self, server: Client, centroids: np.ndarray) -> np.ndarray:
        """Returns Z (n, dimensions) of all centroids (n, e)."""
        if self.manifold != "pca":
            try:
                from umap import UMAP
            except ImportError:
                if self.manifold == "umap":
                    needed = f"algorithm.manifold = 'umap' needs umap-learn: {install('flt')}, or use 'pca'"
                    raise RuntimeError(needed) from None
                text = "umap-learn is not installed: principal components take the place of UMAP"
                print(text, flush=True)
                server.report.warnings.append(f"{text}; {install('flt')}, or set algorithm.manifold")
            else:
                k, seed = min(self.neighbours, len(centroids) - 1), int(server.generator("umap").integers(1 << 31))
                umap = UMAP(n_components=self.dimensions, n_neighbors=k, random_state=seed, n_jobs=1)
                return umap.fit_transform(centroids)
        z = principal_components(centroids, self.dimensions)
        radius = np.sqrt((z**2).sum(axis=1).mean())  # root mean square distance from the mean
        return z * (2 / radius if radius else 1)  # at this scale a gamma near 1 is of use, as it is with UMAP

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        for row, averaged in enumerate(server.state.averaged):
            heard = {m: vector for m, vector in uploads.items() if averaged[m]}
            if heard:
                server.state.models[row] = weighted_mean(server, heard)
        server.theta[:] = np.mean(server.state.models, axis=0)  # of no use but to look at

    def reply(self, server: Client, client: int) -> np.ndarray:
        return server.state.models[server.state.model_of[client]]


def principal_components(x: np.ndarray, count: int) -> np.ndarray:
    """Returns (n, count) of x (n, p), zeros where there are fewer; in the direction of each, the entry of
    the largest size is positive."""
    centred = x - x.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    directions *= np.sign(np.take_along_axis(directions, np.abs(directions).argmax(axis=1)[:, None], 1))
    found = centred @ directions[:count].T
    return np.pad(found, ((0, 0), (0, count - found.shape[1])))


def clusters(related: np.ndarray, wanted: int = 0) -> np.ndarray:
    """Returns (M,): cluster 0, 1, ... of each client, in the order of their first clients. Ward's method on the rows of
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
    order = list(dict.fromkeys(labels.tolist()))
    return np.array([order.index(label) for label in labels.tolist()])


class EncoderError(UserError):
    """An encoder that does not fit."""


@dataclass(frozen=True)
class Autoencoder:
    """A convolutional autoencoder of images (channels, height, width) as one flat vector (size,), the encoder's part
    first. The last rows and columns are left out where 4 does not divide their number.

    Encoder: convolution to 16 channels, ReLU, 2x2 max-pool, convolution to 4 channels, ReLU, 2x2 max-pool (3x3 filters
    with padding 1), one linear layer to the embedding. Decoder: a linear layer, ReLU, transposed convolutions to 16
    channels, ReLU, and to the image, sigmoid (2x2 filters with stride 2)."""

    image: tuple[int, ...]
    embedding: int

    def __post_init__(self) -> None:
        if len(self.image) != 3 or min(self.image[1:]) < 4:
            raise EncoderError(f"encodes images of at least 4x4 pixels, the data has samples of shape {self.image}")

    @property
    def sides(self) -> tuple[int, int]:
        return self.image[1] // 4, self.image[2] // 4

    def parameters(self) -> tuple[Parameter, ...]:
        """Returns the blocks in their order, shaped as torch.nn.functional has them, the six of the encoder first."""
        channels, places = self.image[0], math.prod(self.sides)
        return (
            *layer("encoder.conv0", (_DEEP, channels, 3, 3), 16 * places),
            *layer("encoder.conv1", (_FLAT, _DEEP, 3, 3), 4 * places),
            *layer("encoder.linear", (self.embedding, _FLAT * places)),
            *layer("decoder.linear", (_FLAT * places, self.embedding)),
            Parameter("decoder.conv0.weight", (_FLAT, _DEEP, 2, 2), 4 * _FLAT),
            Parameter("decoder.conv0.bias", (_DEEP,), 4 * _FLAT),
            Parameter("decoder.conv1.weight", (_DEEP, channels, 2, 2), 4 * _DEEP),
            Parameter("decoder.conv1.bias", (channels,), 4 * _DEEP),
        )

    def start(self, rng: np.random.Generator) -> np.ndarray:
        """Returns (size,): uniform in +-1/sqrt(fan-in) of each layer."""
        bounds = [(1 / math.sqrt(block.fan_in), block.size) for block in self.parameters()]
        return np.concatenate([rng.uniform(-bound, bound, size) for bound, size in bounds])

    def embed(self, vector: np.ndarray, images: np.ndarray) -> np.ndarray:
        """Returns (n, embedding) of images (n, channels, height, width); the encoder's part of the vector is enough."""
        import torch

        parts = self._views(torch.from_numpy(vector))
        with torch.no_grad():
            chunks = torch.from_numpy(images).split(512)
            return torch.cat([self._encode(parts, chunk.to(parts[0].dtype)) for chunk in chunks]).numpy()

    def train(self, vector: np.ndarray, images: np.ndarray, epochs: int, rng: np.random.Generator) -> Iterator[float]:
        """Epochs of Adam on the mean squared error of the images that come out; changes ``vector`` (size,) in place and
        yields the mean of the errors met in each epoch."""
        import torch
        import torch.nn.functional as F

        from ..model.networks import Adam

        theta = torch.from_numpy(vector).requires_grad_()
        x = self._cropped(torch.from_numpy(images)).to(theta.dtype)
        adam = Adam(theta)
        for _ in range(epochs):
            errors = []
            for chosen in torch.from_numpy(rng.permutation(len(x))).split(64):
                parts = self._views(theta)
                error = F.mse_loss(self._decode(parts, self._encode(parts, x[chosen])), x[chosen])
                (gradient,) = torch.autograd.grad(error, theta)
                adam.step(gradient, 1e-3)
                errors.append(float(error.detach()))
            yield sum(errors) / len(errors)

    def _views(self, vector: Any) -> list[Any]:
        """Returns the blocks of a vector, an array or a tensor: all, or those of the encoder."""
        blocks = self.parameters()
        ends = zip(accumulate(block.size for block in blocks), blocks, strict=True)
        return [vector[end - block.size : end].reshape(block.shape) for end, block in ends if end <= len(vector)]

    def _cropped(self, x: Any) -> Any:
        height, width = self.sides
        return x[..., : 4 * height, : 4 * width]

    def _encode(self, parts: list[Any], x: Any) -> Any:
        import torch.nn.functional as F

        x = F.max_pool2d(F.relu(F.conv2d(self._cropped(x), parts[0], parts[1], padding=1)), 2)
        x = F.max_pool2d(F.relu(F.conv2d(x, parts[2], parts[3], padding=1)), 2)
        return F.linear(x.flatten(1), parts[4], parts[5])

    def _decode(self, parts: list[Any], embedded: Any) -> Any:
        import torch.nn.functional as F

        x = F.relu(F.linear(embedded, parts[6], parts[7])).view(-1, _FLAT, *self.sides)
        x = F.relu(F.conv_transpose2d(x, parts[8], parts[9], stride=2))
        return F.conv_transpose2d(x, parts[10], parts[11], stride=2).sigmoid()

    def save(self, vector: np.ndarray, path: Path) -> None:
        """Writes a safetensors file with a tensor a block."""
        names = [block.name for block in self.parameters()]
        blocks = dict(zip(names, self._views(vector.astype(np.float32)), strict=True))
        ArrayFile(blocks, {"image": json.dumps(self.image), "embedding": str(self.embedding)}).save(path)

    def load(self, path: Path) -> np.ndarray:
        """Returns (size,) float32. Raises EncoderError."""
        from safetensors import SafetensorError, safe_open

        try:
            if path.exists() and not path.is_file():
                raise OSError("is no plain file")  # opening a pipe may never end
            with safe_open(path, framework="numpy") as file:
                shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
                if shapes != {block.name: block.shape for block in self.parameters()}:
                    about = file.metadata() or {}
                    raise EncoderError(
                        f"is an encoder of images of shape {about.get('image', '?')} with an embedding of "
                        f"{about.get('embedding', '?')}; needed are {list(self.image)} and {self.embedding}"
                    )
                return np.concatenate([file.get_tensor(block.name).ravel() for block in self.parameters()])
        except OSError as error:
            told = f"cannot be read: {error.strerror or error} (`sheafgossip encoder train` makes one)"
        except SafetensorError as error:
            told = f"is no safetensors file ({error})"
        raise EncoderError(told)
