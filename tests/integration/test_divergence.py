"""A real run that diverges without an infinity comes to its end, and nobody takes it for a success."""

from __future__ import annotations

import subprocess
import sys

CONFIG = """
clients = 4
rounds = 12
[data]
dataset = "synthetic"
task = "regression"
[model]
kind = "linear"
[training]
alpha = {alpha}
[algorithm]
name = "local"
"""


def test_a_run_whose_loss_grows_ends_with_0_and_is_told_to_have_diverged(tmp_path):
    (tmp_path / "c.toml").write_text(CONFIG.format(alpha=5.0))
    command = [sys.executable, "-m", "sheafgossip.launcher.cli", "run", tmp_path / "c.toml", "--out", tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    assert "finished, but diverged: " in done.stderr
    assert "finished, but diverged" in done.stdout


def test_a_run_that_learns_is_not(whole_run):
    folder = whole_run(CONFIG.format(alpha=0.05))
    said = subprocess.run(
        [sys.executable, "-m", "sheafgossip.launcher.cli", "summary", folder.path], capture_output=True, text=True
    )
    assert "diverged" not in said.stdout
    assert float(folder.rows("SELECT value FROM meta WHERE key = 'constant_metric'")[0][0]) > 0.1
