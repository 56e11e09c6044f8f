"""The systems that section 3.3 of the paper finds inside Sheaf-FMTL, each against the objective that defines it. The
problems are least squares, so that a linear system of equations gives the minimiser of every objective."""

import numpy as np
import pytest

import oracles
from runs import ROOT
from sheafgossip.launcher.commands.theory import check_theorem

CLIENTS, FEATURES, ROUNDS = 6, 5, 1000
CONFIG = f"""
clients = {CLIENTS}
rounds = {ROUNDS}
data = {{ dataset = "npz", root = "ROOT", task = "regression", partition = "natural" }}
model = {{ kind = "linear", dtype = "float64" }}
training.alpha = 0.05
evaluation.every = 0
algorithm = {{ ALGORITHM }}
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """Related linear tasks, a client each, in an npz file."""
    rng = np.random.default_rng(4)
    common = rng.standard_normal(FEATURES)
    x = rng.standard_normal((CLIENTS * 20, FEATURES))
    client = np.repeat(np.arange(CLIENTS), 20)
    truth = common + 0.5 * rng.standard_normal((CLIENTS, FEATURES))
    y = np.einsum("nf,nf->n", x, truth[client]) + 0.1 * rng.standard_normal(len(x))
    path = tmp_path_factory.mktemp("tasks") / "tasks.npz"
    np.savez(path, x=x, y=y, client=client)
    return path


@pytest.fixture
def solved(run, tasks):
    """Runs an algorithm on the tasks."""
    text = CONFIG.replace("ROOT", str(tasks))
    return lambda algorithm, *changes: run(text.replace("ALGORITHM", algorithm), *changes)


@pytest.mark.parametrize("name", ["gradient-tracking", "d2"])
def test_different_losses_lead_every_client_to_the_minimiser_of_their_sum(solved, name):
    folder = solved(f'name = "{name}"', "topology.kind=star")  # whose clients weigh very differently
    hessians, slopes = zip(*map(oracles.normal_equations, folder.shards().values()), strict=True)
    expected = np.linalg.solve(sum(hessians), sum(slopes))
    np.testing.assert_allclose(folder.thetas(ROUNDS), np.tile(expected, (CLIENTS, 1)), atol=1e-9)


@pytest.mark.parametrize(
    ("algorithm", "features"),
    [('name = "dfedu"', FEATURES), ('name = "sheaf-fmtl", start = "selection", eta = 0.0', 3)],
    ids=["personalised", "hybrid"],
)
def test_with_a_server_the_distance_to_its_free_model_is_minimised(solved, tasks, algorithm, features):
    """(15) and, where clients see some features each, (16): the server's theta_0 sees them through selections."""
    lam, d = 0.6, FEATURES + 1
    held = [f"data.features_held={features / FEATURES}"] if features < FEATURES else []
    folder = solved(f"{algorithm}, lam = {lam}, server = true", "rounds=900", "training.alpha=0.2", *held)
    found, shards = folder.theta(900), folder.shards()
    sizes = [theta.size for theta in found.values()]
    assert sizes == [features + 1] * CLIENTS + [d]  # with the intercept; the server has all
    # One system for all theta_i and the server's, theta_0: lam sum_i ||theta_i - S_i theta_0||^2 / 2 + losses
    ends = np.cumsum(sizes)
    *of, server = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    matrix, right = np.zeros((ends[-1], ends[-1])), np.zeros(ends[-1])
    for client, shard in shards.items():
        S = np.zeros((sizes[client], ends[-1]))
        S[:, of[client]], S[:, server] = np.eye(sizes[client]), -selection(shard, client, tasks)
        H, b = oracles.normal_equations(shard)
        matrix += lam * S.T @ S
        matrix[of[client], of[client]] += H
        right[of[client]] += b
    expected = np.linalg.lstsq(matrix, right, rcond=None)[0]
    np.testing.assert_allclose(np.concatenate(list(found.values())), expected, rtol=0, atol=1e-8)


def selection(shard, client, source) -> np.ndarray:
    """Pi_i, found from the data: which of the source's features the client's columns are."""
    with np.load(source) as arrays:
        everything = arrays["x"][arrays["client"] == client].astype(np.float32)
    columns = shard["x_train"].T
    chosen = [f for f in range(FEATURES) if any(np.isin(column, everything[:, f]).all() for column in columns)]
    return np.eye(FEATURES + 1)[[*chosen, FEATURES]]


BROKEN = """
clients = 6
rounds = 30
topology.kind = "ring"
data.samples = 300
model = { dtype = "float64", same_start = false }
training.alpha = 0.01
checkpoints.save_maps = true
algorithm = { name = "sheaf-fmtl", gamma = 0.05, lam = 230.0, eta = 0.0 }
"""


@pytest.mark.parametrize(("start", "scale"), [("shared", 1.0), ("gaussian", 0.03)])
def test_a_bound_that_the_curvature_of_the_penalty_breaks_is_told_as_that(run, start, scale):
    """Theorem 1 asks for alpha < 2/(N L) and leaves out alpha < 2/(L + lam sigma^2)."""
    folder = run(BROKEN, f"algorithm.start={start}", f"algorithm.start_scale={scale}")
    check = check_theorem(folder.path)
    P, _, _ = oracles.stacked_maps(folder.states(0), folder.edges())
    assert check.curved_limit == pytest.approx(2 / (check.smoothness + 230 * np.linalg.norm(P, 2) ** 2), rel=1e-4)
    assert check.curved_limit < check.alpha < check.alpha_limit
    assert check.bound is not None
    assert not check.holds
    assert "leaves out the curvature lam sigma^2 of the penalty" in check.verdict


def test_theorem_1_holds_on_a_convex_problem(run):
    check = check_theorem(run((ROOT / "examples" / "theorem-1.toml").read_text()).path)
    assert check.alpha < min(check.alpha_limit, check.curved_limit)
    assert check.eta < check.eta_limit
    assert 0 < check.averaged_gradient <= check.bound
