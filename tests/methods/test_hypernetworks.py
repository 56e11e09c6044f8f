"""pFedHN, GHN and SHN against a plain version of their equations: dense sheaf Laplacians,
Kronecker products, and torch's own Adam.
"""

from itertools import combinations

import networkx
import numpy as np
import pytest
import torch

import oracles

CLIENTS, ROUNDS, FIRST, STEPS, BATCH, ALPHA, SEED = 6, 9, 4, 3, 16, 0.4, 5
SERVER, D = CLIENTS, 650
F, HIDDEN, ETA, DECAY, STALK = 4, 12, 0.02, 0.001, 3
CONFIG = f"""
clients = {CLIENTS}
rounds = {ROUNDS}
seed = {SEED}
[data]
samples = 480
partition = "classes"
classes_per_client = 4
[training]
work = "steps"
steps = {STEPS}
batch_size = {BATCH}
alpha = {ALPHA}
[model]
dtype = "float64"
[checkpoints]
every = 1
[algorithm]
eta = {ETA}
weight_decay = {DECAY}
embedding = {F}
hidden = {HIDDEN}
"""


def local_work(shard, number, theta, drawn):
    """Mini-batch SGD on multinomial logistic regression."""
    x, y = torch.from_numpy(shard["x_train"]).double().flatten(1), torch.from_numpy(shard["y_train"])
    for batch in range(drawn, drawn + STEPS):
        chosen = oracles.batch_rows(SEED, number, len(y), BATCH, batch)
        theta = theta.detach().requires_grad_()
        scores = x[chosen] @ theta[:640].view(10, 64).T + theta[640:]
        torch.nn.functional.cross_entropy(scores, y[chosen]).backward()
        theta = theta - ALPHA * theta.grad
    return theta.detach()


def read_psi(flat, shapes):
    """The blocks of psi, in the order in which docs/sheaf-hypernetwork.md lists them."""
    blocks, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + int(np.prod(shape))
        blocks[name] = torch.from_numpy(flat[start:end].reshape(shape).copy()).requires_grad_()
    assert end == len(flat)
    return blocks


def hypernetwork_shapes():
    shapes, width = {}, F
    for layer in range(2):
        shapes |= {f"HN{layer}.weight": (HIDDEN, width), f"HN{layer}.bias": (HIDDEN,)}
        width = HIDDEN
    return shapes | {"HN.weight": (D, width), "HN.bias": (D,)}


def ghn_shapes(layers):
    return {f"W{t}": (F, F) for t in range(layers)}


def shn_shapes(layers):
    shapes = {"in.weight": (STALK * F, F), "in.bias": (STALK * F,)}
    shapes |= {"P.weight": (F, STALK * F), "P.bias": (F,)}
    free = STALK * (STALK - 1) // 2
    for t in range(layers):
        shapes |= {f"Phi{t}.own": (STALK * F, free), f"Phi{t}.other": (STALK * F, free)}
        shapes |= {f"W1.{t}": (STALK, STALK), f"W2.{t}": (F, F)}
    return shapes


def HN(psi, z):
    for layer in range(2):
        z = torch.relu(torch.nn.functional.linear(z, psi[f"HN{layer}.weight"], psi[f"HN{layer}.bias"]))
    return torch.nn.functional.linear(z, psi["HN.weight"], psi["HN.bias"])


def graph_convolutions(psi, X, A, layers, settings):
    degrees = torch.diag((A + torch.eye(CLIENTS)).sum(1) ** -0.5)
    for t in range(layers):
        X = torch.tanh(degrees @ (A + torch.eye(CLIENTS, dtype=X.dtype)) @ degrees @ X @ psi[f"W{t}"])
    return X


def orthogonal(numbers, how):
    entries = iter(numbers)
    lower = torch.zeros(STALK, STALK, dtype=numbers.dtype)
    for i in range(STALK):
        for j in range(i):
            unit = torch.zeros(STALK, STALK, dtype=numbers.dtype)
            unit[i, j] = 1
            lower = lower + next(entries) * unit
    one = torch.eye(STALK, dtype=numbers.dtype)
    if how == "cayley":
        S = lower - lower.T
        return torch.inverse(one + S) @ (one - S)
    Q = one
    for i in range(STALK):
        v = (lower + one)[:, i]
        Q = Q @ (one - 2 * torch.outer(v, v) / (v @ v))
    return Q


def sheaf_diffusion(psi, X, A, layers, settings):
    d, n = STALK, CLIENTS
    stalks = torch.nn.functional.linear(X, psi["in.weight"], psi["in.bias"]).reshape(n * d, F)
    edges = [(v, u) for v, u in combinations(range(n), 2) if A[v, u]]
    for t in range(layers):

        def of(v, u, stalks=stalks, t=t):
            x_v, x_u = stalks[v * d : (v + 1) * d].flatten(), stalks[u * d : (u + 1) * d].flatten()
            phi = torch.cat([psi[f"Phi{t}.own"], psi[f"Phi{t}.other"]])
            F_v = orthogonal(torch.tanh(torch.cat([x_v, x_u]) @ phi), settings["orthogonal"])
            torch.testing.assert_close(F_v @ F_v.T, torch.eye(d, dtype=F_v.dtype))
            return F_v

        delta = torch.zeros(len(edges) * d, n * d, dtype=X.dtype)
        for e, (v, u) in enumerate(edges):
            rows = slice(e * d, (e + 1) * d)
            delta[rows, v * d : (v + 1) * d] = of(v, u)
            delta[rows, u * d : (u + 1) * d] = -of(u, v)
        L = delta.T @ delta
        D_block = torch.block_diag(*(L[v * d : (v + 1) * d, v * d : (v + 1) * d] for v in range(n)))
        root = torch.diag(torch.diagonal(D_block).clamp(min=1e-30) ** -0.5)  # of orthogonal maps: degrees
        torch.testing.assert_close(D_block, torch.diag(torch.diagonal(D_block)))
        mixed = torch.kron(torch.eye(n, dtype=X.dtype), psi[f"W1.{t}"]) @ stalks @ psi[f"W2.{t}"]
        stalks = stalks - torch.tanh(root @ L @ root @ mixed)
    return torch.nn.functional.linear(stalks.reshape(n, d * F), psi["P.weight"], psi["P.bias"])


