"""A real run that diverges without an infinity comes to its end, and nobody takes it for a success."""

import pytest

CONFIG = """
clients = 4
rounds = 12
[data]
dataset = "synthetic"
task = "regression"
[model]
kind = "linear"
[algorithm]
name = "local"
"""


@pytest.mark.parametrize("alpha", [5.0, 0.05])
def test_a_run_whose_loss_grows_ends_with_0_and_is_told_to_have_diverged(start, alpha):
    going = start(CONFIG, "--set", f"training.alpha={alpha}")
    out, err = going.process.communicate(timeout=100)
    assert going.process.returncode == 0, err
    assert ("finished, but diverged: " in err) == ("finished, but diverged" in out) == (alpha > 1)
    if alpha < 1:
        assert "diverged" not in out + err
        assert float(going.folder.rows("SELECT value FROM meta WHERE key = 'constant_metric'")[0][0]) > 0.1
