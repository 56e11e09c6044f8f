"""What people write wrong: each is one line that says what is wrong, ends with 2, and leaves nothing behind."""

import shlex
from pathlib import Path

import pytest

import bad_inputs
from foreign import sheafgossip
from sheafgossip.launcher.prepare.assignments import Host
from sheafgossip.launcher.processes.engine import Engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With every file that the list speaks of, and a folder for what a run may write."""
    folder = tmp_path_factory.mktemp("inputs")
    bad_inputs.write(folder)
    return folder


class NoProcesses(Engine):
    """All that is asked of an engine before a run starts."""

    def __init__(self, sockets: Path):
        self.sockets = sockets

    def hosts(self):
        return (Host("this-host", cores=2),)

    def time_a_step(self, assignment, steps):
        return 0.001

    def __exit__(self, *reason):
        (self.sockets / "0").rmdir() if (self.sockets / "0").exists() else None


NoProcesses.__abstractmethods__ = frozenset()  # a process is never asked for


@pytest.fixture(autouse=True)
def no_processes(monkeypatch, tmp_path, folder):
    monkeypatch.chdir(folder)
    for module in ("studies.runner", "commands.plan"):
        monkeypatch.setattr(f"sheafgossip.launcher.{module}.open_engine", lambda *_: NoProcesses(tmp_path))
    for begun in ("studies.runner.Run", "commands.runs.run_in_jobs"):
        monkeypatch.setattr(f"sheafgossip.launcher.{begun}", lambda *_, **__: pytest.fail("a run was begun"))


def files_of(folder: Path) -> dict[str, int]:
    """Their sizes, and folders."""
    return {str(path): path.stat().st_size if path.is_file() else -1 for path in folder.rglob("*")}


@pytest.mark.parametrize(("line", "said"), list(bad_inputs.cases()), ids=lambda text: text)
def test_a_bad_input_is_one_line_and_2_and_leaves_nothing_behind(folder, line, said):
    before = files_of(folder)
    code, out, err = sheafgossip(*shlex.split(line))
    assert (code, out) == (2, "")
    assert err.replace(str(folder), "@").startswith(f"error: {said}")
    assert err.count("\n") == 1
    assert files_of(folder) == before
