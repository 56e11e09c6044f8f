"""The systems that section 3.3 of the paper finds inside Sheaf-FMTL, each against the objective that defines it.

The problems are least squares, so that a linear system of equations gives the minimiser of every objective.
"""

import numpy as np
import pytest

import oracles
from runs import ROOT
from sheafgossip.launcher.commands.theory import check_theorem

CLIENTS, FEATURES, ALPHA, ROUNDS = 6, 5, 0.05, 1000
BASE = """
clients = {clients}
rounds = {rounds}
{topology}
[data]
dataset = "npz"
root = "{data}"
task = "regression"
partition = "natural"
{extra}
[model]
kind = "linear"
dtype = "float64"
[training]
alpha = {alpha}
[evaluation]
every = 0
[algorithm]
"""


@pytest.fixture
def problem(tmp_path):
    """Related linear tasks, a client each, in an npz file; returns a function that completes a configuration."""
    rng = np.random.default_rng(4)
    common = rng.standard_normal(FEATURES)
    x = rng.standard_normal((CLIENTS * 20, FEATURES))
    client = np.repeat(np.arange(CLIENTS), 20)
    truth = common + 0.5 * rng.standard_normal((CLIENTS, FEATURES))
    y = np.einsum("nf,nf->n", x, truth[client]) + 0.1 * rng.standard_normal(len(x))
    np.savez(tmp_path / "tasks.npz", x=x, y=y, client=client)

    def configuration(algorithm: str, *, kind="ring", rounds=ROUNDS, alpha=ALPHA, extra="") -> str:
        topology = "" if "server = true" in algorithm else f'topology.kind = "{kind}"'
        head = BASE.format(
            clients=CLIENTS, rounds=rounds, topology=topology, data=tmp_path / "tasks.npz", alpha=alpha, extra=extra
        )
        return head + algorithm

    return configuration


def test_dfedu_with_mixing_weights_minimises_the_weighted_objective(run, problem):
    folder = run(problem('name = "dfedu"\nlam = 0.5\nweights = "mixing"\n', kind="star"))
    weight = 1 / CLIENTS  # Metropolis-Hastings on a star: 1 / (1 + the middle's degree)
    star = oracles.laplacian([(0, j) for j in range(1, CLIENTS)], CLIENTS)
    expected = oracles.minimiser(folder.shards(), 0.5 * weight * star)
    np.testing.assert_allclose(folder.thetas(ROUNDS), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ["gradient-tracking", "d2"])
def test_different_losses_lead_every_client_to_the_minimiser_of_their_sum(run, problem, name):
    folder = run(problem(f'name = "{name}"\n', kind="star"))  # whose clients weigh very differently
    np.testing.assert_allclose(folder.thetas(ROUNDS), np.tile(minimiser_of_the_sum(folder), (CLIENTS, 1)), atol=1e-9)


def minimiser_of_the_sum(folder):
    systems = [oracles.normal_equations(shard) for shard in folder.shards().values()]
    return np.linalg.solve(sum(H for H, _ in systems), sum(b for _, b in systems))


def test_ten_local_steps_a_round_minimise_the_same_objective_as_one(run, problem):
    settings = ("training.work=steps", "training.steps=10", "training.batch_size=20")  # all samples of a client
    folder = run(problem('name = "dfedu"\nlam = 0.3\n', rounds=100), *settings)
    ring = oracles.laplacian([(i, (i + 1) % CLIENTS) for i in range(CLIENTS)], CLIENTS)
    expected = oracles.minimiser(folder.shards(), 0.3 * ring)
    np.testing.assert_allclose(folder.thetas(100), expected, rtol=0, atol=1e-8)


def test_a_large_lambda_gives_conventional_federated_learning(run, problem):
    """All clients near the one minimiser of the sum of their losses, ten times nearer for a tenfold lambda."""
    gaps = []
    for lam, rounds in ((5.0, 600), (50.0, 2500)):
        # stable below 2 / (4 lam + curvature) on a ring
        folder = run(problem(f'name = "dfedu"\nlam = {lam}\n', rounds=rounds, alpha=0.4 / lam))
        gaps.append(np.abs(folder.thetas(rounds) - minimiser_of_the_sum(folder)).max())
    assert gaps[0] < 0.3
    assert gaps[0] / 15 < gaps[1] < gaps[0] / 7


