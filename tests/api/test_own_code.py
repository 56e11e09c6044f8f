"""Algorithms, models and data of the user's own, from files and from Python."""

import importlib.util
import marshal
import re
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import own
import sheafgossip as sg
from runs import CLI, ROOT
from sheafgossip.metrics.verification import compare_with_kernel
from sheafgossip.topology.errors import UserError

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="counters of the kernel"),
    pytest.mark.usefixtures("one_fork_server"),
]

RESTART = {
    "faults": [{"kind": "crash", "clients": [2], "at_round": 4, "restart_after": 1}],
    "time.clock": "virtual",
    "compute.step_s": 0.01,
}


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    folder = own.write(tmp_path / "project")
    monkeypatch.chdir(folder)
    yield folder
    for path in [path for path in sys.path if path.startswith(str(tmp_path))]:
        sys.path.remove(path)
    sys.modules.pop("averages", None)


def states(run: sg.Run) -> dict[int, bytes]:
    return {
        round: b"".join(theta.tobytes() for _, theta in sorted(run.theta(round).items())) for round in run.state_rounds
    }


def command(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([*CLI, *arguments], capture_output=True, text=True, timeout=120)


def test_the_command_line_python_and_threads_come_to_the_same_bits(project):
    assert command("run", "mine.toml", "--out", "cli", "--quiet").returncode == 0
    python = sg.run("mine.toml", out="python", quiet=True)
    assert states(python) == states(sg.open_run("cli"))
    assert python.traffic.equals(sg.open_run("cli").traffic)
    assert states(sg.run("mine.toml", out="threads", quiet=True, engine="threads")) == states(python)
    kept = {path.name for path in (project / "python/code").iterdir()}
    assert kept == {"algorithm.py", "averages.py", "model.py", "data.py"}
    clients = python.nodes[python.nodes.role == "client"]
    assert clients.parameters.unique().tolist() == [5 * 9 + 5 + 5 * 5 * 9 + 2 * 5 + 20 * 3 + 3]  # a bias is frozen
    assert clients.train_samples.tolist() == [40] * 4  # the official split
    assert clients.test_samples.tolist() == [20] * 4
    assert python.summary.final.mean > 0.5
    table = python.sql("SELECT sum(flops) AS flops FROM work_total")
    assert table.flops[0] > 0


def test_a_run_that_goes_on_ends_as_an_unbroken_one(project):
    whole = sg.run("mine.toml", out="whole", quiet=True)
    sg.run("mine.toml", {"rounds": 4}, out="part", quiet=True)
    assert states(sg.resume("part", 6, own_code=True, quiet=True))[6] == states(whole)[6]


@pytest.mark.parametrize(
    "changes",
    [
        RESTART | {"checkpoints.every": 1},
        {"transport.codec": "float16"},
        {"algorithm": {"use": "algorithm.py:Mean", "fraction": 0.5}},
    ],
    ids=["crash and restart", "codec", "server"],
)
def test_bytes_are_those_of_the_kernel(project, changes):
    run = sg.run("mine.toml", changes | {"transport.protocol": "tcp", "measuring.kernel": True}, out="run", quiet=True)
    comparison = compare_with_kernel(run.folder)
    assert comparison.connections >= 4
    assert comparison.differing == comparison.loose_ends == ()
    again = sg.run("mine.toml", changes, out="again", quiet=True)
    assert states(again) == states(run)


@pytest.mark.parametrize("share", ["among clients", "by a server"])
def test_some_layers_are_shared_and_the_head_that_a_pattern_names_is_not(project, share):
    """All clients hear of all others, so that what is shared is one in the end."""
    changes = {"algorithm": {"use": "algorithm.py:SharedBodies"}, "topology.kind": "complete"}
    if share == "by a server":
        changes = {"algorithm": {"name": "fedavg-c", "share": "extractor"}}
    changes |= {"model.head": ["1.norm", "5"], "rounds": 2}
    run = sg.run("mine.toml", changes, out="run", quiet=True)
    thetas, module = np.stack(list(run.models.values())), run.module(0)
    names = [(name, each.numel()) for name, each in module.named_parameters() if each.requires_grad]
    in_head = np.concatenate([np.full(size, name.startswith(("1.norm.", "5."))) for name, size in names])
    same = np.isclose(thetas, thetas[0], rtol=1e-5, atol=1e-7).all(axis=0)
    assert same[~in_head].all()
    assert not same[in_head].any()
    assert run.traffic.payload_bytes.max() == 4 * (~in_head).sum()


def test_a_change_of_the_code_is_refused_until_it_is_taken_back(project):
    sg.run("mine.toml", {"rounds": 2}, out="run", quiet=True)
    text = (project / "averages.py").read_text()
    (project / "averages.py").write_text(text + "\n# slower\n")
    with pytest.raises(sg.Error, match=r"averages.py has changed since the run began; .* as in .*run/code/averages.py"):
        sg.resume("run", 4, own_code=True, quiet=True)
    shutil.copy(project / "run/code/averages.py", project / "averages.py")
    assert sg.resume("run", 4, own_code=True, quiet=True).summary.rounds == 4
    (project / "averages.py").unlink()
    assert "cannot be read" in command("resume", "run", "--rounds", "5", "--own-code").stderr
    assert sg.open_run("run").summary.rounds == 4  # nothing of it is executed


def test_runs_of_other_code_are_not_mixed(project):
    several = own.CONFIG.replace("algorithm =", "[[compare]]\nname = 'one'\nalgorithm =")
    (project / "mine.toml").write_text(f"{several}[[compare]]\nname = 'two'\nalgorithm.name = 'local'\n")
    assert len(sg.run("mine.toml", {"rounds": 2}, out="runs", quiet=True).runs) == 2
    shutil.rmtree(project / "runs" / "two")
    (project / "averages.py").write_text(own.AVERAGES + "\n# slower\n")
    with pytest.raises(sg.Error, match=r"runs/one: averages.py has changed since that run began; choose another --out"):
        sg.run("mine.toml", {"rounds": 2}, out="runs", quiet=True)


def test_nothing_in_a_run_folder_is_executed(project):
    sg.run("mine.toml", {"rounds": 2}, out="run", quiet=True)
    code = project / "run/code/algorithm.py"
    config = project / "run/config.toml"
    config.write_text(config.read_text().replace(str(project / "algorithm.py"), str(code)))
    with sqlite3.connect(project / "run/run.sqlite") as records:
        records.execute("DELETE FROM meta WHERE key = 'config_sha256'")
    code.write_text("open('executed', 'w')")
    for arguments in (["resume", "run", "--rounds", "4"], ["summary", "run"], ["run", "mine.toml", "--out", "run"]):
        command(*arguments)
    for more in ([], ["--own-code"]):
        assert command("resume", "run", "--rounds", "4", *more).returncode == 2
    assert not (project / "executed").exists()


LATE = """
def mean(vectors):
    import colorsys
    from more.sums import total

    return total(vectors) / len(vectors)
"""


def test_what_lies_beside_is_not_executed(tmp_path):
    """In the working directory and in a run's folder: modules by the names of Python's, and compiled ones."""
    project, hostile = own.write(tmp_path / "project"), f"open({str(tmp_path / 'executed')!r}, 'w')"
    (project / "averages.py").write_text(LATE)
    (project / "more").mkdir()
    (project / "more" / "sums.py").write_text("def total(vectors):\n    return sum(vectors)\n")

    def make(*words: str) -> None:
        command = [sys.executable, "-P", "-m", "sheafgossip.launcher.cli", *words, "--quiet"]
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr

    for name in ("random", "secrets", "numpy", "sheafgossip"):
        (project / f"{name}.py").write_text(hostile)
    make("run", "mine.toml", "--set", "rounds=2", "--out", "run")
    code = project / "run" / "code"
    kept = {path.relative_to(code).as_posix() for path in code.rglob("*.py")}
    assert kept == {"algorithm.py", "averages.py", "more/sums.py", "model.py", "data.py"}
    (code / "colorsys.py").write_text(hostile)
    compiled = Path(importlib.util.cache_from_source(str(project / "averages.py")))
    compiled.parent.mkdir()
    unchecked = importlib.util.MAGIC_NUMBER + b"\x01\0\0\0" + bytes(8)  # it need not fit its source
    compiled.write_bytes(unchecked + marshal.dumps(compile(hostile, "averages.py", "exec")))
    make("resume", "run", "--rounds", "4", "--own-code")
    assert not (tmp_path / "executed").exists()


RANDOM = """
import random
from dataclasses import dataclass

import numpy as np
import sheafgossip as sg


@dataclass(frozen=True)
class Shaken(sg.Algorithm):
    ways: tuple[tuple[float, ...], ...] = ((0.1,), (0.2,))

    def round(self, client, peers):
        assert isinstance(self.ways[0], tuple)
        client.theta += 0.1 * np.random.rand(client.theta.size) + random.random()


def load():
    return np.random.rand(40, 3), np.random.randint(2, size=40)
"""


def test_draws_from_generators_of_the_process_follow_from_the_seed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(RANDOM)
    config = {"clients": 3, "algorithm.use": "mine.py:Shaken", "data.use": "mine.py:load", "rounds": 4}
    before = np.random.get_state()[1].tolist()
    run = sg.run(config, out="one", quiet=True)
    assert np.random.get_state()[1].tolist() == before
    sg.run(config, {"rounds": 2}, out="part", quiet=True)
    assert states(sg.resume("part", 4, own_code=True, quiet=True))[4] == states(run)[4]
    assert states(sg.run(config, {"seed": 1}, out="other", quiet=True))[4] != states(run)[4]
    assert len({theta.tobytes() for theta in run.models.values()}) == 3


def test_an_installed_package_brings_algorithms_by_their_names(tmp_path, monkeypatch):
    information = tmp_path / "site" / "gossips-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: gossips\nVersion: 1.0\n")
    points = "[sheafgossip.algorithms]\nhalf-way = gossips:HalfWay\nbroken = nowhere:Gone\n"
    (information / "entry_points.txt").write_text(points)
    (tmp_path / "site" / "gossips.py").write_text(own.ALGORITHM.replace("from averages import mean", own.AVERAGES))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    config = 'clients = 4\nrounds = 2\ndata.samples = 100\nalgorithm = { name = "half-way", way = 0.3 }\n'
    (tmp_path / "mine.toml").write_text(config)
    out = str(tmp_path / "run")
    assert command("run", str(tmp_path / "mine.toml"), "--quiet", "--out", out).returncode == 0
    assert sg.open_run(out).config["algorithm"] == {"name": "half-way", "use": "gossips:HalfWay", "way": 0.3}
    schema = command("config", "schema").stdout
    assert '### `name = "half-way"`' in schema
    assert "How far towards the neighbours' mean." in schema
    assert "cannot be used: algorithm.use = 'nowhere:Gone'" in schema
    mistyped = command("run", str(tmp_path / "mine.toml"), "--set", "algorithm.wey=0.1").stderr
    assert "algorithm.wey: unknown key (did you mean way?)" in mistyped
    (tmp_path / "mine.toml").write_text(config.replace("half-way", "half-wey"))
    assert "'half-way'; did you mean 'half-way'?" in command("run", str(tmp_path / "mine.toml")).stderr
    assert command("resume", out, "--rounds", "3").returncode == 2
    assert command("resume", out, "--rounds", "3", "--own-code").returncode == 0


