"""Algorithms with a server when something goes wrong: what arrived by the deadline is aggregated, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from sheafgossip.topology.randomness import generator
from sheafgossip.transport.schedule import Schedule

from .conftest import assert_same_states

CLIENTS, ROUNDS, STEPS, BATCH, ALPHA, SEED = 7, 14, 3, 16, 0.3, 3
SERVER = CLIENTS
TROUBLE = f"""
clients = {CLIENTS}
rounds = {ROUNDS}
seed = {SEED}
[data]
samples = 500
[training]
work = "steps"
steps = {STEPS}
batch_size = {BATCH}
alpha = {ALPHA}
[time]
clock = "virtual"
deadline_s = 0.6
silence = "skip"
[compute]
step_s = 0.05
[links]
latency = "uniform"
latency_s = 0.01
latency_high_s = 0.05
loss = 0.08
[checkpoints]
every = 2
[[faults]]
kind = "crash"
clients = [2]
at_round = 6
restart_after = 3
[[faults]]
kind = "slow"
clients = [5]
rounds = [3, 3]
factor = 12.0
[[faults]]
kind = "join"
clients = [6]
at_round = 3
"""
FEDAVG = """
[model]
dtype = "float64"
[algorithm]
name = "fedavg"
"""


class Client:
    """Multinomial logistic regression on its shard, in double precision."""

    def __init__(self, number, shard):
        self.number = number
        x = shard["x_train"]
        self.x = np.column_stack([x.reshape(len(x), -1).astype(float), np.ones(len(x))])
        self.y = shard["y_train"]

    def learnt(self, theta, drawn):
        """After a round's steps, ``drawn`` mini-batches having been drawn before."""
        w = np.column_stack([theta[:-10].reshape(10, -1), theta[-10:]])
        size = min(BATCH, len(self.y))
        a_pass = -(-len(self.y) // size)
        for batch in range(drawn, drawn + STEPS):
            order = generator(SEED, "mini-batches", self.number, batch // a_pass).permutation(len(self.y))
            rows = order[batch % a_pass * size : (batch % a_pass + 1) * size]
            scores = np.exp(self.x[rows] @ w.T)
            w = w - ALPHA * (scores / scores.sum(axis=1, keepdims=True) - np.eye(10)[self.y[rows]]).T @ self.x[
                rows
            ] / len(rows)
        return np.concatenate([w[:, :-1].ravel(), w[:, -1]])


def test_fedavg_averages_the_uploads_that_the_plan_lets_through(run):
    folder = run(TROUBLE + FEDAVG)
    plan = {i: Schedule.load(folder.path / "plan" / f"node-{i:04d}.safetensors") for i in range(CLIENTS + 1)}
    w = folder.theta(0)[SERVER]
    clients = {i: Client(i, shard) for i, shard in folder.shards().items()}
    models, drawn = dict.fromkeys(clients, w), dict.fromkeys(clients, 0)
    kept = {0: (dict(models), dict(drawn))}  # what a client that comes back goes on from
    lives = dict.fromkeys(clients, 0)
    for round in range(1, ROUNDS + 1):
        uploads = {}
        for i in clients:
            schedule, row = plan[i], round - 1
            if np.isnan(schedule.end[row]):
                lives[i] = round
                continue
            if lives[i] == round - 1 and round > 1:  # it has just come back
                written = (5 // 2) * 2 if i == 2 else 0
                models[i], drawn[i] = kept[written][0][i], kept[written][1][i]
            if not np.isnan(schedule.compute[row]):
                models[i], drawn[i] = clients[i].learnt(models[i], drawn[i]), drawn[i] + STEPS
                uploads[i] = models[i]
        heard = [i for i in clients if plan[SERVER].uses[round - 1, 0, i]]
        assert set(heard) <= set(uploads)
        if heard:
            samples = {i: len(clients[i].y) for i in heard}
            w = sum(samples[i] * uploads[i] for i in heard) / sum(samples.values())
        for i in clients:
            if plan[i].uses[round - 1, 0, 0]:
                models[i] = w
        kept[round] = dict(models), dict(drawn)
    found = folder.theta(ROUNDS)
    for i in clients:
        assert np.linalg.norm(found[i] - models[i]) < 1e-9 * np.linalg.norm(models[i]), i
    assert np.linalg.norm(found[SERVER] - w) < 1e-9 * np.linalg.norm(w)

    # Something of everything has happened: lost, too late, left out, away
    missing = plan[SERVER].uses[:, 0] == 0
    assert missing[2:, 5].any()
    assert missing[:2, 6].all()
    assert missing[5:8, 2].all()
    left_out = ~np.isnan(plan[5].end) & np.isnan(plan[5].compute)
    assert left_out.any()
    assert plan[SERVER].deadlines.sum() > 2
    used = {
        (round, i)
        for round, i in folder.rows(f"SELECT round, neighbour FROM used WHERE node = {SERVER} AND used_round = round")
    }
    assert used == {(row + 1, i) for row, i in np.argwhere(~missing).tolist()}
    assert folder.rows(f"SELECT max(virtual_s) FROM round WHERE node = {SERVER}") == [(plan[SERVER].end[-1],)]


OTHERS = {
    "ditto": '[algorithm]\nname = "ditto"\nfraction = 0.6',
    "pfedme of the last uploads": '[algorithm]\nname = "pfedme"',
    "sfmtl-graph": '[algorithm]\nname = "sfmtl-graph"\n[model]\nkind = "mlp"\nhidden = [16]',
    "flt": '[algorithm]\nname = "flt"\nembedding = 8\nmanifold = "pca"\ncase = "related"\nfraction = 0.6',
    "fedsak": '[algorithm]\nname = "fedsak"\nfraction = 0.6',
    "shn": '[algorithm]\nname = "shn"\nfraction = 0.6\nembedding_rounds = 5\nhidden = 16\nembedding = 4',
}


@pytest.mark.parametrize("name", OTHERS)
def test_each_algorithm_with_a_server_lives_with_a_crash_losses_and_a_straggler(run, name):
    text = TROUBLE.replace('"skip"', '"stale"') if "last" in name else TROUBLE
    folder = run(text + OTHERS[name])
    (missed,) = folder.rows(f"SELECT count(*) FROM used WHERE node = {SERVER} AND used_round IS NOT round")
    assert missed[0] > 3
    assert folder.rows("SELECT kind FROM event WHERE kind IN ('crash', 'restart', 'join') ORDER BY 1") == [
        ("crash",), ("join",), ("restart",)
    ]  # fmt: skip
    assert all(np.isfinite(theta).all() for theta in folder.theta(ROUNDS).values())
    planned = Schedule.load(folder.path / "plan" / f"node-{SERVER:04d}.safetensors").uses
    found = np.zeros_like(planned)
    for round, phase, i, used in folder.rows(
        f"SELECT round, phase, neighbour, used_round FROM used WHERE node = {SERVER} AND used_round IS NOT NULL"
    ):
        found[round - 1, phase, i] = used
    assert np.array_equal(found, planned)


def test_an_interrupted_run_with_a_scenario_goes_on_to_the_same_bits(run, cut):
    text = TROUBLE + OTHERS["sfmtl-graph"]
    broken = cut(text, round=10, away=1)  # of clients, one has crashed and is back, one has joined
    broken.resume()
    assert_same_states(broken, run(text), ROUNDS)


def test_on_the_wall_clock_the_server_goes_on_at_the_deadline(run):
    text = (
        TROUBLE.replace('"virtual"', '"wall"')
        .replace("rounds = 14", "rounds = 8")
        .replace("step_s = 0.05", "step_s = 0.02")
    )
    folder = run(text.replace("deadline_s = 0.6", "deadline_s = 0.3") + FEDAVG)
    heard = folder.rows(
        f"SELECT round, count(used_round) FROM used WHERE node = {SERVER} GROUP BY round ORDER BY round"
    )
    assert [round for round, _ in heard] == list(range(1, 9))
    assert min(count for _, count in heard) < CLIENTS
    assert sum(count for _, count in heard) > 25
    (straggler,) = folder.rows(f"SELECT used_round FROM used WHERE node = {SERVER} AND round = 3 AND neighbour = 5")
    assert straggler == (None,)
