"""The rooms stand at the top of the repository: nothing finds them but the lists in pyproject.toml."""

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
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def folders_with_code():
    return sorted(str(path.parent.relative_to(ROOT)) for room in ROOMS for path in (ROOT / room).rglob("__init__.py"))


def files_of_the_checkout():
    """What a clean checkout of the current state would hold: tracked files, and new ones that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is not a git checkout")
    return [name for name in listed if (ROOT / name).is_file()]


def test_every_folder_of_code_is_a_package_by_its_place():
    folders = {f"sheafgossip.{name.replace('/', '.')}": name for name in folders_with_code()}
    assert SETUPTOOLS["package-dir"] == OTHERS | folders


def test_every_package_is_listed_for_the_wheel():
    assert sorted(SETUPTOOLS["packages"]) == sorted(SETUPTOOLS["package-dir"])


def test_every_module_stands_in_a_package():
    modules = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    assert [path for path in modules if not (path.parent / "__init__.py").exists()] == []


def test_no_folder_of_the_checkout_can_be_taken_for_the_installed_package():
    assert not (ROOT / "sheafgossip").exists()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a clean checkout."""
    place = tmp_path_factory.mktemp("wheel")
    for name in files_of_the_checkout():
        copy = place / "checkout" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copyfile(ROOT / name, copy)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", place / "dist"]
    result = subprocess.run([*build, place / "checkout"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = (place / "dist").glob("*.whl")
    return wheel


def test_a_wheel_holds_every_file_of_the_rooms_and_what_reproduce_runs(wheel):
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    names = files_of_the_checkout()
    places = {f"{folder}/": f"sheafgossip/{folder}/" for folder in ROOMS}
    places |= {f"{folder}/": f"{package.replace('.', '/')}/" for package, folder in OTHERS.items()}
    assert packed == {
        place + name.removeprefix(folder)
        for folder, place in places.items()
        for name in names
        if name.startswith(folder)
    }


def test_the_package_itself_is_the_command(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    words = [sys.executable, "-m", "sheafgossip", "run", "nowhere.toml"]
    result = subprocess.run(words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": "."}, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: nowhere.toml: cannot be read: No such file or directory\n"