def neighbours_by_cosine(X, settings):
    if settings["graph"] == "topology":
        return torch.from_numpy(networkx.to_numpy_array(networkx.cycle_graph(CLIENTS)))
    A = torch.zeros(CLIENTS, CLIENTS, dtype=torch.float64)
    for v in range(CLIENTS):
        cosine = {u: float(X[v] @ X[u] / X[v].norm() / X[u].norm()) for u in range(CLIENTS) if u != v}
        if settings["graph"] == "knn":
            near = sorted(cosine, key=cosine.get)[-settings["k"] :]
        else:
            near = [u for u in cosine if cosine[u] >= settings["tau"]]
        for u in near:
            A[v, u] = A[u, v] = 1
    return A


@pytest.mark.parametrize(
    ("diffuse", "shapes", "settings"),
    [
        (None, None, {"name": "pfedhn"}),
        (graph_convolutions, ghn_shapes, {"name": "ghn", "graph": "knn", "k": 2, "layers": 3}),
        (sheaf_diffusion, shn_shapes, {"name": "shn", "graph": "knn", "k": 2, "orthogonal": "householder"}),
        (sheaf_diffusion, shn_shapes, {"name": "shn", "graph": "cosine", "tau": 0.3, "orthogonal": "cayley"}),
        (sheaf_diffusion, shn_shapes, {"name": "shn", "graph": "topology", "orthogonal": "householder"}),
    ],
    ids=["pfedhn", "ghn", "shn: nearest, reflections", "shn: cosine, rotations", "shn: given graph"],
)
def test_it_is_what_its_paper_says(run, diffuse, shapes, settings):
    fraction, layers = 0.5, settings.get("layers", 2)
    stages = {"embedding_rounds": FIRST, "stalk": STALK} if settings["name"] == "shn" else {}
    stages |= {"embedding_rounds": FIRST} if settings["name"] == "ghn" else {}
    lines = settings | stages | {"fraction": fraction}
    ring = "topology.kind = 'ring'\n" if settings.get("graph") == "topology" else ""
    folder = run(ring + CONFIG + "\n".join(f"{key} = {value!r}" for key, value in lines.items()))
    shards, start = folder.shards(), folder.theta(0)
    theta = {k: torch.from_numpy(start[k].copy()) for k in range(CLIENTS)}
    drawn, expected_traffic, A = dict.fromkeys(range(CLIENTS), 0), set(), None
    psi = read_psi(folder.states(0)[SERVER]["psi"], {"X": (CLIENTS, F)} | hypernetwork_shapes())
    adam = torch.optim.Adam(psi.values(), lr=ETA, weight_decay=DECAY)

    def generated():
        z = psi["X"] if A is None else diffuse(psi, X, A, layers, settings)
        return HN(psi, z)

    assert np.array_equal(generated().detach().numpy(), np.tile(start[SERVER], (CLIENTS, 1)))
    for round in range(1, ROUNDS + 1):
        now, after = (oracles.participants(SEED, CLIENTS, ROUNDS, fraction, round + more) for more in (0, 1))
        trained = {k: local_work(shards[k], k, theta[k], drawn[k]) for k in now}
        for k in now:
            drawn[k] += STEPS
        loss = sum(((generated()[k] - trained[k]) ** 2).sum() for k in now) / len(now)
        adam.zero_grad()
        loss.backward()
        adam.step()
        if diffuse is not None and round == FIRST:
            X = psi.pop("X").detach()
            A = neighbours_by_cosine(X, settings)
            state = folder.states(round)[SERVER]
            assert {tuple(edge) for edge in state["relations"].tolist()} == set(
                zip(*np.nonzero(np.triu(A)), strict=True)
            )
            before = psi
            psi = read_psi(state["psi"], shapes(layers) | hypernetwork_shapes())
            for name, block in before.items():  # the hypernetwork goes on; only the diffusion is drawn anew
                torch.testing.assert_close(psi[name], block, rtol=1e-9, atol=1e-12)
            adam = torch.optim.Adam(psi.values(), lr=ETA, weight_decay=DECAY)
        models = generated().detach()
        theta |= trained | {k: models[k] for k in after}
        expected_traffic |= {(k, SERVER, round) for k in now} | {(SERVER, k, round) for k in after}

    found = folder.theta(ROUNDS)
    assert max(oracles.error(found[k], theta[k].numpy()) for k in range(CLIENTS)) < 1e-8
    assert oracles.error(found[0], found[1]) > 1e-4  # so that the tolerance above tells clients apart
    assert folder.sent() == dict.fromkeys(expected_traffic, (1, 8 * D))


GROUPS = """
clients = 16
rounds = 50
[data]
rotations = [0, 90, 180, 270]
[training]
work = "steps"
steps = 10
alpha = 0.2
[evaluation]
every = 0
[algorithm]
name = "shn"
eta = 0.01
embedding_rounds = 40
"""


def test_the_relation_graph_links_clients_of_one_group(run):
    edges = run(GROUPS).states(50)[16]["relations"]
    precision = np.mean(edges[:, 0] // 4 == edges[:, 1] // 4)
    assert len(edges) >= 16 * 3 / 2
    assert precision >= 0.8  # by chance: 3 of 15
