"""Runs over tcp on a machine whose network does not carry them: one line, and the exit code says whether any began."""

import subprocess

import pytest

from runs import CLI, small


@pytest.fixture
def errors(tmp_path):
    """(exit code, error lines) of a run; ``first`` is a shell command before it, ``isolated`` what goes before both."""

    def errors(*options, isolated=(), first="true") -> tuple[int, list[str]]:
        (tmp_path / "config.toml").write_text(small('transport.protocol = "tcp"', clients=8, topology="complete"))
        command = [*isolated, "sh", "-c", f'{first} && exec "$@"', "sh", *CLI, "run", tmp_path / "config.toml"]
        command += ["--out", tmp_path / "run", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert (tmp_path / "run").exists() == (done.returncode != 2)
        return done.returncode, done.stderr.strip().splitlines()

    return errors


def test_a_loopback_interface_that_is_down_is_told(errors, isolated):
    code, [line] = errors(isolated=isolated)
    assert code == 2
    assert "transport.host = '127.0.0.1': the loopback interface is down" in line
    assert "'ipc'" in line


def test_too_few_ports_are_told_before_the_start(errors, isolated):
    few = "ip link set lo up && echo {} > /proc/sys/net/ipv4/ip_local_port_range"
    code, [line] = errors(isolated=isolated, first=few.format("40000 40013"))
    assert code == 2
    assert "8 processes need 15 ports, and this system gives out 14 (40000 to 40013)" in line
    assert errors("--quiet", isolated=isolated, first=few.format("40000 40014")) == (0, [])


def test_a_timeout_in_which_nobody_can_be_met_is_told_once(errors):
    code, lines = errors("--set", "transport.timeout=0.0001")
    assert code == 1
    [line] = [line for line in lines if "error" in line or "Traceback" in line]
    assert "failed in start-up: no connection to client " in line
    assert line.endswith("within transport.timeout = 0.0001 s")
