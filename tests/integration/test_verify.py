"""``sheafgossip verify`` with real processes: when it agrees, and that it notices when a byte is missing."""

import os
import subprocess

import pytest

from runs import command
from sheafgossip.transport.kernel import counts_bytes

pytestmark = pytest.mark.skipif(not counts_bytes(), reason="this kernel does not count the bytes of TCP connections")

CONNECTIONS = 8 * 4 // 2


def verify(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return command("verify", *options, code=None, timeout=170, env=os.environ | environment)


def lines_of(shown: str, case: str) -> list[str]:
    return [line for line in shown.splitlines() if line.strip().startswith(case)]


def test_short_and_long_vectors_in_both_exchanges_agree_to_the_byte(tmp_path):
    done = verify("--out", str(tmp_path / "runs"), COLUMNS="120")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"all {2 * 6 * CONNECTIONS} connections agree to the byte" in done.stdout
    for length in ("10", "1,000", "100,000"):
        for exchange in ("two-phase", "fused"):
            plain, keyed = lines_of(done.stdout, f"{length} floats, {exchange}")
            for line in (plain, keyed.replace(", keys", "")):
                connections, recorded, sent, received, over_ipc = line.split()[3:]
                assert (connections, over_ipc) == (str(CONNECTIONS), "yes")
                assert recorded == sent == received
            assert ", keys" in keyed
    assert len(list((tmp_path / "runs").iterdir())) == 18


def test_every_connection_is_shown_on_demand(tmp_path):
    done = verify("--floats", "10", "--all", COLUMNS="120", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    both_ways = [line.split() for line in lines_of(done.stdout, "10 floats, fused") if "->" in line]
    assert len(both_ways) == 2 * 2 * CONNECTIONS
    assert all(line[-3] == line[-2] == line[-1] for line in both_ways)
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


@pytest.fixture
def miscounting(tmp_path) -> str:
    """A PYTHONPATH with which every process takes long frames to be one byte shorter than they are."""
    (tmp_path / "sitecustomize.py").write_text(
        "from sheafgossip.transport import wire\n"
        "wire.frame_bytes = lambda length: length + 2 if length <= 255 else length + 8\n"
    )
    return os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])


def test_one_byte_missing_in_the_formula_is_noticed_and_the_connections_are_named(miscounting):
    done = verify("--floats", "1000", COLUMNS="120", PYTHONPATH=miscounting)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "agree to the byte" not in done.stdout
    for exchange, messages in (("two-phase", 6), ("fused", 3)):
        case = f"1,000 floats, {exchange}"
        ways = [line.split() for line in lines_of(done.stdout, case) if "->" in line]
        assert len(ways) == 2 * 2 * CONNECTIONS
        for *name, src, _, dst, recorded, sent, received, mark in ways:
            short = int(sent.replace(",", "")) - int(recorded.replace(",", ""))
            initiate = "keys" in name and src < dst  # a long frame too
            assert (short, received, mark) == (messages + initiate, sent, "✗")
            assert f"{src} -> {dst}" in next(
                line for line in done.stderr.splitlines() if line.startswith(f"error: {case}: ")
            )
