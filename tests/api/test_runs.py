"""What the commands do, from Python."""

import os
import signal
import threading

import numpy as np
import pytest

import sheafgossip as sg
from runs import until
from sheafgossip.given import table_of
from sheafgossip.launcher.config.files import load
from sheafgossip.node.algorithms.gossip import DPSGD
from sheafgossip.node.algorithms.sheaf_fmtl import DFedU, SheafFMTL
from sheafgossip.node.edges import EdgesTable

CONFIG = {"clients": 4, "rounds": 3, "data": {"samples": 120}, "algorithm.name": "d-psgd"}


def test_a_configuration_is_a_path_or_tables_which_are_not_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('clients = 4\nrounds = 3\ndata.samples = 120\nalgorithm.name = "d-psgd"\n')
    tables = {**CONFIG, "data": dict(CONFIG["data"])}
    runs = [sg.run(tables, {"seed": 2}, out=tmp_path / "tables", quiet=True)]
    assert tables == CONFIG
    runs.append(sg.run(tmp_path / "mine.toml", {"seed": 2}, out=tmp_path / "file", quiet=True))
    runs.append(sg.run(sg.open_run(tmp_path / "file").config, out=tmp_path / "config", quiet=True))
    runs.append(sg.run(runs[0].config, quiet=True))
    assert runs[-1].folder.name == "run"
    assert len({run.theta(3)[0].tobytes() for run in runs}) == 1
    assert {run.config["seed"] for run in runs} == {2}