LOSS = """
import torch.nn.functional as F


def focal(z, y, gamma=2.0):
    loss = F.cross_entropy(z, y, reduction="none")
    return (1 - (-loss).exp()) ** gamma * loss


def mean(z, y):
    return F.cross_entropy(z, y)


def plain(z, y):
    return F.cross_entropy(z, y, reduction="none")
"""


def test_a_loss_of_the_users_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "losses.py").write_text(LOSS)
    config = {"clients": 3, "rounds": 4, "data.samples": 120, "algorithm.name": "d-psgd", "model.dtype": "float64"}
    usual = sg.run(config, out="usual", quiet=True, engine="threads").models
    same = sg.run(config, {"training.loss.use": "losses.py:plain"}, out="same", quiet=True, engine="threads").models
    np.testing.assert_allclose(same[1], usual[1], rtol=1e-10)
    focal = {"training.loss": {"use": "losses.py:focal", "options": {"gamma": 1.0}}}
    whole = sg.run(config, focal, out="whole", quiet=True, engine="threads")
    assert not np.allclose(whole.models[1], usual[1], rtol=1e-3)
    sg.run(config, focal | {"rounds": 2}, out="part", quiet=True, engine="threads")
    assert states(sg.resume("part", 4, own_code=True, quiet=True, engine="threads"))[4] == states(whole)[4]
    for name, told in (("mean", r"makes shape \(\) of 4 samples; it has to be \(4,\)"), ("nix", "has no nix")):
        with pytest.raises(sg.Error, match=f"training.loss.use = '.*losses.py:{name}': {told}"):
            sg.run(config, {"training.loss.use": f"losses.py:{name}"}, out="wrong", quiet=True, engine="threads")


