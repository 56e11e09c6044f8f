"""Files of one's own: a table of owners with names, and sequences of several features."""

import numpy as np

from runs import assert_same_states, command
from sheafgossip.metrics import open_run
from sheafgossip.metrics.report.page import write_report

TABLE = """
clients = "all"
rounds = 5
topology = { kind = "ring" }
algorithm = { name = "dfedu" }
[data]
dataset = "table"
root = "mine.csv"
target = "ill"
client = "who"
min_samples = 4
text = "one-hot"
missing = "drop"
drop = ["day"]
"""


def test_a_table_as_it_comes_is_told_of_before_it_is_learned_and_owners_keep_their_names(tmp_path):
    rows = [
        f"{name};{age},5;{'yes' if age % 3 else 'no'};2024-01-{age + 1:02};{age % 2}"
        for name, count in (("Ann", 12), ("Bo", 2), ("Cy", 8), ("Ed <b>", 9))
        for age in range(count)
    ]
    (tmp_path / "mine.csv").write_text("who;age;smokes;day;ill\n" + "\n".join(rows) + "\nAnn;;yes;2024-02-01;1\n")
    (tmp_path / "run.toml").write_text(TABLE)
    done = command("run", tmp_path / "run.toml", "--out", tmp_path / "run")
    lines = done.stderr.splitlines()
    assert [line.partition("  ")[0] for line in lines[:7]] == [
        "run folder", "run", "data", "clients", "split", "local work", "model",
    ]  # fmt: skip
    assert lines[3] == "clients     all 3 owners: Ann, Cy, Ed <b>"
    assert "1 of 32 rows left out" in lines[2]
    assert "left out, with fewer than 4: Bo (2)" in lines[4]
    assert open_run(tmp_path / "run").client_total.owner.tolist() == ["Ann", "Cy", "Ed <b>"]
    write_report([tmp_path / "run"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Ed &lt;b&gt;: " in page
    assert "Ed <b>" not in page


def test_sequences_of_several_features_are_read_by_a_gru(run_in_threads, tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(120) % 2
    x = rng.normal(size=(120, 16, 6)) + 2 * y[:, None, None] * np.linspace(0, 1, 16)[:, None]
    np.savez(tmp_path / "steps.npz", x=x, y=y, subject=np.arange(120) // 2 % 4)
    folder = run_in_threads(
        f"""
        clients = "all"
        rounds = 15
        topology = {{ kind = "ring" }}
        data = {{ dataset = "npz", root = "{tmp_path}/steps.npz", client = "subject", series = true }}
        model = {{ kind = "gru", hidden = [5] }}
        training = {{ work = "epochs", batch_size = 8, alpha = 0.3 }}
        algorithm = {{ name = "dfedu" }}
        """
    )
    assert {shard["x_train"].shape[1:] for shard in folder.shards().values()} == {(16, 6)}
    assert {theta.size for theta in folder.theta(15).values()} == {3 * 5 * (6 + 5 + 2) + 6 * 2}
    ((accuracy,),) = folder.rows("SELECT avg(test_metric) FROM round WHERE round = 15")
    assert accuracy > 0.9


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
