"""A run that diverges, or whose numbers a codec cannot carry, is not taken for a success."""

import re

import pytest

from foreign import sheafgossip
from runs import RunFolder, small

SYNTHETIC = 'data = {dataset = "synthetic", task = "regression"}'
LINEAR = small(SYNTHETIC, 'model.kind = "linear"', rounds=12, samples=0, algorithm="local")
CODED = small("evaluation.every = 0", rounds=30, samples=200, topology="", algorithm="")
MAPS = 'algorithm = {name = "sheaf-fmtl", gamma = 0.1, start_scale = 1e6, eta = 0.0}\ntransport.codec = "float16"'
FAST = 'algorithm.name = "fedavg"\ntraining.alpha = 1e38\nmodel = {kind = "mlp", hidden = [8]}\ntransport.codec = '
PULLED = 'algorithm = {name = "dfedu", lam = 1e6}\nmodel = {kind = "mlp", hidden = [8]}'

LYING = 'algorithm.name = "d-psgd"\nattack = {kind = "inflate", clients = [1, 2], strength = 1e9}'


@pytest.fixture
def ended(tmp_path):
    def ended(text: str, name: str, code: int) -> str:
        """What is said of a run that must end with this code."""
        (tmp_path / "config.toml").write_text(text)
        found, out, err = sheafgossip("run", tmp_path / "config.toml", "--out", tmp_path / name, "--engine", "threads")
        assert found == code, err
        assert "Traceback" not in err
        assert code or ("finished, but diverged" in out) == ("finished, but diverged: " in err)
        return err

    return ended


def test_a_run_whose_loss_grows_ends_with_0_and_is_told_to_have_diverged(ended, tmp_path):
    assert "finished, but diverged: " in ended(f"{LINEAR}training.alpha = 5.0", "grows", 0)
    assert "diverged" not in ended(f"{LINEAR}training.alpha = 0.05", "learns", 0)
    ((constant,),) = RunFolder(tmp_path / "learns").rows("SELECT value FROM meta WHERE key = 'constant_metric'")
    assert float(constant) > 0.1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MAPS, r"failed in round \d+: a vector of client \d cannot be sent in round \d+: a number is .* too large "
         r"for float16; choose another transport.codec"),
        (FAST + '"bfloat16"', r"theta of client \d is not finite after round \d+: .*lower training.alpha"),
        (FAST + '"int8"', r"theta of client \d is not finite after round \d+: .*lower training.alpha"),
        (PULLED, r"is not finite after round .*algorithm.lam"),
        (LYING, r"client 0 is not finite .*: client 1 and 1 more attack: algorithm.mixing or .* may help; or"),
    ],
)  # fmt: skip
def test_a_number_that_does_not_fit_ends_the_run_with_a_line_that_says_so(ended, text, said):
    assert re.search(said, ended(CODED + text, "run", 1))
