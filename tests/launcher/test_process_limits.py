"""Limits on processes and threads are found wherever they are set, and told before anything starts."""

import os
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sheafgossip.launcher.config.sections import ConfigError
from sheafgossip.launcher.prepare import memory
from sheafgossip.launcher.prepare.memory import Allowance, Need, allowances, check_resources

LARGE = Need(memory=1e6, seconds=10, files=340, clients=1000)
NOBODY = 54321  # who has no other process


def machine(folder: Path, groups: str, limits: dict[str, tuple[str, int]]) -> list[Allowance]:
    """What is found where /proc/self/cgroup says this, and these folders of /sys/fs/cgroup have limits."""
    (folder / "self").mkdir()
    (folder / "self/cgroup").write_text(groups)
    for name, (most, used) in limits.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "pids.max").write_text(f"{most}\n")
        (folder / name / "pids.current").write_text(f"{used}\n")
    return [each for each in allowances(folder, folder / "cgroup") if "pids.max" in each.where]


def test_limits_of_control_groups_of_version_2_are_found_up_to_the_root(tmp_path):
    limits = {"cgroup/a/b": ("max", 3), "cgroup/a": ("500", 20), "cgroup": ("max", 90), "cgroup/a/c": ("1", 1)}
    (found,) = machine(tmp_path, "0::/a/b\n", limits)
    assert (found.most, found.used, found.free) == (500, 20, 480)
    assert found.where == f"{tmp_path}/cgroup/a/pids.max is 500"


def test_limits_of_version_1_are_found_beside_version_2(tmp_path):
    groups = "8:cpu,cpuacct:/x\n7:pids:/docker/abc\n0::/y\n"
    limits = {"cgroup/pids/docker/abc": ("64", 10), "cgroup/unified/y": ("100", 5), "cgroup/cpu/x": ("1", 1)}
    assert [each.most for each in machine(tmp_path, groups, limits)] == [64, 100]


def test_a_container_that_does_not_see_its_name_has_its_limit_at_the_root(tmp_path):
    assert [each.most for each in machine(tmp_path, "0::/docker/abc\n", {"cgroup": ("64", 10)})] == [64]


def test_a_system_without_control_groups_has_no_such_limits(tmp_path):
    assert machine(tmp_path, "", {}) == []


def test_a_run_of_more_processes_than_are_allowed_is_refused_even_by_force(monkeypatch):
    monkeypatch.setattr(
        memory, "allowances", lambda: [Allowance(9000, 10, "wide"), Allowance(500, 20, "ulimit -u 500")]
    )
    text = (
        r"^1000 clients need about 3033 processes and threads, and 480 more are allowed here "
        r"\(ulimit -u 500, 20 are in use\); raise that, or use at most 149 clients$"
    )
    with pytest.raises(ConfigError, match=text):
        check_resources([LARGE], force=True)
    monkeypatch.setattr(memory, "allowances", lambda: [Allowance(3053, 20, "ulimit -u 3053")])
    check_resources([LARGE], force=False)


def as_nobody(limit: int, *command: str) -> subprocess.CompletedProcess[str]:
    """A command of a user who may have so many processes and threads, in a folder of theirs."""

    def become_nobody() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
        os.setgid(NOBODY)
        os.setuid(NOBODY)

    folder = tempfile.mkdtemp()  # pytest's own are for their owner only
    try:
        os.chown(folder, NOBODY, NOBODY)
        return subprocess.run(
            [sys.executable, *command],
            preexec_fn=become_nobody,
            cwd=folder,
            env=os.environ | {"HOME": folder, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        shutil.rmtree(folder)


def may_be_anybody() -> bool:
    """Whether this test may become another user, who can read this program."""
    places = Path(sys.executable).absolute(), Path(sys.executable).resolve(), Path(__file__).resolve()
    readable = all(folder.stat().st_mode & stat.S_IXOTH for place in places for folder in place.parents)
    return os.getuid() == 0 and readable and as_nobody(100, "-c", "pass").returncode == 0


needs_nobody = pytest.mark.skipif(not may_be_anybody(), reason="no limit holds for root, and only root can be another")


@needs_nobody
def test_a_run_under_a_limit_of_its_user_is_refused_in_one_line():
    program = "from pathlib import Path; Path('c.toml').write_text('clients = 40\\nrounds = 1\\n')\n"
    program += "import sys; sys.argv[1:] = ['run', 'c.toml', '--out', 'r']\n"
    program += "from sheafgossip.launcher.entry import main; main()"
    ended = as_nobody(100, "-c", program)
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("error: 40 clients need about 153 processes and threads, and ")
    assert len(ended.stderr.splitlines()) == 1


@needs_nobody
@pytest.mark.parametrize("limit", [30, 90])
def test_clients_for_whom_there_is_no_process_or_no_thread_end_the_run_in_a_line_each(limit):
    """Where others have taken what was free when the run was checked."""
    program = "from pathlib import Path; Path('c.toml').write_text('clients = 40\\nrounds = 1\\n')\n"
    program += "import sys; sys.argv[1:] = ['run', 'c.toml', '--out', 'r', '-q']\n"
    program += "from sheafgossip.launcher.prepare import memory; memory.allowances = lambda: []\n"
    program += "from sheafgossip.launcher.entry import main; main()"
    ended = as_nobody(limit, "-c", program)
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "error: client" in ended.stderr
    assert "Resource temporarily unavailable" in ended.stderr
    assert "ulimit -u" in ended.stderr
