import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sheafgossip.launcher import cli

SCRIPT = Path(sys.executable).parent / "sheafgossip"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def sheafgossip(folder, monkeypatch, capsys):
    """Calls the command line in this process; returns exit code, standard output and standard error."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["sheafgossip", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, *capsys.readouterr()

    return call


@pytest.fixture
def config(folder):
    def write(text=""):
        (folder / "run.toml").write_text(text)
        return folder / "run.toml"

    return write


def test_help_names_the_commands():
    result = subprocess.run([SCRIPT, "--help"], capture_output=True, text=True, check=True)
    for command in ("run", "summary", "config", "topology"):
        assert command in result.stdout


def test_the_console_script_ends_with_2_and_one_line_on_a_mistake(config):
    result = subprocess.run([SCRIPT, "config", "show", config("clients = 0")], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: clients = 0: must be greater than or equal to 1\n"


def test_config_show_prints_the_resolved_configuration(sheafgossip, config):
    code, shown, _ = sheafgossip("config", "show", config("rounds = 7"), "--set", "training.alpha=0.5")
    resolved = tomllib.loads(shown)
    assert code == 0
    assert (resolved["rounds"], resolved["training"]["alpha"], resolved["clients"]) == (7, 0.5, 20)


def test_config_schema_prints_the_reference(sheafgossip):
    code, shown, _ = sheafgossip("config", "schema")
    assert code == 0
    assert shown.startswith("# Configuration\n")


def test_topology_show_prints_figures(sheafgossip, config):
    code, shown, _ = sheafgossip("topology", "show", config("clients = 6\ntopology.kind = 'ring'"))
    figures = dict(line.rsplit(maxsplit=1) for line in shown.splitlines())
    assert code == 0
    assert (figures["kind"], figures["clients"], figures["edges"], figures["diameter"]) == ("ring", "6", "6", "3")


def test_topology_show_saves_a_picture(sheafgossip, config, folder):
    code, shown, _ = sheafgossip("topology", "show", config("clients = 6"), "--picture", "graph.svg")
    assert code == 0
    assert "graph.svg" in shown
    assert "<svg" in (folder / "graph.svg").read_text()


@pytest.mark.parametrize("picture", ["graph.txt", "nowhere/graph.png"])
def test_topology_show_refuses_a_picture_that_it_cannot_write(sheafgossip, config, picture):
    code, _, error = sheafgossip("topology", "show", config("clients = 6"), "--picture", picture)
    assert code == 2
    assert picture in error
    assert len(error.splitlines()) == 1


REFUSED = {
    "a key that does not exist": (["rondes=3"], ["rondes: unknown key", "did you mean rounds?"]),
    "a CNN too deep for its images": (
        ["model.kind=cnn", "model.filters=[4, 4, 4]"],
        ["model.filters = [4, 4, 4]", "8x8", "fewer than 2 layers"],
    ),
    "a model of another task": (["model.kind=linear"], ["model.kind = 'linear'", "classification", "'logistic'"]),
    "zeros for a model with hidden layers": (
        ["model.kind=mlp", "model.hidden=[4]", "model.init=zeros"],
        ["model.init = 'zeros'", "'logistic'"],
    ),
    "whole models compared where they differ in size": (
        ["algorithm.name=dfedu", "model.mix=[{kind='mlp', hidden=[4]}]"],
        ["algorithm.name", "'dfedu'", "model.mix"],
    ),
    "more neighbours than there are clients": (
        ["topology.kind=watts-strogatz", "topology.k=6", "clients=6"],
        ["topology.k = 6", "6 clients", "2 to 4"],
    ),
    "a regular graph with too many neighbours": (
        ["topology.kind=random-regular", "topology.k=6", "clients=6"],
        ["topology.k = 6", "1 to 5"],
    ),
    "a torus whose rows do not divide the clients": (
        ["topology.kind=torus", "topology.rows=4", "clients=6"],
        ["topology.rows = 4", "1, 2, 3, 6"],
    ),
    "a graph that is never connected": (["topology.p=0", "clients=6"], ["topology.kind", "connected", "topology.p"]),
    "a graph file that is not there": (
        ["topology.kind=file", "topology.path=edges.txt"],
        ["topology.path", "edges.txt", "No such file"],
    ),
    "a folder of data that is not there": (
        ["data.dataset=mnist", "data.root=nowhere"],
        ["data.root", "nowhere", "train-images-idx3-ubyte"],
    ),
    "npz without its file": (["data.dataset=npz"], ["data.root is missing"]),
    "more samples than there are": (["data.samples=5000"], ["data.samples", "5000", "1797"]),
    "more clients than the data serves": (["clients=1000", "topology.kind=ring"], ["1000 clients", "4000 samples"]),
    "more rotations than clients": (["data.rotations=[0, 90]", "clients=1"], ["data.rotations", "1 to 1"]),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_refused_run_ends_with_2_and_one_clear_line_and_leaves_nothing_behind(sheafgossip, config, folder, mistake):
    overrides, expected = REFUSED[mistake]
    options = [part for override in overrides for part in ("--set", override)]
    code, output, error = sheafgossip("run", config(), *options)
    assert (code, output) == (2, "")
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1
    assert [text for text in expected if text not in error] == []
    assert list(folder.iterdir()) == [folder / "run.toml"]


def test_a_comparison_is_refused_as_a_whole(sheafgossip, config, folder):
    text = "[[compare]]\nname = 'fine'\n[[compare]]\nname = 'not fine'\nmodel.kind = 'linear'"
    code, _, error = sheafgossip("run", config(text))
    assert code == 2
    assert "model.kind = 'linear'" in error
    assert list(folder.iterdir()) == [folder / "run.toml"]


def test_runs_of_a_comparison_need_names_of_their_own(sheafgossip, config, folder):
    code, _, error = sheafgossip("run", config("[[compare]]\nseed = 1\n[[compare]]\nseed = 2"))
    assert code == 2
    assert "name" in error
    assert list(folder.iterdir()) == [folder / "run.toml"]


def test_a_refused_run_leaves_the_empty_folder_it_was_given(sheafgossip, config, folder):
    (folder / "out").mkdir()
    code, _, _ = sheafgossip(
        "run", config(), "--out", "out", "--set", "model.kind=cnn", "--set", "model.filters=[4, 4, 4]"
    )
    assert code == 2
    assert list((folder / "out").iterdir()) == []


def test_a_folder_that_holds_something_is_never_written_to(sheafgossip, config, folder):
    (folder / "out").mkdir()
    (folder / "out" / "thesis.tex").write_text("irreplaceable")
    code, _, error = sheafgossip("run", config(), "--out", "out")
    assert code == 2
    assert "--out out" in error
    assert [path.name for path in (folder / "out").iterdir()] == ["thesis.tex"]


def test_a_file_in_the_way_of_the_run_folder_is_told(sheafgossip, config, folder):
    (folder / "file").write_text("")
    code, _, error = sheafgossip("run", config(), "--out", "file/run")
    assert code == 2
    assert len(error.splitlines()) == 1
    assert "--out" in error


def test_summary_of_what_is_no_run_folder_is_refused(sheafgossip, folder):
    code, _, error = sheafgossip("summary", folder)
    assert code == 2
    assert "not the folder of a run" in error


def test_summary_of_a_folder_that_is_not_there_is_refused(sheafgossip):
    code, _, error = sheafgossip("summary", "nowhere")
    assert code == 2
    assert "nowhere" in error


@pytest.mark.parametrize("arguments", [["run"], ["run", "a.toml", "--fast"], ["walk"]])
def test_a_command_line_that_cannot_be_understood_ends_with_2(sheafgossip, arguments):
    assert sheafgossip(*arguments)[0] == 2
