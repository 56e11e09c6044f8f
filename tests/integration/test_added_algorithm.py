"""The algorithm that docs/add-an-algorithm.md prints, added as the page says, and run."""

from __future__ import annotations

import os
import re
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


def test_the_example_runs_as_printed(tmp_path, with_algorithm):
    (source,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (line,) = re.findall(r"its line in the table, `(.*?)`", PAGE, re.IGNORECASE)
    environment = with_algorithm(source, line)
    (command,) = re.findall(r"^    sheafgossip (run .*)$", PAGE, re.MULTILINE)
    (tmp_path / "mine.toml").write_text(CONFIG)

    options = [*command.split(), "--out", "run", "--quiet"]
    done = launched(*options, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr

    local = "run mine.toml --quiet --out alone --set algorithm.name=local"
    alone = launched(*local.split(), cwd=tmp_path, env=dict(os.environ))
    assert alone.returncode == 0
    learnt, found = theta(tmp_path / "alone"), theta(tmp_path / "run")
    for i in range(4):
        mean = (learnt[(i - 1) % 4] + learnt[(i + 1) % 4]) / 2
        np.testing.assert_allclose(found[i], learnt[i] + 0.3 * (mean - learnt[i]), rtol=1e-12)


def test_an_algorithm_that_binds_theta_anew_ends_the_run_with_a_line_that_says_what_to_write(tmp_path, with_algorithm):
    (source,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    wrong = source.replace("client.theta += ", "client.theta = client.theta + ")
    assert wrong != source
    (tmp_path / "mine.toml").write_text(CONFIG)
    environment = with_algorithm(wrong, '"half-way": HalfWay')
    done = launched("run", "mine.toml", "--set", "algorithm.name=half-way", "--quiet", cwd=tmp_path, env=environment)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "write client.theta[:] = ..." in done.stderr
    assert "client.theta = client.theta + " in done.stderr  # the line at fault


def launched(*command: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sheafgossip.launcher.cli", *command],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
    )


def theta(folder: Path) -> list[np.ndarray]:
    files = sorted((folder / "state" / "round-000001").glob("node-*.safetensors"))
    return [load_file(file)["theta"] for file in files]
