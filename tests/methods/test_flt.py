"""FLT against its equations in plain loops; and whether it finds clusters that are there."""

import os
from itertools import product

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.cluster import AgglomerativeClustering, KMeans
from sklearn.metrics import adjusted_rand_score

import oracles
from runs import RunFolder, command
from sheafgossip.metrics.report import relations as drawing
from sheafgossip.metrics.report.methods import methods_of
from sheafgossip.topology.randomness import generator

from .plain import Loop

CLIENTS = SERVER = 10
ROUNDS, ALPHA, SEED, FRACTION = 5, 0.3, 2, 0.6
K, E, GAMMA = 2, 16, 0.4
SETUP = f"""
clients = {CLIENTS}
rounds = {ROUNDS}
seed = {SEED}
data = {{ partition = "clusters", clusters = {{ count = 5, classes = 3, overlap = 1, exponent = 1.0 }} }}
training.alpha = {ALPHA}
model.dtype = "float64"
[algorithm]
name = "flt"
encoder = "encoder.safetensors"
fraction = {FRACTION}
manifold = "pca"
dimensions = 4
centroids = {K}
embedding = {E}
gamma = {GAMMA}
[[compare]]
name = "related"
algorithm.case = "related"
[[compare]]
name = "clusters"
algorithm.case = "clusters"
[[compare]]
name = "finding"
clients = 15
rounds = 2
seed = 0
data.clusters = {{ classes = 2, overlap = 0, exponent = 0.0 }}
model.dtype = "float32"
algorithm = {{ fraction = 1.0, dimensions = 10, gamma = 0.5, clusters = 5 }}
[[compare]]
name = "descent"
rounds = 20
training.alpha = 0.02
checkpoints.every = 1
data.clusters.exponent = 0.0
algorithm = {{ fraction = 1.0, gamma = 0.8, clusters = 5 }}
[[compare]]
name = "fine-tuned"
clients = 4
rounds = 1
data = {{ samples = 200, partition = "even" }}
model.dtype = "float32"
algorithm = {{ encoder = "", embedding = 6, fine_tune_epochs = 2, manifold = "auto" }}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """{name: run} of one command, with an encoder that another has trained on all digits."""
    folder = tmp_path_factory.mktemp("flt")
    (folder / "flt.toml").write_text(SETUP)
    train = ("encoder", "train", folder / "flt.toml", "--out", folder / "encoder.safetensors")
    out = command(*train, "--epochs", 25, "--set", "seed=0").stdout
    errors = [float(line.split()[-1]) for line in out.splitlines() if line.startswith("epoch")]
    assert len(errors) == 25
    assert errors[-1] < 0.7 * errors[0]
    (folder / "umap.py").write_text("raise ImportError")
    paths = {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command("run", folder / "flt.toml", "--out", folder / "runs", env=os.environ | paths)
    return RunFolder(folder / "runs").runs()


def encoded(weights, images):
    """By sums over windows, instead of a library for networks."""

    def layer(x, name):
        w, b = (weights[f"encoder.{name}.{part}"].astype(float) for part in ("weight", "bias"))
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
        y = np.maximum(np.einsum("nchwij,ocij->nohw", windows, w, optimize=True) + b[:, None, None], 0)
        n, channels, height, width = y.shape
        return y.reshape(n, channels, height // 2, 2, width // 2, 2).max(axis=(3, 5))

    flat = layer(layer(images.astype(float), "conv0"), "conv1").reshape(len(images), -1)
    return flat @ weights["encoder.linear.weight"].T.astype(float) + weights["encoder.linear.bias"]


def relations(shards, weights):
    """Algorithm 2, with principal components in the place of UMAP."""
    signatures = []
    for i, shard in shards.items():
        seed = int(generator(SEED, "k-means", i).integers(1 << 31))
        found = KMeans(K, n_init=10, random_state=seed).fit(encoded(weights, shard["x_train"]))
        signatures.append(found.cluster_centers_)
    points = np.concatenate(signatures)
    values, vectors = np.linalg.eigh(np.cov(points.T))
    z = (points - points.mean(axis=0)) @ vectors[:, np.argsort(values)[-4:]]
    z = (z / np.sqrt(z.var(axis=0).sum()) * 2).reshape(CLIENTS, K, 4)
    nearest = [[min(np.linalg.norm(u - v) for u in z[i] for v in z[j]) for j in range(CLIENTS)] for i in range(CLIENTS)]
    return np.array(nearest) <= GAMMA


class FLT(Loop):
    seed, rounds, steps, alpha = SEED, ROUNDS, 1, ALPHA

    def batch(self, k):
        return slice(None)

    def aggregate(self, now):
        for j in range(CLIENTS):
            heard = [m for m in now if self.averaged[j, m]]
            if heard:
                self.models[j] = self.mean(heard)

    def download(self, k):
        self.theta[k] = self.models[k]


@pytest.mark.parametrize("case", ["related", "clusters"])
def test_it_is_what_its_paper_says_and_sends_one_encoder_and_one_signature_a_client(runs, case):
    folder = runs[case]
    loop = FLT(folder, {"fraction": FRACTION})
    averaged = related = relations(loop.shards, load_file(folder.path.parents[1] / "encoder.safetensors"))
    assert 0 < (related.sum() - CLIENTS) < CLIENTS * (CLIENTS - 1)
    if case == "clusters":
        ((text,),) = folder.rows("SELECT detail FROM event WHERE kind = 'clusters'")
        members = [[int(i) for i in part.split()] for part in text.split(" | ")]
        ward = AgglomerativeClustering(len(members), linkage="ward").fit_predict(related.astype(float))
        averaged = ward[:, None] == ward
        assert [np.flatnonzero(averaged[part[0]]).tolist() for part in members] == members
    assert len(set(loop.n)) > 3
    loop.averaged, loop.models = averaged, [loop.w] * CLIENTS
    loop.play()
    found = folder.theta(ROUNDS)
    assert max(oracles.error(found[i], theta) for i, theta in enumerate(loop.theta)) < 1e-9

    once = 16 * 9 + 16 + 4 * 16 * 9 + 4 + (4 * 2 * 2) * E + E  # the encoder, of images of 8x8 pixels
    for i in range(CLIENTS):
        for edge, size in (((SERVER, i, 1), 8 * once), ((i, SERVER, 1), 8 * K * E)):
            messages, payload = loop.sent.get(edge, (0, 0))
            loop.sent[edge] = messages + 1, payload + size
    assert folder.sent() == loop.sent


def test_its_clusters_are_those_of_the_clients_and_libraries_are_loaded_once(runs):
    folder = runs["finding"]
    state = folder.states(2)[15]
    drawn, tree = drawing.relations(methods_of([folder.path])[0])
    found = drawn.data.set_index(["client", "other"]).distances.reindex(product(range(15), range(15)))
    np.testing.assert_allclose(found, state["distances"].ravel())
    assert tree.data["join"].nunique() == 14  # of 15 clients
    groups = folder.rows("SELECT value FROM meta WHERE key = 'groups'")[0][0].split(",")
    assert adjusted_rand_score(groups, folder.states(2)[15]["model_of"]) >= 0.9
    ((own,),) = folder.rows("SELECT max(uss) FROM resource WHERE node BETWEEN 0 AND 14")
    assert own < 60e6  # in each client they take 160 MB


def test_fine_tuning_sends_the_whole_autoencoder_and_without_umap_it_says_so(runs):
    folder = runs["fine-tuned"]
    once = 16 * 9 + 16 + 4 * 16 * 9 + 4 + 16 * 6 + 6 + 6 * 16 + 16 + 4 * 16 * 4 + 16 + 16 * 4 + 1
    assert folder.sent()[4, 0, 1] == (2, 4 * (once + 650))
    ((text,),) = folder.rows("SELECT detail FROM event WHERE kind = 'warning'")
    assert text.startswith("umap-learn is not installed: principal components take the place of UMAP")
    assert "umap-learn is not installed" in (folder.path / "log" / "node-0004.log").read_text()


def test_theorem_1_bounds_the_steps_of_clusters(runs):
    """(18) for every T, with F(W^0) for the printed F(W^1), and without the part that (25) adds."""
    folder, mu = runs["descent"], 0.02
    shards = folder.shards().values()
    inputs = [shard["x_train"].reshape(len(shard["x_train"]), -1) for shard in shards]
    counts = np.array([len(x) for x in inputs])
    smoothness = max(np.linalg.norm(np.column_stack([x, np.ones(len(x))]), 2) ** 2 / len(x) / 2 for x in inputs)
    W = np.array([folder.thetas(t)[:CLIENTS] for t in range(21)])
    F = np.array([sum(map(oracles.loss, models, shards)) for models in W])
    state = folder.states(20)[SERVER]
    A = (state["averaged"] * counts / (state["averaged"] @ counts)[:, None])[state["model_of"]]
    assert len(state["averaged"]) == 5
    np.testing.assert_allclose(A @ A, A, atol=1e-12)
    steps = np.cumsum(((W[1:] - W[:-1]) ** 2).sum(axis=(1, 2)))
    distance = np.linalg.norm(np.eye(CLIENTS) - A, 2)
    printed = 1 / (2 * mu) - smoothness / 2 - mu / 2 * smoothness**2 * distance**2
    assert printed > 0
    assert (steps <= (F[0] - F[1:]) / (1 / mu - smoothness / 2)).all()
    assert (steps <= (F[0] - F[1:]) / printed).all()
    assert steps[-1] > 0.3 * (F[0] - F[-1]) / printed  # which is no empty promise


def test_theorem_1_fails_where_relations_are_no_clusters():
    """Three clients in a chain, losses (w - b)^2 / 2, from w = 0: a round raises the sum."""
    A, b, mu = np.array([[1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 2, 1 / 2]]), np.array([5, -7, 5]), 0.1
    assert 1 / (2 * mu) - 1 / 2 - mu / 2 * np.linalg.norm(np.eye(3) - A, 2) ** 2 > 0
    assert ((A @ (mu * b) - b) ** 2).sum() > (b**2).sum()
