"""A seed is the whole story: what else the machine does changes no bit."""

import numpy as np
import pytest

from runs import assert_same, assert_same_states, small

MORE = """
seed = 1
topology.p = 0.5
data.reduced_clients = 0.5
training = {work = "epochs", momentum = 0.5}
algorithm = {name = "sheaf-fmtl", gamma = 0.05, lam = 0.01, start_scale = 0.1}
checkpoints.every = 4
"""
LOGISTIC = small(MORE, clients=6, rounds=8, samples=400, topology="", algorithm="")


@pytest.mark.parametrize("model", [(), ("model.kind=cnn", "model.filters=[8]")], ids=["logistic", "cnn"])
def test_one_seed_gives_identical_states_and_traffic_also_under_load(run_in_processes, load_cores, model):
    alone = run_in_processes(LOGISTIC, *model)
    load_cores()
    assert_same(alone, run_in_processes(LOGISTIC, *model))


def test_another_seed_gives_another_run_and_the_resolved_configuration_the_same(run_in_threads):
    one, other = run_in_threads(LOGISTIC), run_in_threads(LOGISTIC, "seed=2")
    assert one.theta(0)[0].tobytes() != other.theta(0)[0].tobytes()
    assert one.edges() != other.edges()
    assert_same(one, run_in_threads((one.path / "config.toml").read_text()))


WAVES = """
clients = 4
rounds = 20
topology = {{ kind = "ring" }}
data = {{ dataset = "sensors", root = "{root}", window = 8, horizon = 2 }}
model = {{ kind = "gru", hidden = [6] }}
training = {{ work = "epochs", batch_size = 16, alpha = 0.05 }}
algorithm = {{ name = "dfedu", lam = 0.5 }}
evaluation = {{ every = 0 }}
"""


def test_clients_with_a_gru_each_learn_to_forecast_their_own_series_and_repeat_to_the_bit(
    run_in_threads, run_in_processes, tmp_path
):
    """Four sensors that show one wave, each a little later than the one before."""
    moments = np.arange(300)[:, None] + 3 * np.arange(4)[None]
    noise = np.random.default_rng(0).normal(scale=0.05, size=moments.shape)
    np.savez(tmp_path / "waves.npz", values=np.sin(2 * np.pi * moments / 25) + noise)
    folder = run_in_threads(WAVES.format(root=tmp_path / "waves.npz"))
    assert folder.thetas(20).shape == (4, 3 * 6 * (1 + 6 + 2) + 7 * 2)
    assert_same_states(folder, run_in_processes(WAVES.format(root=tmp_path / "waves.npz")), 20)
    shards = folder.shards().values()
    by_last_value = np.mean([np.square(shard["y_test"] - shard["x_test"][:, -1:]).mean() for shard in shards])
    ((error,),) = folder.rows("SELECT avg(test_metric) FROM round WHERE round = 20")
    assert error < by_last_value / 4
