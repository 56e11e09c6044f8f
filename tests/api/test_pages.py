"""The algorithms that pages print are run as they are printed."""

import re
from textwrap import dedent

import numpy as np

import oracles
import sheafgossip as sg
from runs import ROOT, RunFolder

CONFIG = {"clients": 4, "rounds": 1, "topology.kind": "ring", "training.alpha": 0.5, "model.dtype": "float64"}


def printed(page: str) -> tuple[str, str]:
    """The algorithm of a page, and what is printed of a configuration next to it."""
    text = (ROOT / "docs" / page).read_text()
    source = next(block for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S) if "import" in block)
    return source, dedent("\n".join(re.findall(r"^    .*$", text.partition(source)[2].partition("\n## ")[0], re.M)))


def test_half_way(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source, lines = printed("add-an-algorithm.md")
    (tmp_path / "half_way.py").write_text(source)
    (tmp_path / "mine.toml").write_text(lines)
    found = sg.run("mine.toml", CONFIG, out="run", quiet=True).models
    learnt = sg.run(CONFIG, {"algorithm.name": "local"}, out="local", quiet=True).models
    for i in range(4):
        mean = (learnt[(i - 1) % 4] + learnt[(i + 1) % 4]) / 2
        np.testing.assert_allclose(found[i], learnt[i] + 0.3 * (mean - learnt[i]), rtol=1e-12)


def test_fedprox(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source, _ = printed("servers.md")
    assert len(source.splitlines()) <= 40
    (tmp_path / "prox.py").write_text(source)
    config = {key: value for key, value in CONFIG.items() if key != "topology.kind"} | {"rounds": 3}
    config |= {"training.work": "steps", "training.steps": 2, "training.batch_size": 8}
    sg.run(config, {"algorithm": {"use": "prox.py:FedProx", "mu": 0.7}}, out="run", quiet=True)
    folder = RunFolder(tmp_path / "run")
    shards, w = folder.shards(), folder.theta(0)[0]
    for round in range(3):
        uploads = []
        for k, shard in sorted(shards.items()):
            theta, n = w.copy(), len(shard["y_train"])
            for step in range(2):
                rows = oracles.batch_rows(0, k, n, 8, 2 * round + step)
                theta -= 0.5 * (oracles.gradient(theta, shard, rows) + 0.7 * (theta - w))
            uploads.append((n, theta))
        w = sum(n * theta for n, theta in uploads) / sum(n for n, _ in uploads)
    assert oracles.error(folder.theta(3)[0], w) < 1e-12