@pytest.fixture
def heeds_ctrl_c():
    """What is started in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_run_is_read_while_it_goes_on_and_ctrl_c_stops_it(heeds_ctrl_c, tmp_path):
    folder = tmp_path / "run"

    def interrupt():
        try:
            until((folder / "state" / "round-000010").exists)
            seen.append(sg.open_run(folder).summary.status)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    seen, handler, watcher = [], signal.getsignal(signal.SIGINT), threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        sg.run(CONFIG, {"rounds": 1_000_000, "checkpoints.every": 10}, out=folder, quiet=True)
    watcher.join()
    assert seen == ["running"]
    assert signal.getsignal(signal.SIGINT) is handler
    assert sg.open_run(folder).summary.status == "interrupted"
    page = sg.open_run(folder).report()
    assert "<iframe" in page._repr_html_()


def test_runs_may_go_on_in_threads(tmp_path, capsys):
    def make(number):
        found[number] = sg.run(CONFIG, {"seed": number}, out=tmp_path / f"{number}").summary.rounds

    found: dict[int, int] = {}
    threads = [threading.Thread(target=make, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: 3, 1: 3}
    assert "finished after" in capsys.readouterr().err


def test_a_plan_is_told_before_anything_runs():
    plan = sg.plan(CONFIG, {"compute.step_s": 1.0, "compute.slowdown": [1.0, 2.0]})
    assert plan.end_s == 6.0
    assert "most local work                     client 1 (6.000 s)" in repr(plan)


def test_a_sweep_goes_on_where_it_was_and_has_a_table(tmp_path):
    grid = {"training.alpha": [0.1, 0.5]}
    first = sg.sweep(CONFIG, grid, out=tmp_path / "sweep", quiet=True)
    assert len(first.runs) == 2
    sweep = sg.sweep(CONFIG, grid, seeds=2, jobs=2, out=tmp_path / "sweep", quiet=True)
    assert sweep.table["training.alpha"].tolist() == [0.1, 0.5]
    assert sweep.table.runs.tolist() == [2, 2]
    assert sorted(sweep.rounds.groupby(["training.alpha", "seed"]).size()) == [16] * 4
    assert "alpha-0.5 (2 seeds)" in str(sg.compare(sweep.runs))
    with pytest.raises(sg.RunError, match="is not finite") as failed:
        sg.sweep({**CONFIG, "rounds": 4000}, {"training.alpha": [1e38]}, out=tmp_path / "wild", quiet=True)
    assert len(failed.value.run.runs) == 1


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: sg.run({**CONFIG, "rounds": "three"}), "rounds = 'three': must be a valid integer"),
        (lambda: sg.run(CONFIG, {"training.aplha": 1.0}), r"training.aplha: unknown key \(did you mean alpha\?\)"),
        (lambda: sg.run(CONFIG, {"topology..p": 1.0}), "a part of the key is missing"),
        (lambda: sg.run("nowhere.toml"), "nowhere.toml: cannot be read"),
        (lambda: sg.plan(CONFIG), "plan: needs one run, with one of"),
        (lambda: sg.run(["mine.toml"]), "a configuration is the path of a file, a dict, or a sheafgossip.Config"),
        (lambda: sg.run({3: 4}), "configuration: must be a dict of keys"),
        (lambda: sg.run(sg.Config(clients="three")), "clients = 'three': must be a valid integer"),
        (lambda: sg.run(CONFIG, [("training.alpha", 1.0)]), "changes: must be a dict of keys"),
        (lambda: sg.run({"data.samples": 9, "data": {"samples": 9}}), "data: is given twice"),
        (
            lambda: sg.run(CONFIG, {"compute.slowdown": np.zeros(2)}),
            "slowdown.0 = 0.0: must be greater than 0",
        ),
        (lambda: sg.run(CONFIG, engine="thread"), "--engine thread: allowed are local, threads, ray"),
        (lambda: sg.run(CONFIG, algorithm=sg.Algorithm), r"algorithm = .*: give an object, such as Algorithm\(\)"),
        (lambda: sg.run(CONFIG, algorithm="d-psgd"), "built-in ones are chosen by their names: "),
        (
            lambda: sg.run(CONFIG, {"algorithm.lam": 1}, algorithm=DPSGD()),
            "lam: the algorithm is given as an object",
        ),
        (lambda: sg.run(CONFIG, model=lambda shape, outputs: None), "<lambda>: is a lambda, where no client finds it"),
        (lambda: sg.run(CONFIG, {"model.use": "a.py:b"}, model=print), "model.use: model is given as a function, too"),
        (lambda: sg.run(CONFIG, data=(np.ones(3), np.ones(3))), "data = .*: give a function that returns it"),
        (lambda: sg.sweep(CONFIG, {"training.alpha": 3}), "its values must be a list"),
        (lambda: sg.sweep(CONFIG, {"training.alpha": []}), "its values must be a list of at least one"),
        (lambda: sg.sweep(CONFIG, seeds=0), "seeds = 0: must be a whole number of at least 1"),
        (lambda: sg.open_run("nowhere"), "nowhere"),
        (lambda: sg.resume("nowhere"), "nowhere"),
        (lambda: sg.open_run(None), "None: is neither the path of a folder nor a run"),
        (lambda: sg.compare(["nowhere"]), "nowhere"),
        (lambda: sg.compare(["nowhere"], target="high"), "target = 'high': must be a number"),
        (lambda: sg.resume("nowhere", rounds="5"), "rounds = '5': must be a whole number"),
        (lambda: sg.compare([]), "compare needs a list of runs"),
        (lambda: sg.compare("nowhere"), "compare needs a list of runs"),
        (lambda: sg.verify([0]), "floats = 0: must be whole numbers of at least 1"),
    ],
)
def test_a_mistake_is_the_line_of_the_command(call, told):
    with pytest.raises(sg.Error, match=told):
        call()


def test_an_unknown_argument_is_named():
    with pytest.raises(TypeError, match="'verbose' is no argument; allowed are quiet, engine, address, force, out"):
        sg.run(CONFIG, verbose=True)
    with pytest.raises(TypeError, match="'engine' is no argument; allowed are out, quiet"):
        sg.sweep(CONFIG, engine="threads")


def test_recorded_bytes_are_the_kernels():
    (first, *_) = sg.verify([10])
    assert first.comparison.connections > 0
    assert not first.complaints


def test_a_built_in_algorithm_given_as_an_object_keeps_its_tables(tmp_path):
    given = table_of(SheafFMTL(gamma=0.1, edges=EdgesTable(path=tmp_path / "w.csv")))
    (config,) = load({"algorithm": given})
    assert config.algorithm.edges.path == tmp_path / "w.csv"
    (config,) = load({"algorithm": table_of(DFedU())})
    assert config.algorithm == DFedU()
