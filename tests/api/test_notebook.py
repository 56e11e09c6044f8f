"""Runs in a notebook. test_packaging.py executes docs/tour.ipynb."""

import re
import sys
import types

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

import sheafgossip as sg

CONFIG = {"clients": 3, "rounds": 4, "data": {"samples": 90}, "algorithm.name": "d-psgd"}


def test_a_mistake_in_a_cell_is_its_line_and_an_interrupt_stops_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        nbformat.v4.new_code_cell("import os, signal, threading, sheafgossip as sg"),
        nbformat.v4.new_code_cell(
            "threading.Thread(target=lambda: [__import__('time').sleep(0.1) for _ in iter(lambda: "
            "os.path.exists('run/state/round-000010'), True)] and os.kill(os.getpid(), signal.SIGINT)).start()\n"
            "try:\n    sg.run({'rounds': 100000, 'clients': 4, 'checkpoints.every': 10}, out='run', quiet=True)\n"
            "except KeyboardInterrupt:\n    print('interrupted', sg.open_run('run').summary.status)"
        ),
        nbformat.v4.new_code_cell("sg.run({'clients': 0})"),
    ]
    with pytest.raises(CellExecutionError, match=r"clients = 0: must be greater than or equal to 1"):
        NotebookClient(notebook, timeout=150, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert notebook.cells[1].outputs[0].text == "interrupted interrupted\n"


@pytest.fixture
def cells(monkeypatch):
    """What a notebook's cells show, one list of texts for each output; its kernel is as far as IPython's protocol."""
    outputs = []

    class Handle:
        def __init__(self, texts):
            self.update = texts.append

    def display(text, display_id):
        assert display_id is True
        outputs.append([text])
        return Handle(outputs[-1])

    ipython, shown = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    shown.display, shown.HTML = display, lambda text: text
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    return outputs


def points_of(text):
    return [line.split() for line in re.findall(r'<polyline points="([^"]*)"', text)]


def test_a_live_run_draws_in_one_place_a_curve_of_every_evaluated_round_and_shows_itself_as_table_and_curve(
    cells, tmp_path, capfd
):
    run = sg.run(CONFIG, live=True, quiet=True, engine="threads", out=tmp_path / "run")
    (texts,) = cells
    assert "finished after" in texts[-1]
    (points,) = points_of(texts[-1])
    means = run.round_total.mean_test_metric
    heights = [float(point.split(",")[1]) for point in points]
    assert len(points) == len(means) == 5
    assert sorted(range(5), key=lambda k: (means[k], k)) == sorted(range(5), key=lambda k: (-heights[k], k))
    assert capfd.readouterr().err == ""
    shown = run._repr_html_()
    assert f"{100 * run.summary.final.mean:.1f} ± " in shown
    assert "<svg" in shown


def test_live_runs_of_one_call_share_a_picture_in_which_each_has_its_curve(cells, tmp_path):
    both = [{"name": "one <b>", "algorithm": {"name": "d-psgd"}}, {"name": "two", "algorithm": {"name": "local"}}]
    config = {key: value for key, value in CONFIG.items() if "." not in key} | {"compare": both}
    sg.run(config, live=True, quiet=True, engine="threads", out=tmp_path / "runs")
    (texts,) = cells
    assert len(points_of(texts[-1])) == 2
    assert texts[-1].count("finished after") == 2
    assert "one &lt;b&gt;" in texts[-1]
    assert "<b>" not in texts[-1]


def test_outside_of_notebooks_live_changes_nothing(tmp_path, capfd, monkeypatch):
    for ipython in (None, types.SimpleNamespace(get_ipython=lambda: None)):
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        sg.run(CONFIG, live=True, quiet=True, engine="threads", out=tmp_path / f"run{ipython is None}")
        assert capfd.readouterr() == ("", "")
