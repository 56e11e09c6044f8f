"""Reports of real runs, as files and in a browser, and what is seen of their making."""

import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib.image
import pytest
from matplotlib.layout_engine import ConstrainedLayoutEngine

from foreign import sheafgossip

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
STRAGGLERS = """
clients = 6
rounds = 12
topology.kind = "ring"
data.samples = 400
training.work = "steps"
time = { clock = "virtual", staleness = 2 }
compute.step_s = 0.01
stragglers = { kind = "fixed", fraction = 0.3, factor = 10.0 }
faults = [{ kind = "crash", clients = [1], at_round = 6, restart_after = 2 }]
checkpoints.every = 2
"""
SEEDS = "clients = 5\nrounds = 6\ndata = { samples = 300, rotations = [0, 90] }\n"
COMMANDS = {  # a scenario, and a sweep of two methods, one with a server, over two seeds
    "stragglers": (STRAGGLERS, "run"),
    "sweep": (SEEDS, "sweep", "--grid", "algorithm.name=d-psgd,fedavg", "--seeds", "2"),
}
OF_ALL = {"learning-accuracy", "clients-accuracy", "bytes", "memory", "graph-1", "processes-1"}
FIGURES = {"stragglers": OF_ALL | {"maps-1", "presence-1", "waiting-1"}, "sweep": OF_ALL | {"graph-2", "processes-2"}}
TOLD = {
    "stragglers": ("Who waited for whom", "Who was there", "virtual time, s", "<td>crash</td>"),
    "sweep": ("2 seeds", "standard error over runs with different seeds", "Seeds: 0, 1.", "[topology]", ">server<"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("reports")
    for name, (text, command, *options) in COMMANDS.items():
        (root / f"{name}.toml").write_text(text)
        assert sheafgossip(command, root / f"{name}.toml", *options, "--quiet", "--out", root / name)[0] == 0
        assert sheafgossip("report", root / name, "--out", root / f"{name}.html")[0] == 0
    return {name: root / name for name in COMMANDS}


@pytest.mark.parametrize("name", FIGURES)
def test_a_report_is_one_file_that_needs_nothing_else(folders, name):
    page = folders[name].with_suffix(".html").read_text()
    assert len(page) < 1_500_000
    assert "<script" not in page
    addresses = set(re.findall(r'(?:src|href)="([^"#]+)', page)) | set(re.findall(r"url\(([^#)]+)", page))
    assert all(address.startswith("data:") for address in addresses)
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names))
    assert set(re.findall(r'<figure id="([^"]+)">', page)) >= FIGURES[name]
    for svg in re.findall(r"<svg .*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(svg)
    assert [part for part in TOLD[name] if part not in page] == []


def test_figures_come_in_three_formats_with_their_data_laid_out_once_and_a_terminal_shows_which(
    folders, tmp_path, monkeypatch
):
    laid_out = []
    execute = ConstrainedLayoutEngine.execute
    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda *_: laid_out.append(execute(*_)))
    words = "report", folders["stragglers"], "--out", tmp_path / "r.html", "--figures", tmp_path
    code, _, seen = sheafgossip(*words, terminal=True)
    count = len(list(tmp_path.glob("*.png")))
    assert (code, len(laid_out)) == (0, count)
    assert f"writing figure {count} of {count}" in seen
    assert seen.endswith("\r\033[K")
    for name in FIGURES["stragglers"]:
        files = {path.suffix: path.read_bytes() for path in tmp_path.glob(f"{name}.*")}
        assert set(files) == {".svg", ".png", ".pdf", ".csv"}
        assert files[".png"].startswith(b"\x89PNG")
        assert files[".pdf"].startswith(b"%PDF")
        assert files[".csv"].count(b"\n") > 1


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to open the pages in")
@pytest.mark.parametrize("name", FIGURES)
def test_a_browser_shows_every_figure_and_complains_of_nothing(folders, tmp_path, name):
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={tmp_path}", "--window-size=1180,4000", "--enable-logging=stderr",
            f"--screenshot={tmp_path / 'page.png'}", "--dump-dom", folders[name].with_suffix(".html").as_uri(),
        ],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr
    assert set(re.findall(r'<figure id="([^"]+)">', done.stdout)) >= FIGURES[name]
    assert done.stdout.count("<svg") == done.stdout.count("<figure")
    image = matplotlib.image.imread(tmp_path / "page.png")[..., :3]
    assert image.shape[1] == 1180
    assert ((image.max(axis=2) - image.min(axis=2)) > 0.3).mean() > 0.001  # coloured
