"""Reports of real runs, as files and in a browser."""

import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from foreign import sheafgossip
from runs import ROOT

EXAMPLES = ROOT / "examples"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
STRAGGLERS = """
clients = 6
rounds = 12
[topology]
kind = "ring"
[data]
samples = 400
[training]
work = "steps"
[time]
clock = "virtual"
staleness = 2
[compute]
step_s = 0.01
[stragglers]
kind = "fixed"
fraction = 0.3
factor = 10.0
[[faults]]
kind = "crash"
clients = [1]
at_round = 6
restart_after = 2
[checkpoints]
every = 2
"""
SEEDS = """
clients = 5
rounds = 6
[data]
samples = 300
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Three sets of runs: several methods, a scenario, a sweep of five seeds."""
    root = tmp_path_factory.mktemp("reports")
    (root / "stragglers.toml").write_text(STRAGGLERS)
    (root / "seeds.toml").write_text(SEEDS)
    commands = {
        "demo": ["run", str(EXAMPLES / "demo.toml"), "--set", "rounds=6", "--set", "clients=6"],
        "stragglers": ["run", str(root / "stragglers.toml")],
        "sweep": ["sweep", str(root / "seeds.toml"), "--grid", "algorithm.name=d-psgd,dfedu", "--seeds", "3"],
    }
    for name, words in commands.items():
        assert sheafgossip(*words, "--quiet", "--out", root / name)[0] == 0
        assert sheafgossip("report", root / name, "--out", root / f"{name}.html")[0] == 0
    return {name: root / name for name in commands}


FIGURES = {
    "demo": {"learning-accuracy", "clients-accuracy", "bytes", "memory", "graph-1", "graph-5"},
    "stragglers": {
        "learning-accuracy",
        "clients-accuracy",
        "bytes",
        "memory",
        "graph-1",
        "maps-1",
        "waiting-1",
        "processes-1",
    },
    "sweep": {"learning-accuracy", "clients-accuracy", "bytes", "memory", "graph-1", "graph-2"},
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_report_is_one_file_that_needs_nothing_else(folders, name):
    page = folders[name].with_suffix(".html").read_text()
    assert len(page) < 1_500_000
    assert "<script" not in page
    addresses = set(re.findall(r'(?:src|href)="([^"#]+)', page)) | set(re.findall(r"url\(([^#)]+)", page))
    assert all(address.startswith("data:") for address in addresses)
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names))
    figures = set(re.findall(r'<figure id="([^"]+)">', page))
    assert figures >= FIGURES[name]
    for svg in re.findall(r"<svg .*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(svg)


def test_a_report_tells_the_figures_of_its_runs_and_how_to_repeat_them(folders):
    page = folders["sweep"].with_suffix(".html").read_text()
    assert "3 seeds" in page
    assert "standard error over runs with different seeds" in page
    assert "Seeds: 0, 1, 2." in page
    assert "[topology]" in page
    waiting = folders["stragglers"].with_suffix(".html").read_text()
    assert "Who waited for whom" in waiting
    assert "virtual time, s" in waiting
    assert "<td>crash</td>" in waiting


def test_figures_come_in_three_formats_with_their_data(folders, tmp_path):
    sheafgossip("report", folders["stragglers"], "--out", tmp_path / "r.html", "--figures", tmp_path)
    for name in FIGURES["stragglers"]:
        files = {path.suffix: path.read_bytes() for path in tmp_path.glob(f"{name}.*")}
        assert set(files) == {".svg", ".png", ".pdf", ".csv"}
        assert files[".png"].startswith(b"\x89PNG")
        assert files[".pdf"].startswith(b"%PDF")
        assert files[".csv"].count(b"\n") > 1


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to open the pages in")
@pytest.mark.parametrize("name", FIGURES)
def test_a_browser_shows_every_figure_and_complains_of_nothing(folders, tmp_path, name):
    page = folders[name].with_suffix(".html")
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={tmp_path}", "--window-size=1180,4000", "--enable-logging=stderr",
            f"--screenshot={tmp_path / 'page.png'}", "--dump-dom", page.as_uri(),
        ],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr
    assert set(re.findall(r'<figure id="([^"]+)">', done.stdout)) >= FIGURES[name]
    assert done.stdout.count("<svg") == done.stdout.count("<figure")
    assert "Results" in done.stdout
    import matplotlib.image

    image = matplotlib.image.imread(tmp_path / "page.png")[..., :3]
    assert image.shape[1] == 1180
    coloured = (image.max(axis=2) - image.min(axis=2)) > 0.3
    assert coloured.mean() > 0.001
