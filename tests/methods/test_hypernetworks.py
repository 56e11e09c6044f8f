"""pFedHN, GHN and SHN against their equations: dense sheaf Laplacians, Kronecker products, and torch's own Adam."""

from itertools import combinations

import networkx
import numpy as np
import pytest
import torch

import oracles

from .plain import CLIENTS, SERVER, Loop, played

FIRST, D = 4, 650
F, HIDDEN, ETA, DECAY, STALK = 4, 12, 0.02, 0.001, 3


def linear(name, outputs, inputs):
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def diffusion_of(name, layers):
    """The shapes of the blocks of psi before HN, in the order in which docs/sheaf-hypernetwork.md lists them."""
    if name == "ghn":
        return {f"W{t}": (F, F) for t in range(layers)}
    shapes, free = linear("in", STALK * F, F) | linear("P", F, STALK * F), STALK * (STALK - 1) // 2
    for t in range(layers):
        shapes |= {f"Phi{t}.own": (STALK * F, free), f"Phi{t}.other": (STALK * F, free)}
        shapes |= {f"W1.{t}": (STALK, STALK), f"W2.{t}": (F, F)}
    return shapes


def read_psi(flat, shapes):
    """HN's blocks stand behind the others."""
    shapes = shapes | linear("HN0", HIDDEN, F) | linear("HN1", HIDDEN, HIDDEN) | linear("HN", D, HIDDEN)
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    assert sum(sizes) == len(flat)
    parts = zip(shapes.items(), np.split(flat, np.cumsum(sizes)[:-1]), strict=True)
    return {name: torch.tensor(part.reshape(shape), requires_grad=True) for (name, shape), part in parts}


def apply(psi, name, x):
    return torch.nn.functional.linear(x, psi[f"{name}.weight"], psi[f"{name}.bias"])


def graph_convolutions(psi, X, A, layers):
    degrees = torch.diag((A + torch.eye(CLIENTS)).sum(1) ** -0.5)
    for t in range(layers):
        X = torch.tanh(degrees @ (A + torch.eye(CLIENTS, dtype=X.dtype)) @ degrees @ X @ psi[f"W{t}"])
    return X


def orthogonal(numbers, how):
    one = torch.eye(STALK, dtype=numbers.dtype)
    lower = torch.zeros_like(one)
    lower[np.tril_indices(STALK, -1)] = numbers
    if how == "cayley":
        S = lower - lower.T
        return torch.inverse(one + S) @ (one - S)
    reflections = [one - 2 * torch.outer(v, v) / (v @ v) for v in (lower + one).T]
    return torch.linalg.multi_dot(reflections)


def sheaf_diffusion(psi, X, A, layers, how):
    d, n = STALK, CLIENTS
    stalks = apply(psi, "in", X).reshape(n * d, F)
    edges = [(v, u) for v, u in combinations(range(n), 2) if A[v, u]]
    for t in range(layers):
        phi = torch.cat([psi[f"Phi{t}.own"], psi[f"Phi{t}.other"]])
        delta = torch.zeros(len(edges) * d, n * d, dtype=X.dtype)
        for e, edge in enumerate(edges):
            for (v, u), sign in ((edge, 1), (edge[::-1], -1)):
                both = torch.cat([stalks[end * d : (end + 1) * d].flatten() for end in (v, u)])
                F_v = orthogonal(torch.tanh(both @ phi), how)
                torch.testing.assert_close(F_v @ F_v.T, torch.eye(d, dtype=F_v.dtype))
                delta[e * d : (e + 1) * d, v * d : (v + 1) * d] = sign * F_v
        L = delta.T @ delta
        D_block = torch.block_diag(*(L[v * d : (v + 1) * d, v * d : (v + 1) * d] for v in range(n)))
        root = torch.diag(torch.diagonal(D_block).clamp(min=1e-30) ** -0.5)  # of orthogonal maps: degrees
        torch.testing.assert_close(D_block, torch.diag(torch.diagonal(D_block)))
        mixed = torch.kron(torch.eye(n, dtype=X.dtype), psi[f"W1.{t}"]) @ stalks @ psi[f"W2.{t}"]
        stalks = stalks - torch.tanh(root @ L @ root @ mixed)
    return apply(psi, "P", stalks.reshape(n, d * F))


