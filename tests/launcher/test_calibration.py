"""What `sheafgossip calibrate` measures: steps, evaluations and rounds that sleep take as long as they do, and what is
written a configuration can start from."""

import os
import re
import tomllib

import numpy as np
import pytest

import sheafgossip as sg
from runs import command, small
from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.studies import calibration

SLEEPY = """
import time
from dataclasses import dataclass

import torch

import sheafgossip as sg


class Sleepy(torch.nn.Module):
    def __init__(self, inputs, outputs, seconds):
        super().__init__()
        self.layer, self.seconds = torch.nn.Linear(inputs, outputs), seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return self.layer(x.flatten(1))


def make(shape, outputs, seconds, twice=False):
    inputs = shape[0] * shape[1] * shape[2]
    model = Sleepy(inputs, outputs, seconds)
    if twice:  # as many parameters again
        model.more = torch.nn.Linear(inputs, outputs)
    return model


@dataclass(frozen=True)
class Dreamy(sg.Algorithm):
    def messages(self, edge):
        return [sg.Vector(3)]

    def work(self, own, round):
        return sg.Work(gradients=2)

    def round(self, client, peers):
        client.gradient()
        client.learn()
        time.sleep(0.03)
        peers.exchange(dict.fromkeys(client.neighbours, client.theta[:3].copy()))
"""
CONFIG = """
clients = 4
rounds = 3
topology.kind = "ring"
data.samples = 80
training = { work = "steps", steps = 2, batch_size = 8 }
algorithm.use = "sleepy.py:Dreamy"
compute.message_s = 77.0
links.loss = 0.5

[model]
use = "sleepy.py:make"
options = { seconds = 0.02 }

[[model.mix]]
use = "sleepy.py:make"
options = { seconds = 0.05, twice = true }
"""


def test_what_sleeps_takes_as_long_as_it_sleeps_and_a_configuration_starts_from_it(tmp_path):
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    (tmp_path / "mine.toml").write_text(CONFIG)
    wide = os.environ | {"COLUMNS": "200"}
    done = command("calibrate", "mine.toml", "--quiet", cwd=tmp_path, env=wide)
    text = (tmp_path / "calibrated.toml").read_text()
    found = tomllib.loads(text)
    compute, links = found["compute"], found["links"]
    assert compute["step_s"] == pytest.approx(0.02, rel=0.2)
    assert compute["evaluation_s"] == pytest.approx(0.02, rel=0.2)
    assert compute["message_s"] == pytest.approx(0.03 / 2, rel=0.2)  # of two in a round
    assert compute["slowdown"] == [1.0, pytest.approx(2.5, rel=0.1)]  # over and over
    assert links.keys() == {"latency_s", "bandwidth"}

    assert text.startswith("# sheafgossip calibrate mine.toml --quiet\n# on ")
    # of two clients with this model, and of rounds all but the first
    assert re.search(r"^step_s = \S+  # ± \S+, 6 times: local step on 8 samples, sleepy.py:make \(650 par", text, re.M)
    for said in ("step_s", "sleepy.py:make (1,300 parameters)", "latency, tcp", "receive 3 numbers, ipc, CPU"):
        assert said in done.stdout
    assert "note: mine.toml sets compute.message_s itself, which wins over its base" in done.stderr
    assert "measuring" not in done.stderr

    (tmp_path / "whole.toml").write_text("base = ['mine.toml', 'calibrated.toml']\nlinks.loss = 0.25")
    (run,) = load(tmp_path / "whole.toml")
    assert (run.compute.step_s, run.compute.message_s) == (compute["step_s"], compute["message_s"])
    assert run.compute.slowdown == tuple(compute["slowdown"])
    assert (run.links.latency_s, run.links.loss) == (links["latency_s"], 0.25)


FAILING = """
from dataclasses import dataclass

import sheafgossip as sg


@dataclass(frozen=True)
class Failing(sg.Algorithm):
    def round(self, client, peers):
        if peers.round == 3:
            raise ValueError("no more")
"""


@pytest.mark.parametrize("interrupted", [True, False])
def test_cut_off_or_failed_it_leaves_no_process_and_no_file(begin, tmp_path, interrupted):
    here, temporary = tmp_path / "here", tmp_path / "t"
    here.mkdir()
    temporary.mkdir()
    (here / "failing.py").write_text(FAILING)
    own = "" if interrupted else "algorithm.use = 'failing.py:Failing'"
    (here / "mine.toml").write_text(small(own, algorithm="" if own else "d-psgd"))
    going = begin("calibrate", "mine.toml", cwd=here, env=os.environ | {"TMPDIR": str(temporary)})
    if interrupted:
        going.until(lambda: len(going.processes()) >= 7)  # launcher, fork server, collector, clients
        said = going.ends(130, going.signal)
    else:
        said = going.ends(1)
        line = 'raise ValueError("no more")'
        assert (
            f"error: client 0 failed in round 3: ValueError: no more (failing.py, line 11, in round: {line})\n" in said
        )
    assert list(temporary.iterdir()) == []
    assert {path.name for path in here.iterdir()} == {"failing.py", "mine.toml"}


def test_a_rate_that_latency_hides_is_none_and_a_list_that_repeats_is_told_once():
    rate = calibration._rate("bandwidth", np.array([0.25, 0.5, 1.0]), 0.0, 1000)
    assert (rate.value, rate.error, rate.least, rate.repeats) == (2000.0, 1000.0, 1000.0, 3)
    hidden = calibration._rate("bandwidth", np.array([0.25, 0.5, 1.0]), 0.5, 1000)
    assert calibration.Calibration([hidden]).tables["links"] == {"bandwidth": 0.0}  # unlimited
    assert calibration._shortest([1.0, 2.0, 1.0, 2.0, 1.0]) == [1.0, 2.0]
    assert calibration._shortest([1.0, 2.0, 2.0]) == [1.0, 2.0, 2.0]


def test_clients_that_share_a_process_are_not_measured():
    with pytest.raises(sg.Error, match="--engine threads: clients that share"):
        sg.calibrate({"clients": 2}, engine="threads")
