"""The packages stand at the top of the repository: nothing finds them but the lists in pyproject.toml."""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from shutil import copyfile

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
PACKAGES = ("launcher", "metrics", "node", "topology", "transport")
OTHERS = {"sheafgossip": "api"} | {f"sheafgossip.{name}": f"examples/{name}" for name in ("board", "demo", "paper")}
"""Packages that do not have the place of their folder."""


def test_every_folder_of_code_is_a_package_by_its_place_and_listed_for_the_wheel():
    modules = [path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    folders = {str(path.parent) for path in modules}
    assert {name for name in folders if not (ROOT / name / "__init__.py").exists()} == set()
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = {f"sheafgossip.{name.replace('/', '.')}": name for name in folders}
    assert setuptools["package-dir"] == OTHERS | packages
    assert sorted(setuptools["packages"]) == sorted(setuptools["package-dir"])
    assert not (ROOT / "sheafgossip").exists()  # it could be taken for the installed package


@pytest.fixture(scope="module")
def files():
    """What a clean checkout of the current state would hold: tracked files, and new ones that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is not a git checkout")
    return [name for name in listed if (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory, files):
    """Built from a clean checkout."""
    place = tmp_path_factory.mktemp("wheel")
    for name in files:
        copy = place / "checkout" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copyfile(ROOT / name, copy)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", place / "dist"]
    result = subprocess.run([*build, place / "checkout"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = (place / "dist").glob("*.whl")
    return zipfile.ZipFile(wheel)


def test_a_wheel_holds_every_file_of_the_packages_and_what_reproduce_runs(wheel, files):
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    places = {f"{folder}/": f"sheafgossip/{folder}/" for folder in PACKAGES}
    places |= {f"{folder}/": f"{package.replace('.', '/')}/" for package, folder in OTHERS.items()}
    moved = [place + name.removeprefix(old) for old, place in places.items() for name in files if name.startswith(old)]
    assert packed == set(moved)


def test_the_package_itself_is_the_command(wheel, tmp_path):
    wheel.extractall(tmp_path)
    words = [sys.executable, "-m", "sheafgossip", "run", "nowhere.toml"]
    result = subprocess.run(words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": "."}, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: nowhere.toml: cannot be read: No such file or directory\n"


def test_the_tour_runs_as_a_notebook_with_nothing_but_the_wheel(wheel, tmp_path, monkeypatch):
    wheel.extractall(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tour = nbformat.read(ROOT / "docs" / "tour.ipynb", as_version=4)
    for cell in tour.cells:
        cell.source = cell.source.replace('"rounds": 40', '"rounds": 6')
    tour.cells.append(nbformat.v4.new_code_cell("print(sg.__file__)"))
    NotebookClient(tour, timeout=150, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in tour.cells if cell.cell_type == "code" for output in cell.outputs]
    printed = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    assert [name in printed for name in ("half-way", "local", "d-psgd", "dfedu", "push-sum")] == [True] * 5
    assert printed.endswith(f"\n{tmp_path}/sheafgossip/__init__.py\n")
    shown = [kind for output in outputs for kind in output.get("data", {})]
    assert {"image/png", "text/html"} <= set(shown)
    codes = {path.name for path in (tmp_path / "runs").glob("*/code/*")}
    assert codes >= {"make_model.py", "patients.py"}
    assert len(list((tmp_path / "runs").iterdir())) == 5
