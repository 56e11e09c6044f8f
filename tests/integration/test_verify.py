"""``sheafgossip verify`` with real processes: when it agrees, and that it notices when a byte is missing."""

import os
import subprocess
from itertools import product

import pytest

from runs import command
from sheafgossip.transport.connections import counts_bytes

pytestmark = pytest.mark.skipif(not counts_bytes(), reason="this kernel does not count the bytes of TCP connections")

CONNECTIONS = 8 * 4 // 2


def verify(code: int, *options: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return command("verify", *options, code=code, timeout=170, env=os.environ | {"COLUMNS": "120"} | environment)


def lines_of(shown: str, case: str) -> tuple[list[list[str]], list[list[str]]]:
    """Words of the lines about a case, and of those about its connections."""
    lines = [line.split() for line in shown.splitlines() if line.strip().startswith(case)]
    return [line for line in lines if "->" not in line], [line for line in lines if "->" in line]


def test_short_and_long_vectors_in_both_exchanges_agree_to_the_byte_on_every_connection(tmp_path):
    shown = verify(0, "--out", tmp_path / "runs", "--all").stdout
    assert f"all {2 * 6 * CONNECTIONS} connections agree to the byte" in shown
    for length, exchange in product(("10", "1,000", "100,000"), ("two-phase", "fused")):
        (plain, keyed), directions = lines_of(shown, f"{length} floats, {exchange}")
        assert keyed.pop(3) == "keys"
        for line in (plain, keyed):
            connections, recorded, sent, received, over_ipc = line[3:]
            assert (connections, over_ipc) == (str(CONNECTIONS), "yes")
            assert recorded == sent == received
        assert len(directions) == 2 * 2 * CONNECTIONS
        assert all(line[-3] == line[-2] == line[-1] for line in directions)
    assert len(list((tmp_path / "runs").iterdir())) == 18


def test_one_byte_missing_in_the_formula_is_noticed_the_connections_are_named_and_nothing_is_left_behind(
    tmp_path, tmp_path_factory
):
    miscounting = tmp_path_factory.mktemp("miscounting")
    (miscounting / "sitecustomize.py").write_text(
        "from sheafgossip.transport import wire\n"  # long frames are a byte longer than that
        "wire.frame_bytes = lambda length: length + 2 if length <= 255 else length + 8\n"
    )
    path = os.pathsep.join(filter(None, [str(miscounting), os.environ.get("PYTHONPATH")]))
    done = verify(1, "--floats", 1000, PYTHONPATH=path, TMPDIR=str(tmp_path))
    assert "agree to the byte" not in done.stdout
    assert list(tmp_path.iterdir()) == []
    for exchange in ("two-phase", "fused"):
        _, directions = lines_of(done.stdout, f"1,000 floats, {exchange}")
        assert len(directions) == 2 * 2 * CONNECTIONS, done.stderr
        assert {line[-1] for line in directions} == {"✗"}
        assert f"error: 1,000 floats, {exchange}: the recorded bytes are not the kernel's on 0 -> " in done.stderr
