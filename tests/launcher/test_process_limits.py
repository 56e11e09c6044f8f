"""Limits on processes and threads are found wherever they are set, and told before anything starts."""

import os
import resource
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sheafgossip.launcher import ONE_THREAD
from sheafgossip.launcher.config.sections import ConfigError
from sheafgossip.launcher.prepare import memory
from sheafgossip.launcher.prepare.memory import Need, allowances, check_resources

LARGE = Need(memory=1e6, seconds=10, files=340, clients=1000)
NOBODY = 54321  # who has no other process


@pytest.mark.parametrize(
    ("groups", "limits", "found"),
    [
        (
            "0::/a/b\n",
            {"cgroup/a/b": ("max", 3), "cgroup/a": ("500", 20), "cgroup": ("max", 90), "cgroup/a/c": ("1", 1)},
            {"cgroup/a/pids.max": (500, 20)},
        ),
        (
            "8:cpu,cpuacct:/x\n7:pids:/docker/abc\n0::/y\n",
            {"cgroup/pids/docker/abc": ("64", 10), "cgroup/unified/y": ("100", 5), "cgroup/cpu/x": ("1", 1)},
            {"cgroup/pids/docker/abc/pids.max": (64, 10), "cgroup/unified/y/pids.max": (100, 5)},
        ),
        ("0::/docker/abc\n", {"cgroup": ("64", 80)}, {"cgroup/pids.max": (64, 80)}),
        ("", {}, {}),
    ],
    ids=["version 2", "version 1 beside it", "in a container that does not see its name", "none"],
)
def test_limits_of_control_groups_are_found_up_to_the_root(tmp_path, groups, limits, found):
    """``groups`` is what /proc/self/cgroup says, ``limits`` are those of folders of /sys/fs/cgroup."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(groups)
    for name, (most, used) in limits.items():
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "pids.max").write_text(f"{most}\n")
        (tmp_path / name / "pids.current").write_text(f"{used}\n")
    told = [each for each in allowances(tmp_path, tmp_path / "cgroup") if "pids.max" in each[2]]
    assert told == [(most, used, f"{tmp_path}/{name} is {most}") for name, (most, used) in found.items()]


def test_a_run_of_more_processes_than_are_allowed_is_refused_even_by_force(monkeypatch):
    monkeypatch.setattr(memory, "allowances", lambda: [(9000, 10, "wide"), (500, 20, "ulimit -u 500")])
    text = (
        r"^1000 clients need about 3033 processes and threads, and 480 more are allowed here "
        r"\(ulimit -u 500, 20 are in use\); raise that, or use at most 149 clients$"
    )
    with pytest.raises(ConfigError, match=text):
        check_resources([LARGE], force=True)
    monkeypatch.setattr(memory, "allowances", lambda: [(3053, 20, "ulimit -u 3053")])
    check_resources([LARGE], force=False)


def as_nobody(limit: int, program: str) -> subprocess.CompletedProcess[str]:
    """A program of a user who may have so many processes and threads, in a folder of theirs."""

    def become_nobody() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
        os.setgid(NOBODY)
        os.setuid(NOBODY)

    with tempfile.TemporaryDirectory() as folder:  # pytest's own are for their owner only
        os.chown(folder, NOBODY, NOBODY)
        options = {"cwd": folder, "env": os.environ | ONE_THREAD | {"HOME": folder}, "preexec_fn": become_nobody}
        words = [sys.executable, "-c", program]
        return subprocess.run(words, **options, capture_output=True, text=True, timeout=60)


def may_be_anybody() -> bool:
    """Whether this test may become another user, who can read this program."""
    places = Path(sys.executable).absolute(), Path(sys.executable).resolve(), Path(__file__).resolve()
    readable = all(folder.stat().st_mode & stat.S_IXOTH for place in places for folder in place.parents)
    return os.getuid() == 0 and readable and as_nobody(100, "pass").returncode == 0


needs_nobody = pytest.mark.skipif(not may_be_anybody(), reason="no limit holds for root, and only root can be another")


PROGRAM = """
import sys
from pathlib import Path
from sheafgossip.launcher.entry import main
Path("c.toml").write_text("clients = 40\\nrounds = 1\\n")
sys.argv[1:] = ["run", "c.toml", "--out", "r", "-q"]
"""


@needs_nobody
def test_a_run_under_a_limit_of_its_user_is_refused_in_one_line():
    ended = as_nobody(100, f"{PROGRAM}main()")
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("error: 40 clients need about 153 processes and threads, and ")
    assert len(ended.stderr.splitlines()) == 1


@needs_nobody
@pytest.mark.parametrize("limit", [30, 90])
def test_clients_for_whom_there_is_no_process_or_no_thread_end_the_run_in_a_line_each(limit):
    """Where others have taken what was free when the run was checked."""
    unchecked = "from sheafgossip.launcher.prepare import memory; memory.allowances = lambda: []\n"
    ended = as_nobody(limit, f"{PROGRAM}{unchecked}main()")
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    for said in ("error: client", "Resource temporarily unavailable", "ulimit -u"):
        assert said in ended.stderr
