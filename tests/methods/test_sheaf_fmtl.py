"""What runs of Sheaf-FMTL record, maps that stay or rotate, and maps that diverge."""

import math
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import oracles
from runs import RunFolder
from sheafgossip.node.maps import cosine_rows, shared_rows


def maps(run: RunFolder, round: int) -> np.ndarray:
    """All numbers of all maps."""
    states = run.states(round).values()
    parts = [arrays[name].ravel() for arrays in states for name in sorted(arrays) if name.startswith("P.")]
    return np.concatenate(parts).astype(np.float64)


LAM, ALPHA, L2, SCALE, EVERY = 0.05, 0.5, 0.01, 3.0, 3
WATCHED = f"""
clients = 5
rounds = 20
seed = 8
topology.kind = "ring"
data = {{ samples = 300, rotations = [0, 90] }}
model = {{ dtype = "float64", same_start = false }}
training = {{ alpha = {ALPHA}, l2 = {L2} }}
checkpoints = {{ every = 1, save_maps = true }}
algorithm = {{ name = "sheaf-fmtl", gamma = 0.05, lam = {LAM} }}
[[compare]]
name = "learning"
algorithm = {{ eta = 0.2, start = "identity" }}
[[compare]]
name = "frozen"
algorithm = {{ eta = 0.0, start = "identity" }}
training = {{ work = "steps", steps = 2 }}
[[compare]]
name = "rotating"
algorithm = {{ eta = 0.0, start = "shared", start_scale = {SCALE}, rotate_every = {EVERY} }}
"""


@pytest.fixture
def watched(run) -> dict[str, RunFolder]:
    """Every round's models and maps are in the checkpoints."""
    return run(WATCHED).runs()


def objective(run: RunFolder, round: int) -> tuple[float, float]:
    """Psi = sum_i f_i(theta_i) + lam/2 sum over edges ||P_ij theta_i - P_ji theta_j||^2 after a round, and the norm of
    its gradient in all models and maps, by automatic differentiation."""
    leaves = {
        (node, name): torch.from_numpy(array).requires_grad_()
        for node, arrays in run.states(round).items()
        for name, array in arrays.items()
        if name == "theta" or name.startswith("P.")
    }
    total = torch.zeros((), dtype=torch.float64)
    for node, shard in run.shards().items():
        theta, x = leaves[node, "theta"], torch.from_numpy(shard["x_train"]).flatten(1).double()
        scores = x @ theta[:640].reshape(10, 64).T + theta[640:]
        total = total + cross_entropy(scores, torch.from_numpy(shard["y_train"])) + L2 / 2 * theta @ theta
    for i, j in run.edges():
        gap = leaves[i, f"P.{j}"] @ leaves[i, "theta"] - leaves[j, f"P.{i}"] @ leaves[j, "theta"]
        total = total + LAM / 2 * gap @ gap
    total.backward()
    return float(total.detach()), math.sqrt(sum(float((leaf.grad**2).sum()) for leaf in leaves.values()))


def test_edges_record_disagreements_as_the_round_began_and_map_norms_as_it_ended(watched):
    learning = watched["learning"]
    rows = learning.rows("SELECT round, node, neighbour, disagreement, map_norm FROM edge ORDER BY 1, 2, 3")
    arcs = sorted((i, (i + step) % 5) for i in range(5) for step in (1, -1))
    assert [row[:3] for row in rows] == [(round, *arc) for round in range(1, 21) for arc in arcs]
    for round, i, j, gap, norm in rows:
        assert norm == pytest.approx(np.linalg.norm(learning.states(round)[i][f"P.{j}"]), rel=1e-12)
        state = learning.states(round - 1)
        expected = state[i][f"P.{j}"] @ state[i]["theta"] - state[j][f"P.{i}"] @ state[j]["theta"]
        assert gap == pytest.approx(np.linalg.norm(expected), rel=1e-9)
    totals = learning.rows("SELECT sqrt(sum(disagreement * disagreement)) FROM edge GROUP BY round, node")
    recorded = learning.rows("SELECT disagreement FROM round WHERE round > 0 ORDER BY round, node")
    np.testing.assert_allclose(recorded, totals, rtol=1e-12)
    # maps that keep everything are exact, and step sizes far from divergence bring no warning
    assert learning.rows("SELECT DISTINCT error_bound FROM edge") == [(0.0,)]
    assert learning.rows("SELECT * FROM event WHERE kind = 'warning'") == []


