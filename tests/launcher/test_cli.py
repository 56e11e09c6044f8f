import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from unittest.mock import Mock

import pytest

from foreign import sheafgossip
from made import done, event, node, write
from sheafgossip.launcher.commands import runs
from sheafgossip.launcher.commands.outcomes import show_runs, tell
from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.run.journal import Outcome
from sheafgossip.launcher.studies.runner import Finished
from sheafgossip.metrics.records import LAUNCHER, TrafficRecord
from sheafgossip.metrics.store import RunFolderError

SCENARIO = "clients = 6\nrounds = 5\ntopology.kind = 'ring'\ntime.clock = 'virtual'\ncompute.step_s = 0.5\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def config(folder):
    def write(text=""):
        (folder / "run.toml").write_text(text)
        return folder / "run.toml"

    return write


@pytest.mark.parametrize(
    ("words", "columns", "expected"),
    [
        ("", 80, "Decentralized federated learning in which every client is a real process."),
        ("run", 60, "Override a key, e.g. --set algorithm.gamma=0.03."),
        ("encoder train", 60, "Train an encoder on the images of [data], and save it for algorithm.encoder of FLT."),
        ("reproduce", 60, "Our figures are printed beside those of the paper."),
    ],
)
def test_help_keeps_every_word_at_any_width(monkeypatch, words, columns, expected):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, shown, _ = sheafgossip(*words.split(), "--help")
    assert (code, expected in " ".join(shown.split())) == (0, True)
    assert words or not any(line.endswith("...") for line in shown.splitlines()[1:])
    assert max(map(len, shown.partition("Example:")[0].splitlines())) <= columns  # an example stays one line, to copy