def relations(X, settings):
    if settings["graph"] == "topology":
        return torch.from_numpy(networkx.to_numpy_array(networkx.cycle_graph(CLIENTS)))
    A = torch.zeros(CLIENTS, CLIENTS, dtype=torch.float64)
    for v in range(CLIENTS):
        cosine = {u: float(X[v] @ X[u] / X[v].norm() / X[u].norm()) for u in range(CLIENTS) if u != v}
        near = sorted(cosine, key=cosine.get)[-settings.get("k", 0) :]
        for u in near if settings["graph"] == "knn" else [u for u in cosine if cosine[u] >= settings["tau"]]:
            A[v, u] = A[u, v] = 1
    return A


class Hypernetwork(Loop):
    """Something stands between embeddings and HN from round FIRST on (``relate``)."""

    def __init__(self, folder, settings):
        super().__init__(folder, settings)
        self.name, self.layers, self.A, self.round = settings["name"], settings.get("layers", 2), None, 0
        self.learn_anew(read_psi(folder.states(0)[SERVER]["psi"], {"X": (CLIENTS, F)}))
        assert np.array_equal(self.generated().detach().numpy(), np.tile(self.w, (CLIENTS, 1)))

    def learn_anew(self, psi):
        self.psi, self.adam = psi, torch.optim.Adam(psi.values(), lr=ETA, weight_decay=DECAY)

    def generated(self):
        if self.A is None:
            z = self.psi["X"]
        elif self.name == "ghn":
            z = graph_convolutions(self.psi, self.X, self.A, self.layers)
        else:
            z = sheaf_diffusion(self.psi, self.X, self.A, self.layers, self.settings["orthogonal"])
        return apply(self.psi, "HN", apply(self.psi, "HN1", apply(self.psi, "HN0", z).relu()).relu())

    def aggregate(self, now):
        self.round += 1
        generated = self.generated()
        loss = sum(((generated[k] - torch.from_numpy(self.theta[k])) ** 2).sum() for k in now) / len(now)
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        if self.name != "pfedhn" and self.round == FIRST:
            self.relate()
        self.models = self.generated().detach().numpy()

    def relate(self):
        self.X = self.psi.pop("X").detach()
        self.A = relations(self.X, self.settings)
        state = self.folder.states(self.round)[SERVER]
        found = {tuple(edge) for edge in state["relations"].tolist()}
        assert found == set(zip(*np.nonzero(np.triu(self.A)), strict=True))
        psi = read_psi(state["psi"], diffusion_of(self.name, self.layers))
        before = self.psi  # the hypernetwork goes on; only the diffusion is drawn anew
        if not self.settings.get("adopt", True):
            before = read_psi(self.folder.states(0)[SERVER]["psi"], {"X": (CLIENTS, F)})
            del before["X"]
        for name, block in before.items():
            torch.testing.assert_close(psi[name], block, rtol=1e-9, atol=1e-12)
        self.learn_anew(psi)

    def download(self, k):
        self.theta[k] = self.models[k]


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "pfedhn"},
        {"name": "ghn", "graph": "knn", "k": 2, "layers": 3},
        {"name": "shn", "graph": "knn", "k": 2, "orthogonal": "householder"},
        {"name": "shn", "graph": "cosine", "tau": 0.3, "orthogonal": "cayley"},
        {"name": "shn", "graph": "topology", "orthogonal": "householder", "adopt": False},
    ],
    ids=["pfedhn", "ghn", "shn: nearest, reflections", "shn: cosine, rotations", "shn: given graph, from scratch"],
)
def test_it_is_what_its_paper_says(run, settings):
    settings = settings | {"fraction": 0.5, "eta": ETA, "weight_decay": DECAY, "embedding": F, "hidden": HIDDEN}
    settings |= {} if settings["name"] == "pfedhn" else {"embedding_rounds": FIRST}
    ring = ["topology.kind=ring"] if settings.get("graph") == "topology" else []
    loop = played(run, Hypernetwork, settings, *ring, "checkpoints.every=1", tolerance=1e-8)
    assert oracles.error(loop.theta[0], loop.theta[1]) > 1e-4  # so that the tolerance tells clients apart
