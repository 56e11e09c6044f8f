"""Clients that forecast their own series, a GRU each."""

from __future__ import annotations

import numpy as np

CONFIG = """
clients = 4
rounds = 30
[topology]
kind = "ring"
[data]
dataset = "sensors"
root = "{root}"
window = 8
horizon = 2
[model]
kind = "gru"
hidden = [6]
[training]
work = "epochs"
batch_size = 16
alpha = 0.05
[algorithm]
name = "dfedu"
lam = 0.5
[evaluation]
every = 0
"""


def write_waves(path):
    """Four sensors that show one wave, each a little later than the one before."""
    moments = np.arange(300)[:, None] + 3 * np.arange(4)[None]
    noise = np.random.default_rng(0).normal(scale=0.05, size=moments.shape)
    np.savez(path, values=np.sin(2 * np.pi * moments / 25) + noise)


def test_clients_with_a_gru_each_learn_to_forecast_and_repeat_to_the_bit(run, tmp_path):
    write_waves(tmp_path / "waves.npz")
    first, again = (run(CONFIG.format(root=tmp_path / "waves.npz")) for _ in range(2))
    for node, theta in first.theta(30).items():
        assert theta.size == 3 * 6 * (1 + 6 + 2) + 7 * 2
        assert np.array_equal(theta, again.theta(30)[node])
    by_last_value = np.mean(
        [np.square(shard["y_test"] - shard["x_test"][:, -1:]).mean() for shard in first.shards().values()]
    )
    ((error,),) = first.rows("SELECT avg(test_metric) FROM round WHERE round = 30")
    assert error < by_last_value / 4