OPTIMIZER = """
import torch


class Langevin(torch.optim.Optimizer):
    '''Steps with noise, which grows with a number that is kept for all parameters.'''

    def __init__(self, parameters, lr, noise=0.1):
        super().__init__(parameters, {"lr": lr, "noise": noise, "growth": 1.0 + float(torch.rand(()))})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["growth"] *= 1.1
            for each in group["params"]:
                mean = self.state[each].setdefault("mean", torch.zeros_like(each)).lerp_(each.grad, 0.5)
                each -= group["lr"] * (mean + group["noise"] * group["growth"] * torch.randn_like(each))

"""


@pytest.mark.parametrize("changes", [{}, RESTART | {"checkpoints.every": 1}], ids=["", "crash and restart"])
def test_an_optimizer_of_the_users_own(tmp_path, monkeypatch, changes):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps.py").write_text(OPTIMIZER)
    config = {"clients": 3, "rounds": 6, "data.samples": 120, "algorithm.name": "d-psgd", "training.schedule": "cosine"}
    config |= {"training.optimizer": {"use": "steps.py:Langevin", "options": {"noise": 0.2}}} | changes
    whole = sg.run(config, out="whole", quiet=True)
    assert states(sg.run(config, out="threads", quiet=True, engine="threads")) == states(whole)
    if not changes:  # a plan is made for all rounds
        part = config | {"training.schedule": "constant"}
        whole = sg.run(part, out="constant", quiet=True, engine="threads")
        sg.run(part, {"rounds": 4}, out="part", quiet=True, engine="threads")
        assert states(sg.resume("part", 6, own_code=True, quiet=True, engine="threads"))[6] == states(whole)[6]