def test_the_version_is_told():
    assert sheafgossip("--version") == (0, f"sheafgossip {version('sheafgossip')}\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete_commands_and_options(shell):
    environment = {"_SHEAFGOSSIP_COMPLETE": f"complete_{shell}", "COMP_CWORD": "1", "COMP_WORDS": "sheafgossip su"}
    environment |= {"_TYPER_COMPLETE_ARGS": "sheafgossip su", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    script = Path(sys.executable).parent / "sheafgossip"
    shown = subprocess.run([script], capture_output=True, text=True, env=os.environ | environment).stdout
    assert "summary" in shown
    assert "sweep" not in shown


def test_config_show_prints_the_resolved_configuration(config):
    code, shown, _ = sheafgossip("config", "show", config("rounds = 7"), "--set", "training.alpha=0.5")
    resolved = tomllib.loads(shown)
    assert (code, resolved["rounds"], resolved["training"]["alpha"], resolved["clients"]) == (0, 7, 0.5, 20)


@pytest.fixture
def no_processes(monkeypatch):
    monkeypatch.delattr("sheafgossip.launcher.commands.runs.open_engine")


def test_plan_shows_figures_and_timeline_and_leaves_nothing_behind(config, folder, no_processes):
    code, shown, error = sheafgossip("plan", config(SCENARIO), "--lines", "4")
    assert (code, error) == (0, "")
    assert re.search(r"^total time +2\.500 s$", shown, re.MULTILINE)
    assert re.search(r"^messages sent +120: lost 0, never used 0$", shown, re.MULTILINE)
    assert len(re.findall(r"^\d █+$", shown, re.MULTILINE)) == 4
    assert re.search(r"^\d+ clients need about [\d.]+ GB of memory and .* on this machine$", shown, re.MULTILINE)
    assert all(len(line) <= 100 for line in shown.splitlines())
    assert list(folder.iterdir()) == [folder / "run.toml"]


def test_plan_shows_each_run_of_a_comparison_and_draws_those_with_a_scenario(config, folder, no_processes):
    compare = "[[compare]]\nname = 'One by one'\ncompute.step_s = 0.5\n[[compare]]\nname = 'plain'\n"
    code, shown, _ = sheafgossip("plan", config("clients = 4\nrounds = 2\n" + compare), "--picture", "plan.svg")
    assert code == 0
    assert "== One by one ==\na local step takes 0.5 s" in shown
    assert "== plain ==\nno scenario" in shown
    assert sorted(path.name for path in folder.glob("*.svg")) == ["plan-one-by-one.svg"]


def test_the_demo_names_the_next_thing_to_look_at(folder, monkeypatch, capsys):
    monkeypatch.setattr(runs, "load", lambda file, overrides: load(file, ["rounds=1"])[:1])
    monkeypatch.setattr(sys, "argv", [str(folder / "bin" / "sheafgossip"), "demo"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert runs.demo(Path("demo"), quiet=True, plain=True) == 0
    *_, where, then = capsys.readouterr().out.splitlines()
    assert where == "run folder: demo"
    assert then == "next, all of it as a page for your browser: bin/sheafgossip report demo"


def test_topology_show_prints_figures_periods_and_arcs_and_saves_a_picture(config, folder):
    words = "topology", "show", config("clients = 6\ntopology.kind = 'ring'"), "--picture", "graph.svg"
    code, shown, _ = sheafgossip(*words)
    figures = dict(line.rsplit(maxsplit=1) for line in shown.splitlines())
    expected = {"kind": "ring", "clients": "6", "edges": "6", "diameter": "3", "picture": "graph.svg"}
    assert (code, figures | expected) == (0, figures)
    assert "<svg" in (folder / "graph.svg").read_text()
    _, shown, _ = sheafgossip("topology", "show", config("clients = 6\ntopology.kind = 'one-peer-exponential'"))
    assert re.search(r"^strongly connected +all periods together$", shown, re.MULTILINE)


def test_a_refused_run_leaves_the_empty_folder_it_was_given(config, folder):
    (folder / "out").mkdir()
    too_deep = "--set", "model.kind=cnn", "--set", "model.filters=[4, 4, 4]"
    assert sheafgossip("run", config(), "--out", "out", *too_deep)[0] == 2
    assert list((folder / "out").iterdir()) == []


@pytest.fixture
def finished(folder):
    """Writes the folder of a small finished run."""

    def finish(name, accuracy, config="seed = 0\nalgorithm.name = 'dfedu'"):
        path = folder / name
        path.mkdir(parents=True)
        (path / "config.toml").write_text(config)
        records = [event(LAUNCHER, "finish", 2.0)]
        for client in (0, 1):
            traffic = TrafficRecord(client, 1 - client, 1, 1, 500_000, 0, 700_000)
            records += [node(client), done(client, 1, accuracy, 2.0), traffic]
        return write(path, *records, metric="accuracy")

    return finish


@pytest.fixture
def seeds(finished):
    """The folder of two runs that differ in their seed."""
    for seed, accuracy in ((1, 0.7), (2, 0.9)):
        path = finished(f"runs/seed-{seed}", accuracy, f"seed = {seed}\nalgorithm.name = 'dfedu'")
    return path.parent


def test_a_table_is_as_wide_as_the_terminal_and_in_a_file_as_it_needs(folder, finished, monkeypatch):
    monkeypatch.setattr(sys, "__stdout__", (folder / "file").open("w"))
    monkeypatch.delenv("COLUMNS", raising=False)
    finished("long", 0.7)
    finished("other", 0.9, f"name = '{'a name ' * 20}'\nalgorithm.name = 'local'")
    _, in_a_file, _ = sheafgossip("summary", "long", "other")
    monkeypatch.setenv("COLUMNS", "60")
    _, in_a_terminal, _ = sheafgossip("summary", "long", "other")
    assert max(map(len, in_a_terminal.splitlines())) <= 60
    assert all(word in in_a_file for word in ("a name " * 20, "long", "accuracy", "wall"))


def test_summary_tells_what_a_target_took_means_over_seeds_and_as_json_nothing_but_json(seeds):
    expected = {"rounds": "1", "payload": "1.00", "wire": "1.40", "wall": "2.0"}
    _, shown, _ = sheafgossip("summary", seeds / "seed-1", "--target", "0.65")
    assert dict(re.findall(r"│ (\w+).* to reach 65 %.*? │ +(\S+) │", shown)) == expected
    _, shown, _ = sheafgossip("summary", seeds)
    assert re.search(r"dfedu \(2 seeds\).*80\.0 ± 10\.0", shown)
    code, shown, error = sheafgossip("summary", seeds, "--json", "--target", "0.8")
    told = json.loads(shown)
    assert (code, error) == (0, "")
    assert [(run["seed"], run["final"]["mean"]) for run in told["runs"]] == [(1, 0.7), (2, 0.9)]
    assert [run["reached"] and run["reached"]["round"] for run in told["runs"]] == [None, 1]
    assert [group["mean"]["test_metric"] for group in told["seeds"]] == [pytest.approx(0.8)]


def test_compare_and_export_write_files(folder, finished, seeds):
    finished("other", 0.3, "algorithm.name = 'local'")
    code, shown, _ = sheafgossip("compare", seeds, "other", "--target", "0.65", "--csv", "table.csv")
    assert code == 0
    assert re.search(r"algorithm\.name +dfedu +local", shown)
    assert re.search(r"accuracy % ± s\.e\. +80\.0 ± 10\.0 \* +30\.0 ± 0\.0", shown)
    assert re.search(r"wire MB to 65 % +1\.40 +–", shown)
    assert (folder / "table.csv").read_text().startswith("algorithm.name,run,")
    code, shown, _ = sheafgossip("export", "other", "--to", "csv", "--out", "tables")
    assert (code, shown.endswith("files in tables\n")) == (0, True)
    assert (folder / "tables" / "traffic.csv").is_file()


def test_verify_says_so_where_the_kernel_counts_nothing(monkeypatch):
    monkeypatch.setattr("sheafgossip.launcher.commands.verify.counts_bytes", lambda: False)
    said = "error: verify: the kernel of this system does not count the bytes of TCP connections; use Linux\n"
    assert sheafgossip("verify") == (2, "", said)


def test_what_several_runs_have_to_tell_is_told_once_with_their_names(tmp_path, capsys):
    ended = []
    for number in range(5):
        (folder := tmp_path / f"{number}").mkdir()
        write(folder, node(1), event(1, "crash"), *[event(1, "restart")] * (number == 4))
        failed = Outcome("failure", ("client 1 died",)) if number < 2 else Outcome("finish")
        ended.append((folder, failed, f"run {number}"))
    assert tell(ended) == 1
    assert capsys.readouterr().err.splitlines() == [
        "run 0, run 1, run 2 and 1 more: scenario: 1 crash",
        "error: run 0, run 1: client 1 died",
        "run 4: scenario: 1 crash, 1 restart",
    ]
    assert tell([(*ended[0][:2], "")]) == 1
    assert capsys.readouterr().err == "scenario: 1 crash\nerror: client 1 died\n"


def test_why_a_run_failed_is_told_though_its_records_cannot_be_read(folder, capsys):
    """On a full disk the two come together."""
    (folder / "run.sqlite").write_bytes(b"no database")
    failed = Finished(Mock(folder=folder), Outcome("failure", ("the disk is full",)))
    assert show_runs([folder], [failed], folder) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "error: the disk is full"
    assert said[1].startswith(f"error: {folder / 'run.sqlite'}: cannot be read as the database of a run: ")
    with pytest.raises(RunFolderError):
        show_runs([folder], [Finished(Mock(folder=folder), Outcome("finish"))], folder)
