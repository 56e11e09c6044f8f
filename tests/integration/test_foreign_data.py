"""Files of one's own: a table of owners with names, and sequences of several features."""

from __future__ import annotations

import subprocess

import numpy as np
from runs import CLI

from sheafgossip.metrics import open_run
from sheafgossip.metrics.report import write_report

TABLE = """
clients = "all"
rounds = 5
[topology]
kind = "ring"
[data]
dataset = "table"
root = "mine.csv"
target = "ill"
client = "who"
min_samples = 4
text = "one-hot"
missing = "drop"
drop = ["day"]
[algorithm]
name = "dfedu"
"""


def test_a_table_as_it_comes_is_told_of_before_it_is_learned_and_owners_keep_their_names(tmp_path):
    rows = [
        f"{name};{age},5;{'yes' if age % 3 else 'no'};2024-01-{age + 1:02};{age % 2}"
        for name, count in (("Ann", 12), ("Bo", 2), ("Cy", 8), ("Ed <b>", 9))
        for age in range(count)
    ]
    (tmp_path / "mine.csv").write_text("who;age;smokes;day;ill\n" + "\n".join(rows) + "\nAnn;;yes;2024-02-01;1\n")
    (tmp_path / "run.toml").write_text(TABLE)
    done = subprocess.run(
        [*CLI, "run", tmp_path / "run.toml", "--out", tmp_path / "run"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert [line.partition("  ")[0] for line in lines[:7]] == [
        "run folder", "run", "data", "clients", "split", "local work", "model",
    ]  # fmt: skip
    assert lines[3] == "clients     all 3 owners: Ann, Cy, Ed <b>"
    assert "1 of 32 rows left out" in lines[2]
    assert "left out, with fewer than 4: Bo (2)" in lines[4]
    assert open_run(tmp_path / "run").client_total.owner.tolist() == ["Ann", "Cy", "Ed <b>"]
    write_report([tmp_path / "run"], tmp_path / "page.html", None)
    page = (tmp_path / "page.html").read_text()
    assert "Ed &lt;b&gt;: " in page
    assert "Ed <b>" not in page


def test_sequences_of_several_features_are_read_by_a_gru(run, tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(120) % 2
    x = rng.normal(size=(120, 16, 6)) + 2 * y[:, None, None] * np.linspace(0, 1, 16)[:, None]
    np.savez(tmp_path / "steps.npz", x=x, y=y, subject=np.arange(120) // 2 % 4)
    folder = run(
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