METRICS = """
import numpy as np


def confidence(z, y, power=1.0):
    odds = np.exp(z - z.max(1, keepdims=True))
    return np.mean((odds / odds.sum(1, keepdims=True)).max(1) ** power)


def correct(z, y):
    return (z.argmax(1) == y).mean()


def first_class(z, y):
    return (z.argmax(1) == 0).mean() if (y == 0).any() else np.nan
"""


def test_metrics_of_the_users_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "metrics.py").write_text(METRICS)
    config = {"clients": 3, "rounds": 4, "data.samples": 120, "algorithm.name": "d-psgd", "evaluation.every": 2}
    wanted = [
        {"use": "metrics.py:correct"},
        {"use": "metrics.py:confidence", "name": "squared confidence", "better": "lower", "options": {"power": 2.0}},
    ]
    run = sg.run(config, {"evaluation.metrics": wanted}, out="run", quiet=True, engine="threads")
    values = run.metrics.pivot(index=["node", "round"], columns="name", values="value")
    assert len(values) == 3 * 3  # rounds 0, 2 and 4
    accuracy = run.rounds.set_index(["node", "round"]).test_metric.dropna()
    assert values.correct.tolist() == accuracy.loc[values.index].tolist()
    assert values["squared confidence"].between(0, 1).all()
    found, last = run.summary.metrics, values.loc[(slice(None), 4), :]
    assert found["correct"] == run.summary.final
    assert found["squared confidence"].mean == pytest.approx(last["squared confidence"].mean())
    assert [each.higher_is_better for each in found.values()] == [True, False]
    assert {"learning-correct", "learning-squared-confidence"} <= set(re.findall(r'<figure id="([^"]+)"', page(run)))
    with pytest.raises(sg.Error, match="metrics: two are called correct; give one another name"):
        sg.run(config, {"evaluation.metrics": [wanted[0], wanted[0]]}, quiet=True, engine="threads")
    with pytest.raises(sg.Error, match=r"metrics.py:f1': has no f1; it defines confidence, correct"):
        sg.run(config, {"evaluation.metrics": [{"use": "metrics.py:f1"}]}, quiet=True, engine="threads")


def page(run: sg.Run) -> str:
    return run.report().path.read_text()


ALL = {
    'topology.kind = "ring"': "",
    'algorithm = { use = "algorithm.py:HalfWay", way = 0.3 }': """
algorithm = { use = "algorithm.py:Mean", fraction = 0.5 }
transport = { codec = "float16", protocol = "tcp" }
evaluation.metrics = [{ use = "metrics.py:first_class" }, { use = "metrics.py:confidence", better = "lower" }]
time = { clock = "virtual", deadline_s = 2.0, silence = "skip" }
compute = { step_s = 0.01, slowdown = [1, 3] }
links.loss = 0.1
measuring.kernel = true
""",
    "momentum = 0.5": 'loss.use = "losses.py:focal", optimizer = { use = "steps.py:Langevin", options.noise = 0.01 }',
}


