"""For tests that need a network of their own."""

import contextlib
import subprocess

import pytest


@pytest.fixture(scope="module")
def isolated() -> list[str]:
    """The words before a command that give it a network of its own."""
    for options in (["--net"], ["--user", "--map-root-user", "--net"]):
        words = ["unshare", *options]
        with contextlib.suppress(OSError):
            if subprocess.run([*words, "ip", "link", "set", "lo", "up"], capture_output=True).returncode == 0:
                return words
    pytest.skip("no network namespaces here")
