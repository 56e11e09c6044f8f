"""docs/tour.ipynb, executed as a user would."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

TOUR = Path(__file__).parents[2] / "docs" / "tour.ipynb"


def executed(notebook, folder: Path):
    NotebookClient(notebook, timeout=150, resources={"metadata": {"path": str(folder)}}).execute()
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_tour_runs_five_methods_and_shows_them(tmp_path):
    outputs = executed(nbformat.read(TOUR, as_version=4), tmp_path)
    printed = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    assert [name in printed for name in ("half-way", "local", "d-psgd", "dfedu", "push-sum")] == [True] * 5
    shown = [kind for output in outputs for kind in output.get("data", {})]
    assert {"image/png", "text/html"} <= set(shown)
    code = next((tmp_path / "runs").glob("*/code"))
    assert {path.name for path in code.iterdir()} >= {"make_model.py", "patients.py"}


def test_a_mistake_in_a_cell_is_its_line_and_an_interrupt_stops_the_run(tmp_path):
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
        executed(notebook, tmp_path)
    assert notebook.cells[1].outputs[0].text == "interrupted interrupted\n"