def test_personalised_learning_on_a_star_minimises_the_distance_to_the_mean(run, problem):
    """(15): the server's model is the mean of its clients'."""
    lam = 0.7
    folder = run(problem(f'name = "dfedu"\nlam = {lam}\nserver = true\n'))
    # lam/2 sum_i ||theta_i - mean||^2 has the coupling lam (I - 11'/n)
    around_mean = lam * (np.eye(CLIENTS) - np.full((CLIENTS, CLIENTS), 1 / CLIENTS))
    expected = oracles.minimiser(folder.shards(), around_mean)
    *found, server = folder.thetas(ROUNDS)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(server, np.mean(found, axis=0), rtol=1e-8, atol=1e-8)
    assert folder.rows("SELECT node, train_samples, test_samples FROM node WHERE role = 'server'") == [(CLIENTS, 0, 0)]


def test_hybrid_learning_minimises_the_distance_to_the_selected_parameters_of_the_server(run, problem, tmp_path):
    """(16): clients see some features each; theta_0 is free, and sees the clients through selection matrices."""
    lam = 0.6
    settings = f'name = "sheaf-fmtl"\nstart = "selection"\neta = 0.0\nlam = {lam}\nserver = true\n'
    folder = run(problem(settings, rounds=3000, extra="features_held = 0.6"))
    d = FEATURES + 1
    found = folder.theta(3000)
    shards = folder.shards()
    sizes = [found[node].size for node in sorted(found)]
    assert sizes == [4] * CLIENTS + [d]  # 3 of 5 features and the intercept; the server has all
    # One system for all theta_i and the server's, theta_0: lam sum_i ||theta_i - S_i theta_0||^2 / 2 + losses
    ends = np.cumsum(sizes)
    *of, server = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    matrix, right = np.zeros((ends[-1], ends[-1])), np.zeros(ends[-1])
    for client, shard in shards.items():
        S = np.zeros((sizes[client], ends[-1]))
        S[:, of[client]], S[:, server] = np.eye(sizes[client]), -selection(shard, client, tmp_path / "tasks.npz")
        H, b = oracles.normal_equations(shard)
        matrix += lam * S.T @ S
        matrix[of[client], of[client]] += H
        right[of[client]] += b
    expected = np.linalg.lstsq(matrix, right, rcond=None)[0]
    for client in range(CLIENTS):
        np.testing.assert_allclose(found[client], expected[of[client]], rtol=1e-6, atol=1e-6)


def selection(shard, client, source) -> np.ndarray:
    """Pi_i, found from the data: which of the source's features the client's columns are."""
    with np.load(source) as arrays:
        everything = arrays["x"][arrays["client"] == client].astype(np.float32)
    columns = shard["x_train"].T
    chosen = [f for f in range(FEATURES) if any(np.isin(column, everything[:, f]).all() for column in columns)]
    S = np.zeros((len(chosen) + 1, FEATURES + 1))
    S[np.arange(len(chosen)), chosen] = 1
    S[-1, -1] = 1
    return S


BROKEN = """
clients = 6
rounds = 30
[topology]
kind = "ring"
[data]
samples = 300
[model]
dtype = "float64"
same_start = false
[training]
alpha = 0.01
[checkpoints]
save_maps = true
[algorithm]
name = "sheaf-fmtl"
gamma = 0.05
lam = 230.0
eta = 0.0
"""


@pytest.mark.parametrize(("start", "scale"), [("shared", 1.0), ("gaussian", 0.03)])
def test_a_bound_that_the_curvature_of_the_penalty_breaks_is_told_as_that(run, start, scale):
    """Theorem 1 asks for alpha < 2/(N L) and leaves out alpha < 2/(L + lam sigma^2)."""
    folder = run(BROKEN + f'start = "{start}"\nstart_scale = {scale}\n')
    check, states = check_theorem(folder.path), folder.states(0)
    P, _, _ = oracles.stacked_maps(states, folder.edges())
    assert check.curved_limit == pytest.approx(2 / (check.smoothness + 230 * np.linalg.norm(P, 2) ** 2), rel=1e-4)
    assert check.curved_limit < check.alpha < check.alpha_limit
    assert check.bound is not None
    assert not check.holds
    assert "leaves out the curvature lam sigma^2 of the penalty" in check.verdict


def test_theorem_1_holds_on_a_convex_problem(run):
    check = check_theorem(run((ROOT / "examples" / "theorem-1.toml").read_text()).path)
    assert check.alpha < check.alpha_limit
    assert check.alpha < check.curved_limit
    assert check.eta < check.eta_limit
    assert 0 < check.averaged_gradient <= check.bound