def test_recorded_objectives_and_gradient_norms_add_up_to_those_of_the_round_before(watched):
    totals = "SELECT round, sum(objective), sum(gradient_norm * gradient_norm) FROM round WHERE round > 0 GROUP BY 1"
    for round, total, squared_norm in watched["learning"].rows(totals):
        expected, norm = objective(watched["learning"], round - 1)
        assert total == pytest.approx(expected, rel=1e-10)
        assert math.sqrt(squared_norm) == pytest.approx(norm, rel=1e-8)


def test_frozen_maps_stay_send_one_vector_a_round_and_mini_batches_tell_no_gradient_norm(watched):
    frozen = watched["frozen"]
    np.testing.assert_array_equal(maps(frozen, 20), maps(frozen, 0))
    assert frozen.rows("SELECT DISTINCT messages, payload_bytes FROM traffic WHERE round > 0") == [(1, 32 * 8)]
    assert frozen.rows("SELECT DISTINCT gradient_norm FROM round") == [(None,)]


def test_rotating_maps_follow_their_equations_with_the_explicit_matrices_of_each_period(watched):
    """theta_i <- theta_i - alpha (grad f_i(theta_i) + lam sum_j P^T P (theta_i - theta_j)), P = s S C D of the
    period."""
    rotating = watched["rotating"]
    size, shards, first = 650, rotating.shards(), rotating.states(0)
    theta = {node: arrays["theta"] for node, arrays in first.items()}
    signs = np.sign((first[0]["P.1"] * cosine_rows(shared_rows(8, 0, {1: 32}, size, 0)[1], size)).sum(axis=0))
    for round in range(1, 21):
        step = {i: oracles.gradient(theta[i], shards[i]) + L2 * theta[i] for i in theta}
        for i, j in oracles.both_directions(rotating.edges()):
            rows = shared_rows(8, i, {j: 32}, size, (round - 1) // EVERY)[j]
            P = SCALE * cosine_rows(rows, size) * signs
            step[i] = step[i] + LAM * P.T @ (P @ (theta[i] - theta[j]))
        theta = {i: theta[i] - ALPHA * step[i] for i in theta}
        assert oracles.error(rotating.thetas(round), np.stack(list(theta.values()))) < 1e-12
    at = [maps(rotating, round) for round in range(1, 21)]  # round 1 is of period 0, as the start is
    changed = [not np.array_equal(now, before) for before, now in pairwise(at)]
    assert changed == [(round - 1) % EVERY == 0 for round in range(2, 21)]


STEP = 200.0 * 0.01  # eta lam
DIVERGING = """
clients = 4
rounds = 500
seed = 1
topology.kind = "ring"
data.samples = 300
model.same_start = false
training.alpha = 0.1
algorithm = { name = "sheaf-fmtl", gamma = 0.1, lam = 0.01, eta = 200.0, start = "orthogonal" }
"""


def test_a_run_whose_maps_diverge_fails_after_a_warning_for_each_client_and_names_eta(start):
    going = start(DIVERGING)
    printed, run = going.ends(1), going.folder
    failed = re.search(r"client 0 failed in round (\d+): theta of client 0 is not finite after round (\d+):", printed)
    completed = run.rows("SELECT max(round) FROM round WHERE node = 0")[0][0]
    assert failed[1] == failed[2] == str(completed + 1)
    warnings = run.rows("SELECT node, wall_s, detail FROM event WHERE kind = 'warning' AND detail LIKE 'eta lam%'")
    assert sorted(node for node, *_ in warnings) == [0, 1, 2, 3]  # once each
    (ended,) = run.rows("SELECT wall_s FROM event WHERE kind = 'failure'")[0]
    for node, wall_s, detail in warnings:
        norms = [norm for (norm,) in run.rows(f"SELECT theta_norm FROM round WHERE node = {node} ORDER BY round")]
        crossing = next(norm for norm in norms if STEP * norm**2 > 1)
        told = re.search(r"\|\|theta\|\|\^2 = (\S+) is above 1", detail)
        assert float(told[1]) == pytest.approx(STEP * crossing**2, rel=0.01)
        assert "algorithm.eta" in detail
        assert wall_s < ended
    assert all("algorithm.eta" in line for line in printed.splitlines() if "failed in round" in line)