def test_a_server_and_all_else_of_the_users_own_in_a_scenario(project):
    for name, text in {"steps": OPTIMIZER, "losses": LOSS, "metrics": METRICS}.items():
        (project / f"{name}.py").write_text(text)
    text = own.CONFIG
    for old, new in ALL.items():
        text = text.replace(old, new)
    (project / "mine.toml").write_text(text)
    whole = sg.run("mine.toml", out="whole", quiet=True)
    comparison = compare_with_kernel(whole.folder)
    assert comparison.connections == 4
    assert comparison.differing == comparison.loose_ends == ()
    assert list(whole.summary.metrics) == ["first_class", "confidence"]
    assert {path.name for path in (project / "whole/code").iterdir()} >= {"steps.py", "losses.py", "metrics.py"}
    shutil.copytree(project / "whole", project / "part")
    for each in (project / "part/state").glob("round-00000[46]"):
        shutil.rmtree(each)
    with sqlite3.connect(project / "part/run.sqlite") as records:
        records.execute("DELETE FROM event WHERE kind = 'finish'")
    part = sg.resume("part", own_code=True, quiet=True)
    assert states(part) == states(whole)
    assert part.metrics.equals(whole.metrics)


@pytest.mark.parametrize(
    ("example", "data", "flops"),
    [
        ("resnet18", {"data.samples": 20}, 2 * 35_000_000),
        ("lstm", {"data.options": {"clients": 2, "samples": 40}}, 12 * 2 * 4 * 64 * (8 + 64) + 2 * 64 * 24),
    ],
)
def test_an_example_with_a_model_of_its_own_runs(tmp_path, example, data, flops):
    """In small. Operations of a pass forward: what each weight is multiplied with, times 2."""
    sg.run(ROOT / f"examples/{example}.toml", data | {"clients": 2, "rounds": 1}, out=tmp_path / "run", quiet=True)
    for records in (tmp_path / "run").rglob("run.sqlite"):
        run = sg.open_run(records.parent)
        assert run.summary.rounds == 1
        assert all(np.isfinite(theta).all() for theta in run.models.values())
        counted = run.sql("SELECT sum(flops) AS flops FROM work_total WHERE part = 'evaluation'").flops[0]
        assert counted == pytest.approx(
            2 * run.nodes.test_samples.sum() * flops, rel=0.05
        )  # before and after the round


def test_resnet18_is_torchvisions_with_batch_norm(tmp_path):
    given = {
        "model.options": {"groups": 0, "small": False},
        "data.samples": 12,
        "clients": 2,
        "training.batch_size": 4,
        "rounds": 1,
    }
    given["checkpoints.every"] = 1
    run = sg.run(ROOT / "examples/resnet18.toml", given, out=tmp_path / "run", engine="threads", quiet=True)
    published = 11_178_564  # Table 6 of the paper of SHN: 4 classes, 3 channels; here 10 and one
    assert len(run.models[0]) == published + 6 * 513 - 2 * 64 * 7 * 7
    assert any("running_mean" in name for name in run.state(1)[0])


# -- from Python -------------------------------------------------------------------------------------------------------


def samples():
    x, y = np.eye(3, dtype=np.float32)[np.arange(60) % 3], np.arange(60) % 3
    return x, y


@dataclass(frozen=True)
class Prox(sg.ServerAlgorithm):
    """FedProx."""

    mu: float = 0.1
    traits = replace(sg.TAKES_OLD_UPLOADS, momentum=False)

    def upload(self, client):
        w = client.theta.copy()
        for batch in client.batches():
            client.theta -= client.alpha * (client.gradient_on(batch) + self.mu * (client.theta - w))
        return client.theta

    def aggregate(self, server, uploads):
        server.theta[:] = sg.weighted_mean(server, uploads)


def test_objects_of_python_stand_in_for_files(tmp_path):
    changes = {"clients": 3, "rounds": 20, "training": {"work": "epochs", "batch_size": 5, "alpha": 1.0}}
    run = sg.run(changes, algorithm=Prox(mu=0.5), data=samples, out=tmp_path / "run", quiet=True)
    assert run.config["algorithm"]["mu"] == 0.5
    assert run.config["algorithm"]["use"] == f"{__file__}:Prox"
    assert run.summary.final.mean == 1.0
    assert sg.compare([run]).frame.test_metric.tolist() == [1.0]


