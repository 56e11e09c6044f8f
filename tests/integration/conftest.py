"""For tests that need a network of their own."""

import shutil
import subprocess

import pytest


@pytest.fixture(scope="module")
def isolated() -> list[str]:
    """The words before a command that give it a network of its own."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("no unshare or no ip command here")
    reasons = []
    for options in (["--net"], ["--user", "--map-root-user", "--net"]):
        words = ["unshare", *options]
        tried = subprocess.run([*words, "ip", "link", "set", "lo", "up"], capture_output=True, text=True)
        if tried.returncode == 0:
            return words
        reasons.append(tried.stderr.strip())
    pytest.skip(f"no network namespaces here: {'; '.join(reasons)}")
