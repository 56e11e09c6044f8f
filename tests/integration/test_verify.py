"""``sheafgossip verify`` with real processes: when it agrees, and that it notices when a byte is missing."""

import os
import subprocess

import pytest

from runs import command
from sheafgossip.transport.kernel import counts_bytes

pytestmark = pytest.mark.skipif(not counts_bytes(), reason="this kernel does not count the bytes of TCP connections")

CONNECTIONS = 8 * 4 // 2


def verify(code: int, *options: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return command("verify", *options, code=code, timeout=170, env=os.environ | {"COLUMNS": "120"} | environment)


def lines_of(shown: str, case: str) -> list[str]:
    return [line for line in shown.splitlines() if line.strip().startswith(case)]


def test_short_and_long_vectors_in_both_exchanges_agree_to_the_byte(tmp_path):
    shown = verify(0, "--out", tmp_path / "runs").stdout
    assert f"all {2 * 6 * CONNECTIONS} connections agree to the byte" in shown
    for length in ("10", "1,000", "100,000"):
        for exchange in ("two-phase", "fused"):
            plain, keyed = lines_of(shown, f"{length} floats, {exchange}")
            for line in (plain, keyed.replace(", keys", "")):
                connections, recorded, sent, received, over_ipc = line.split()[3:]
                assert (connections, over_ipc) == (str(CONNECTIONS), "yes")
                assert recorded == sent == received
            assert ", keys" in keyed
    assert len(list((tmp_path / "runs").iterdir())) == 18


def test_every_connection_is_shown_on_demand_and_nothing_is_left_behind(tmp_path):
    shown = verify(0, "--floats", 10, "--all", TMPDIR=str(tmp_path)).stdout
    directions = [line.split() for line in lines_of(shown, "10 floats, fused") if "->" in line]
    assert len(directions) == 2 * 2 * CONNECTIONS
    assert all(line[-3] == line[-2] == line[-1] for line in directions)
    assert list(tmp_path.iterdir()) == []


def test_one_byte_missing_in_the_formula_is_noticed_and_the_connections_are_named(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "from sheafgossip.transport import wire\n"  # long frames are a byte longer than that
        "wire.frame_bytes = lambda length: length + 2 if length <= 255 else length + 8\n"
    )
    before = filter(None, [os.environ.get("PYTHONPATH")])
    done = verify(1, "--floats", 1000, PYTHONPATH=os.pathsep.join([str(tmp_path), *before]))
    assert "agree to the byte" not in done.stdout
    for exchange, messages in (("two-phase", 6), ("fused", 3)):
        case = f"1,000 floats, {exchange}"
        directions = [line.split() for line in lines_of(done.stdout, case) if "->" in line]
        assert len(directions) == 2 * 2 * CONNECTIONS
        complaints = "\n".join(lines_of(done.stderr, f"error: {case}"))
        for *name, src, _, dst, recorded, sent, received, mark in directions:
            short = int(sent.replace(",", "")) - int(recorded.replace(",", ""))
            initiate = "keys" in name and src < dst  # a long frame too
            assert (short, received, mark) == (messages + initiate, sent, "✗")
            assert f"{src} -> {dst}" in complaints