SCRIPT = """
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import sheafgossip as sg

SHARE, TIMES = 0.25, 1
HUGE = theirs = np.zeros(3)
from math import *


def mean(vectors):
    return TIMES * cos(0) * np.mean(list(vectors), axis=0)


@dataclass(frozen=True)
class HalfWay(sg.Algorithm):
    way: float = 0.5
    traits = sg.Traits(same_size=True)

    def round(self, client, peers):
        client.learn()
        theirs = peers.exchange(dict.fromkeys(client.neighbours, client.theta))
        client.theta += self.way * SHARE * (mean(theirs.values()) - client.theta)


@dataclass(frozen=True)
class Greedy(HalfWay):
    def round(self, client, peers):
        super().round(client, peers)
        client.theta += HUGE[0]


config = {"clients": 4, "rounds": 3, "data.samples": 100}
print(sg.run(config, algorithm=HalfWay(way=0.3), out="run", quiet=True).summary.rounds)
try:
    sg.run(config, algorithm=Greedy(), out="greedy", quiet=True)
except sg.Error as error:
    print(error)
"""


def test_a_script_needs_no_guard_and_its_classes_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    told = "Greedy uses HUGE, a ndarray, which no client sees; make it a setting, or write both into a file"
    assert done.stdout.splitlines() == ["3", told], done.stderr
    written = (tmp_path / "run/code/halfway.py").read_text()
    assert [word in written for word in ("SHARE = 0.25", "def mean", "HUGE")] == [True, True, False]
    told = "what a run's folder names is executed with --own-code only"
    assert told in command("resume", str(tmp_path / "run"), "--rounds", "5").stderr
    assert command("resume", str(tmp_path / "run"), "--rounds", "5", "--own-code").returncode == 0


def test_an_error_is_the_one_of_the_command_line(tmp_path):
    with pytest.raises(UserError, match=r"^clients = 0: must be greater than or equal to 1$"):
        sg.run({"clients": 0})
    with pytest.raises(
        sg.RunError, match=r"client 0 failed in round 1: ZeroDivisionError: .* in samples_that_fail"
    ) as failed:
        sg.run({"clients": 2, "rounds": 2}, algorithm=Failing(), out=tmp_path / "run", quiet=True)
    assert failed.value.run.summary.status == "failed"


@dataclass(frozen=True)
class Failing(sg.Algorithm):
    def round(self, client, peers):
        samples_that_fail(client.node)


def samples_that_fail(node):
    return 1 / 0


# -- batch normalization, which needs two samples ----------------------------------------------------------------------

NORMALIZED = {
    "clients": 3,
    "rounds": 4,
    "data.samples": 132,  # 33 of each client to train on
    "training.work": "steps",
    "training.steps": 3,
    "training.batch_size": 16,
    "model.use": f"{ROOT}/tests/methods/normalized.py:make",
    "algorithm.name": "d-psgd",
}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, r"training.batch_size = 16: client 0 has 33 .* a mini-batch has one, .*make.*; allowed: such as 17; or"),
        ({"training.batch_size": 1, "rounds": 1}, r"training.batch_size = 1: client 0 .* such as 3; or torch"),
        (
            {"data.samples": 12, "data.reduced_clients": 1.0},
            r"client \d has one training sample, .*make\) needs two samples at least; give",
        ),
    ],
)
def test_a_mini_batch_of_one_sample_is_told_before_anything_starts(tmp_path, changes, told):
    with pytest.raises(UserError, match=told):
        sg.run(NORMALIZED | changes, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_mini_batch_of_one_sample_that_nobody_comes_to_is_none():
    sg.plan(NORMALIZED | {"rounds": 1, "training.steps": 2, "time.clock": "virtual", "compute.step_s": 1.0})


def test_a_mini_batch_of_one_sample_that_only_the_algorithm_makes_is_a_line(tmp_path):
    dpfl = {"algorithm.name": "dpfl", "training.batch_size": 5}  # of 26 that are not held out
    told = r"client . failed in round 2: a mini-batch has one sample, .* training\.batch_size"
    with pytest.raises(sg.RunError, match=told):
        sg.run(NORMALIZED | dpfl, out=tmp_path / "run", quiet=True, engine="threads")


def test_a_pass_that_is_cut_leaves_no_sample_alone(tmp_path):
    full = {"clients": 1, "rounds": 1, "data.samples": 684, "training.work": "full"}
    plain = {key: value for key, value in NORMALIZED.items() if key not in ("training.steps", "training.batch_size")}
    run = sg.run(plain | full, out=tmp_path / "run", quiet=True, engine="threads")
    assert run.summary.status == "finished"
    assert len(run.shard(0)["y_train"]) == 513  # 512 go through the model at once
