"""How long a report takes, and what is seen of it meanwhile."""

import contextlib
import io
import sys

import pytest
from matplotlib.layout_engine import ConstrainedLayoutEngine

from foreign import CONFIG, make_run, sheafgossip
from sheafgossip.launcher import cli

METHODS = ("sheaf-fmtl", "dfedu")


@pytest.fixture
def folder(tmp_path):
    for name in METHODS:
        make_run(tmp_path / "runs" / name, CONFIG.replace("a run", name).replace("sheaf-fmtl", name))
    return tmp_path


def test_a_figure_is_laid_out_once_in_however_many_formats_it_is_written(folder, monkeypatch):
    laid_out = []
    execute = ConstrainedLayoutEngine.execute
    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda *_: laid_out.append(execute(*_)))
    assert sheafgossip("report", folder / "runs", "--figures", folder / "figures")[0] == 0
    figures = {path.stem for path in (folder / "figures").glob("*.png")}
    assert len(figures) > 5
    assert len(laid_out) == len(figures)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_shows_which_figure_is_written_and_is_left_clean(folder, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sheafgossip", "report", str(folder / "runs"), "--figures", str(folder / "f")])
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(Terminal()) as seen,
        pytest.raises(SystemExit),
    ):
        cli.main()
    count = len(list((folder / "f").glob("*.png")))
    assert f"writing figure {count} of {count}" in seen.getvalue()
    assert seen.getvalue().endswith("\r\033[K")
