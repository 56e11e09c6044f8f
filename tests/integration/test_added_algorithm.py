"""The algorithm that docs/add-an-algorithm.md prints, added as the page says, and run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "add-an-algorithm.md").read_text()
CONFIG = """
clients = 4
rounds = 1
[topology]
kind = "ring"
[training]
alpha = 0.5
[model]
dtype = "float64"
"""


def test_the_example_runs_as_printed(tmp_path):
    package = tmp_path / "sheafgossip"
    package.mkdir()
    for room in ("launcher", "metrics", "topology", "transport"):
        (package / room).symlink_to(ROOT / room)
    shutil.copytree(ROOT / "node", package / "node")
    algorithms = package / "node" / "algorithms"
    (source,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (line,) = re.findall(r"its line in the table, `(.*?)`", PAGE, re.IGNORECASE)
    (algorithms / "half_way.py").write_text(source)
    table = (algorithms / "__init__.py").read_text()
    table = table.replace("from .local", "from .half_way import HalfWay\nfrom .local").replace(
        "] = {\n", "] = {\n    " + line + ",\n"
    )
    (algorithms / "__init__.py").write_text(table)
    (command,) = re.findall(r"^    sheafgossip (run .*)$", PAGE, re.MULTILINE)
    (tmp_path / "mine.toml").write_text(CONFIG)

    options = [*command.split(), "--out", "run", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "sheafgossip.launcher.cli", *options],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr

    local = "run mine.toml --quiet --out alone --set algorithm.name=local"
    alone = subprocess.run(
        [sys.executable, "-m", "sheafgossip.launcher.cli", *local.split()],
        cwd=tmp_path,
        capture_output=True,
        timeout=100,
    )
    assert alone.returncode == 0
    learnt, found = theta(tmp_path / "alone"), theta(tmp_path / "run")
    for i in range(4):
        mean = (learnt[(i - 1) % 4] + learnt[(i + 1) % 4]) / 2
        np.testing.assert_allclose(found[i], learnt[i] + 0.3 * (mean - learnt[i]), rtol=1e-12)


def theta(folder: Path) -> list[np.ndarray]:
    files = sorted((folder / "state" / "round-000001").glob("node-*.safetensors"))
    return [load_file(file)["theta"] for file in files]
