import os
import subprocess
import sys

import pytest

from sheafgossip.transport.constants import VARIABLE, Constants, parse


def test_a_test_chooses_some():
    chosen = parse("window_bytes=4096,linger_s=0.1")
    assert chosen == Constants(window_bytes=4096, linger_s=0.1)
    assert isinstance(chosen.window_bytes, int)


@pytest.mark.parametrize("text", ["linger_s", "burst=0.5", "linger_s=-1"])
def test_what_is_no_constant_is_refused(text):
    with pytest.raises(ValueError, match=r"must be a number .*, and not below 0"):
        parse(text)


def test_a_process_with_an_unknown_constant_does_not_start():
    command = [sys.executable, "-c", "import sheafgossip.transport.constants"]
    done = subprocess.run(command, env=os.environ | {VARIABLE: "windows=1"}, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {VARIABLE}: 'windows=1': no such constant; allowed are window_bytes")
    assert done.stderr.count("\n") == 1
