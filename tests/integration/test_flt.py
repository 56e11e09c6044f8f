"""FLT over real processes, against its equations in plain loops; and whether it finds clusters that are there."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.signal import correlate
from sklearn.cluster import AgglomerativeClustering, KMeans
from sklearn.metrics import adjusted_rand_score

from sheafgossip.topology.seeds import generator

CLIENTS, ROUNDS, ALPHA, SEED = 10, 5, 0.3, 2
SERVER = CLIENTS
K, E, GAMMA, PIXELS = 2, 16, 0.4, 64
SETUP = f"""
clients = {CLIENTS}
rounds = {ROUNDS}
seed = {SEED}
[data]
partition = "clusters"
clusters = {{ count = 5, classes = 3, overlap = 1, exponent = 1.0 }}
[training]
alpha = {ALPHA}
[model]
dtype = "float64"
[algorithm]
name = "flt"
fraction = 0.6
manifold = "pca"
dimensions = 4
centroids = {K}
embedding = {E}
gamma = {GAMMA}
"""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """Trained on all digits, by the command."""
    folder = tmp_path_factory.mktemp("encoder")
    (folder / "digits.toml").write_text("[data]\ndataset = 'digits'\n")
    command = [sys.executable, "-m", "sheafgossip.launcher.cli", "encoder", "train", str(folder / "digits.toml")]
    command += ["--out", str(folder / "encoder.safetensors"), "--embedding", str(E), "--epochs", "25"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    errors = [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("epoch")]
    assert len(errors) == 25
    assert errors[-1] < 0.7 * errors[0]
    return folder / "encoder.safetensors"


def encoded(weights, images):
    """By correlations, pixel by pixel, instead of a library for networks."""

    def layer(x, name):
        w, b = (weights[f"encoder.{name}.{part}"].astype(float) for part in ("weight", "bias"))
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
        y = np.array([sum(correlate(padded[c], w[o, c], "valid") for c in range(len(x))) + b[o] for o in range(len(w))])
        y = np.maximum(y, 0)
        return y.reshape(len(y), y.shape[1] // 2, 2, y.shape[2] // 2, 2).max(axis=(2, 4))

    flat = [layer(layer(image.astype(float), "conv0"), "conv1").ravel() for image in images]
    return np.array(flat) @ weights["encoder.linear.weight"].T.astype(float) + weights["encoder.linear.bias"]


def relations(shards, weights):
    """Algorithm 2, with principal components in the place of UMAP."""
    signatures = []
    for i, shard in sorted(shards.items()):
        seed = int(generator(SEED, "k-means", i).integers(1 << 31))
        found = KMeans(K, n_init=10, random_state=seed).fit(encoded(weights, shard["x_train"]))
        signatures.append(found.cluster_centers_)
    points = np.concatenate(signatures)
    values, vectors = np.linalg.eigh(np.cov(points.T))
    z = (points - points.mean(axis=0)) @ vectors[:, np.argsort(values)[-4:]]
    z = (z / np.sqrt(z.var(axis=0).sum()) * 2).reshape(CLIENTS, K, 4)
    nearest = [[min(np.linalg.norm(u - v) for u in z[i] for v in z[j]) for j in range(CLIENTS)] for i in range(CLIENTS)]
    return np.array(nearest) <= GAMMA


def gradient_step(shard, theta):
    x = shard["x_train"].reshape(-1, PIXELS).astype(float)
    x, y = np.column_stack([x, np.ones(len(x))]), shard["y_train"]
    w = np.column_stack([theta[:-10].reshape(10, -1), theta[-10:]])
    scores = np.exp(x @ w.T)
    w = w - ALPHA * (scores / scores.sum(axis=1, keepdims=True) - np.eye(10)[y]).T @ x / len(y)
    return np.concatenate([w[:, :-1].ravel(), w[:, -1]])


def participants(round):
    if round > ROUNDS:
        return list(range(CLIENTS))
    return sorted(generator(SEED, "participants", round).permutation(CLIENTS)[:6].tolist())


@pytest.mark.parametrize("case", ["related", "clusters"])
def test_it_is_what_its_paper_says_and_sends_one_encoder_and_one_signature_a_client(run, encoder, case):
    folder = run(SETUP + f'case = "{case}"\nencoder = "{encoder}"')
    weights, shards, start = load_file(encoder), folder.shards(), folder.theta(0)[SERVER]
    related = relations(shards, weights)
    assert 0 < (related.sum() - CLIENTS) < CLIENTS * (CLIENTS - 1)
    if case == "clusters":
        ((text,),) = folder.rows("SELECT detail FROM event WHERE kind = 'clusters'")
        members = [[int(i) for i in part.split()] for part in text.split(" | ")]
        ward = AgglomerativeClustering(len(members), linkage="ward").fit_predict(related.astype(float))
        averaged = ward[:, None] == ward
        assert [np.flatnonzero(averaged[part[0]]).tolist() for part in members] == members
    else:
        averaged = related
    models, clients = dict.fromkeys(range(CLIENTS), start), dict.fromkeys(range(CLIENTS), start)
    n = {i: len(shard["y_train"]) for i, shard in shards.items()}
    assert len(set(n.values())) > 3
    traffic = {}
    for round in range(1, ROUNDS + 1):
        now, next_ = participants(round), participants(round + 1)
        for i in now:
            clients[i] = gradient_step(shards[i], clients[i])
        for j in range(CLIENTS):
            heard = [m for m in now if averaged[j, m]]
            if heard:
                models[j] = sum(n[m] * clients[m] for m in heard) / sum(n[m] for m in heard)
        for i in next_:
            clients[i] = models[i]
        traffic |= {(i, SERVER, round): (1, 8 * start.size) for i in now}
        traffic |= {(SERVER, i, round): (1, 8 * start.size) for i in next_}
    found = folder.theta(ROUNDS)
    for i in range(CLIENTS):
        assert np.linalg.norm(found[i] - clients[i]) < 1e-9 * np.linalg.norm(clients[i]), i

    once = 16 * 9 + 16 + 4 * 16 * 9 + 4 + (4 * 2 * 2) * E + E  # the encoder, of images of 8x8 pixels
    for i in range(CLIENTS):
        for edge, size in (((SERVER, i, 1), 8 * once), ((i, SERVER, 1), 8 * K * E)):
            messages, payload = traffic.get(edge, (0, 0))
            traffic[edge] = messages + 1, payload + size
    assert {edge: row[:2] for edge, row in folder.payload().items()} == traffic


FINDING = """
clients = 15
rounds = 2
[data]
partition = "clusters"
[algorithm]
name = "flt"
centroids = 2
dimensions = 10
"""


def test_its_clusters_are_those_of_the_clients(run, encoder):
    folder = run(FINDING + f'embedding = {E}\nmanifold = "pca"\ngamma = 0.5\nclusters = 5\nencoder = "{encoder}"')
    groups = folder.rows("SELECT value FROM meta WHERE key = 'groups'")[0][0].split(",")
    assert adjusted_rand_score(groups, folder.states(2)[15]["model_of"]) >= 0.9


def test_fine_tuning_sends_the_whole_autoencoder_and_without_umap_it_says_so(run, tmp_path, monkeypatch):
    (tmp_path / "umap.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    folder = run("clients = 4\nrounds = 1\n[data]\nsamples = 200\n[model]\ndtype = 'float32'\n"
                     "[algorithm]\nname = 'flt'\nembedding = 6\nfine_tune_epochs = 2\n")  # fmt: skip
    once = 16 * 9 + 16 + 4 * 16 * 9 + 4 + 16 * 6 + 6 + 6 * 16 + 16 + 4 * 16 * 4 + 16 + 16 * 4 + 1
    assert folder.payload()[4, 0, 1][:2] == (2, 4 * (once + 650))
    ((text,),) = folder.rows("SELECT detail FROM event WHERE kind = 'warning'")
    assert text.startswith("umap-learn is not installed: principal components take the place of UMAP")
    assert "umap-learn is not installed" in (folder.path / "log" / "node-0004.log").read_text()
