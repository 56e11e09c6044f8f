"""The rooms stand at the top of the repository: nothing finds them but the lists in pyproject.toml."""

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from shutil import copyfile

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("launcher", "metrics", "node", "topology", "transport")
OTHERS = {"sheafgossip": "api", "sheafgossip.paper": "examples/paper"}
"""Packages that do not have the place of their folder."""


def test_every_folder_of_code_is_a_package_by_its_place_and_listed_for_the_wheel():
    modules = [path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py")]
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


def test_a_wheel_holds_every_file_of_the_rooms_and_what_reproduce_runs(wheel, files):
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    places = {f"{folder}/": f"sheafgossip/{folder}/" for folder in ROOMS}
    places |= {f"{folder}/": f"{package.replace('.', '/')}/" for package, folder in OTHERS.items()}
    moved = [place + name.removeprefix(old) for old, place in places.items() for name in files if name.startswith(old)]
    assert packed == set(moved)


def test_the_package_itself_is_the_command(wheel, tmp_path):
    wheel.extractall(tmp_path)
    words = [sys.executable, "-m", "sheafgossip", "run", "nowhere.toml"]
    result = subprocess.run(words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": "."}, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: nowhere.toml: cannot be read: No such file or directory\n"


def test_the_tour_needs_nothing_but_the_wheel(wheel, tmp_path):
    wheel.extractall(tmp_path)
    cells = json.loads((ROOT / "docs" / "tour.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (tmp_path / "tour.py").write_text("\n\n".join(code))
    environment = os.environ | {"PYTHONPATH": ".", "MPLBACKEND": "Agg", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    result = subprocess.run([sys.executable, "tour.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert [name in result.stdout for name in ("half-way", "local", "d-psgd", "dfedu", "push-sum")] == [True] * 5
    assert len(list((tmp_path / "runs").iterdir())) == 5
