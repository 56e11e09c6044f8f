"""The algorithm that docs/add-an-algorithm.md prints, added as the page says, and run."""

import re

import numpy as np

from runs import ROOT, RunFolder, command, small

PAGE = (ROOT / "docs" / "add-an-algorithm.md").read_text()
CONFIG = small("training.alpha = 0.5", 'model.dtype = "float64"', rounds=1, samples=0, algorithm="")


def test_the_example_runs_as_printed(run_in_threads, tmp_path, with_algorithm):
    (source,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (line,) = re.findall(r"in the table, `(.*?)`", PAGE)
    environment = with_algorithm(source, line)
    (words,) = re.findall(r"^    sheafgossip (run .*)$", PAGE, re.MULTILINE)
    (tmp_path / "mine.toml").write_text(CONFIG)

    command(*words.split(), "--out", "run", "--quiet", cwd=tmp_path, env=environment)
    learnt, found = run_in_threads(CONFIG, "algorithm.name=local").theta(1), RunFolder(tmp_path / "run").theta(1)
    for i in range(4):
        mean = (learnt[(i - 1) % 4] + learnt[(i + 1) % 4]) / 2
        np.testing.assert_allclose(found[i], learnt[i] + 0.3 * (mean - learnt[i]), rtol=1e-12)


def test_an_algorithm_that_binds_theta_anew_ends_the_run_with_its_line_and_what_to_write(tmp_path, with_round):
    (tmp_path / "mine.toml").write_text(small(algorithm="added"))
    environment = with_round("client.theta = client.theta + 1")
    done = command("run", "mine.toml", "--engine", "threads", "--quiet", cwd=tmp_path, env=environment, code=1)
    assert "write client.theta[:] = ..." in done.stderr
    assert "client.theta = client.theta + 1" in done.stderr  # the line at fault
