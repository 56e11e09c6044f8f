"""Numbers that a codec cannot carry, and numbers that are none."""

import re

import pytest

CONFIG = """
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
    code, said = start(CONFIG.format(codec="float16") + settings).end()
    assert code == 1
    assert "too large for float16; choose another transport.codec" in said
    assert "Traceback" not in said
    assert re.search(
        r"client \d failed in round \d+: a vector of client \d cannot be sent in round \d+: a number is", said
    )


@pytest.mark.parametrize("codec", ["bfloat16", "int8"])
def test_divergence_under_a_codec_is_told_as_without_one(start, codec):
    settings = 'name = "fedavg"\n[training]\nalpha = 1e38\n[model]\nkind = "mlp"\nhidden = [8]'
    code, said = start(CONFIG.format(codec=codec) + settings).end()
    assert code == 1
    assert "Traceback" not in said
    assert re.search(r"theta of client \d is not finite after round \d+: .*lower training.alpha", said)
