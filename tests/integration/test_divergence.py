"""A run that diverges, or whose numbers a codec cannot carry, is not taken for a success."""

import re

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


CODED = """
clients = 4
rounds = 30
[data]
samples = 200
[evaluation]
every = 0
[transport]
codec = "{codec}"
[algorithm]
"""


def test_a_number_that_does_not_fit_ends_the_run_with_a_line_that_says_so(start):
    settings = 'name = "sheaf-fmtl"\ngamma = 0.1\nstart_scale = 1e6\neta = 0.0'
    code, said = start(CODED.format(codec="float16") + settings).end()
    assert code == 1
    assert "too large for float16; choose another transport.codec" in said
    assert "Traceback" not in said
    assert re.search(
        r"client \d failed in round \d+: a vector of client \d cannot be sent in round \d+: a number is", said
    )


@pytest.mark.parametrize("codec", ["bfloat16", "int8"])
def test_divergence_under_a_codec_is_told_as_without_one(start, codec):
    settings = 'name = "fedavg"\n[training]\nalpha = 1e38\n[model]\nkind = "mlp"\nhidden = [8]'
    code, said = start(CODED.format(codec=codec) + settings).end()
    assert code == 1
    assert "Traceback" not in said
    assert re.search(r"theta of client \d is not finite after round \d+: .*lower training.alpha", said)
