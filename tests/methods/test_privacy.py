"""Runs with [privacy]: what they tell, that they repeat, and which of them are refused."""

import json
import math
import re
from contextlib import suppress

import numpy as np
import pytest

from runs import assert_same, assert_same_states, command, run_here, run_here_again, small
from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.prepare import preparation
from sheafgossip.launcher.prepare.accountant import epsilon
from sheafgossip.launcher.prepare.assignments import Site
from sheafgossip.launcher.prepare.preparation import work_out
from sheafgossip.launcher.prepare.privacy import seen_by_one
from sheafgossip.metrics.store import RunFolderError
from sheafgossip.node.algorithms import ALGORITHMS
from sheafgossip.node.privacy import NotPrivate
from sheafgossip.topology.errors import UserError

from .test_every_method import METHODS, text_of

pytestmark = pytest.mark.usefixtures("one_fork_server")

STEPS = 'training = { work = "steps", steps = 2, batch_size = 8 }'
KEYS = "privacy = { clip = 1.0, noise = 0.8, delta = 1e-3 }"
MLP = 'model = { kind = "mlp", hidden = [5] }'
CRASH = 'faults = [{ kind = "crash", clients = [2], at_round = 2, restart_after = 1 }]\ncompute.step_s = 0.005\n'
FEW = small(STEPS, KEYS, MLP, "checkpoints.every = 2", rounds=5)


def told_in(folder):
    return folder.rows("SELECT node, epsilon, delta, noise, sampling, gradients FROM privacy ORDER BY node")


def prepare(file):
    (config,) = load(file)
    work_out(config, file.parent / "run", Site(file.parent, "ipc:///nowhere"), lambda *_: 1.0)


def refusal(tmp_path, text):
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(UserError) as error:
        prepare(tmp_path / "config.toml")
    return str(error.value)


# -- noise that cancels ------------------------------------------------------------------------------------------------


def test_noise_of_pairs_changes_every_model_and_not_their_mean(run_in_threads):
    """In the first round all start alike, so that gradients are what they are without it."""
    thetas = []
    for correlated in (0.0, 3.0):
        keys = f"privacy = {{ clip = 1.0, noise = 0.5, delta = 1e-3, correlated = {correlated} }}"
        model = 'model = { kind = "mlp", hidden = [5], dtype = "float64" }'
        folder = run_in_threads(small(STEPS.replace("steps = 2", "steps = 1"), keys, model, rounds=1))
        thetas.append(folder.thetas(1))
    assert np.abs(thetas[1] - thetas[0]).max(axis=1).min() > 0.01
    np.testing.assert_allclose(thetas[1].mean(axis=0), thetas[0].mean(axis=0), atol=1e-13)


@pytest.mark.parametrize("correlated", [0.3, 5.0])
def test_what_another_client_sees_is_a_gaussian_of_the_noise_that_it_does_not_know(correlated):
    """Held against the mechanism written out: each gradient as a sum of independent normal variables."""
    edges, b, noise = [(0, 1), (1, 2), (2, 3), (3, 0), (1, 3), (3, 4)], [8, 8, 3, 5, 8], 0.7
    seen = []
    for i in range(5):
        told = []
        for j in set(range(5)) - {i}:
            unknown = [pair for pair in edges if j not in pair]
            A = np.zeros((5, 5 + len(unknown)))
            A[range(5), range(5)] = noise / np.array(b)
            for column, (k, m) in enumerate(unknown, 5):
                A[k, column], A[m, column] = np.array([1, -1]) * correlated / max(b[k], b[m])
            moved = np.eye(5)[i] / b[i]
            told.append(moved @ np.linalg.lstsq(A @ A.T, moved, rcond=None)[0])  # squared distance over deviation
        seen.append(max(told) ** -0.5)
    np.testing.assert_allclose(seen_by_one(edges, b, noise, correlated), seen, rtol=1e-9)
    assert seen[4] == pytest.approx(noise)  # its only neighbour knows all of its pairs
    assert min(seen[:4]) > noise


@pytest.mark.parametrize(
    ("algorithm", "change", "said"),
    [
        ("fedavg", "", "needs neighbours that stay the same"),
        ("d-psgd", CRASH + 'time.clock = "virtual"', "a client that crashes does rounds again"),
    ],
)
def test_noise_of_pairs_is_refused_where_it_would_not_cancel(tmp_path, algorithm, change, said):
    keys = "privacy = { clip = 1.0, noise = 0.5, delta = 1e-3, correlated = 1.0 }"
    topology = "" if algorithm == "fedavg" else "ring"
    assert said in refusal(tmp_path, small(STEPS, keys, MLP, change, topology=topology, algorithm=algorithm))


# -- which algorithms --------------------------------------------------------------------------------------------------


def variants():
    """One of each built-in algorithm, and selective sheaf with all that it may do."""
    first = {name: next(method for method in METHODS if method.partition(",")[0] == name) for name in ALGORITHMS}
    assert len(first) == len(ALGORITHMS)
    return [(method, "") for method in first.values() if method != "fedbn"] + [
        ("selective-sheaf", "algorithm.restart=true"),
        ("per-fedavg", 'algorithm.variant="hessian-free"'),
        ("ghn", 'algorithm.graph="topology"'),
    ]


@pytest.mark.parametrize(("method", "setting"), variants())
def test_an_algorithm_looks_at_samples_exactly_where_its_traits_say_so(tmp_path, monkeypatch, method, setting):
    """Nothing is refused beforehand here: its clients tell."""
    monkeypatch.setattr(preparation, "check_privacy", lambda config: None)
    text = re.sub(r"\nfaults = .*\n", "\n", text_of(method)).replace("MOMENTUM", "0")
    (tmp_path / "config.toml").write_text(f"{text}\n{KEYS}\n")
    overrides = ["rounds=3", "clients=5", "data.samples=120", "transport.codec=none"]
    (config,) = load(tmp_path / "config.toml", [*overrides, *filter(None, [setting])])
    told = ""
    with suppress(NotPrivate):  # in ``facts``
        told = "[privacy] allows local work noised gradients alone: "
        (finished,) = run_here([config], tmp_path / "run", "threads")
        told = "" if finished.outcome.status == "finish" else str(finished.outcome)
    looks = "[privacy] allows local work noised gradients alone: " in told
    assert looks or not told
    assert looks == config.algorithm.traits.reads_samples


def test_one_that_looks_at_samples_is_refused_before_the_start(tmp_path):
    told = refusal(tmp_path, small(KEYS, topology="", algorithm="ifca"))
    why = "algorithm.name = 'ifca' with these settings uses samples otherwise than by gradients"
    assert told.startswith(f"privacy.clip = 1.0: {why}; allowed: 0; or one of 'local', 'd-psgd'")
    assert "'pens'" not in told


# -- the same bits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", ["", f'{CRASH}time.clock = "virtual"', 'time.clock = "wall"\ncompute.step_s = 0.001'])
def test_processes_have_the_bits_of_threads(run, run_in_processes, keys):
    text = FEW.replace("checkpoints", f"{keys}\ncheckpoints")
    one, other = run(text), run_in_processes(text)
    for round in (2, 4, 5):
        ours, theirs = one.theta(round), other.theta(round)
        assert {i: each.tobytes() for i, each in ours.items()} == {i: each.tobytes() for i, each in theirs.items()}
    assert told_in(one) == told_in(other) != []


@pytest.mark.parametrize("keys", ["", f'{CRASH}time.clock = "virtual"'])
def test_an_interrupted_run_ends_with_the_bits_of_an_unbroken_one(run, tmp_path, keys):
    whole = run(f"{keys}\n{FEW}")
    broken = whole.copy(tmp_path / "broken")
    broken.cut_after(3)
    run_here_again(broken, "threads")
    assert_same(broken, whole)
    assert told_in(broken) == told_in(whole)


def test_on_the_wall_clock_nothing_goes_on_since_a_noise_would_be_there_on_two_models(run, tmp_path):
    broken = run(f'time.clock = "wall"\ncompute.step_s = 0.001\n{FEW}').copy(tmp_path / "broken")
    broken.cut_after(3)
    with pytest.raises(RunFolderError, match="would be done again with the same noise"):
        run_here_again(broken, "threads")


# -- what is told ------------------------------------------------------------------------------------------------------


def test_epsilon_of_each_client_is_on_record_and_the_largest_in_the_summary(run_in_processes, tmp_path):
    text = small(
        STEPS, "privacy = { clip = 1.0, noise = 1.5, delta = 1e-3 }", 'data.partition = "quantity"', samples=300
    )
    folder = run_in_processes(text)
    n = {i: len(shard["y_train"]) for i, shard in folder.shards().items()}
    assert len(set(n.values())) > 1
    expected = {i: epsilon({(8 / n_i, 1.5): 6}, 1e-3) for i, n_i in n.items()}
    rows = told_in(folder)
    assert {row[0]: row[1] for row in rows} == pytest.approx(expected)
    assert {row[0]: row[2:] for row in rows} == {i: (1e-3, 1.5, 8 / n_i, 6) for i, n_i in n.items()}
    summary = json.loads(command("summary", folder.path, "--json").stdout)
    assert summary["runs"][0]["privacy"] == {"epsilon": max(expected.values()), "delta": 1e-3, "noise": 1.5}
    shown = command("summary", folder.path).stdout
    assert f"{max(expected.values()):.2f} (delta 0.001, noise 1.5)" in shown


def test_epsilon_finds_about_the_least_noise_that_keeps_it_and_a_run_with_that_noise_is_the_same(run):
    text = small(STEPS, "privacy = { clip = 1.0, epsilon = 3.0, delta = 1e-3 }")
    folder = run(text)
    ((found, noise),) = folder.rows("SELECT max(epsilon), max(noise) FROM privacy")
    assert 2.98 < found <= 3
    same = run(text.replace("epsilon = 3.0", f"noise = {noise}"))
    assert_same_states(same, folder)
    assert told_in(same) == told_in(folder)


@pytest.mark.parametrize(
    ("algorithm", "draws"),
    [
        ("pfedme", {(0.2, 0.8 / math.sqrt(5)): 6}),  # five on each mini-batch
        ("apfl", {(0.2, 0.8 / math.sqrt(2)): 6}),
        ("ditto", {(0.2, 0.8): 12}),
        ("dispfl", {(0.2, 0.8): 6, (1.0, 0.8): 2}),  # and the search of masks from the second round on
        ("d-psgd", {(0.2, 0.8): 6}),
    ],
)
def test_each_algorithm_is_accounted_by_the_gradients_that_it_takes(tmp_path, algorithm, draws):
    """Of 40 samples, 8 in the mean."""
    text = small(STEPS, KEYS, samples=200, topology="", algorithm=algorithm)
    (tmp_path / "config.toml").write_text(text)
    (config,) = load(tmp_path / "config.toml", ["data.test_fraction=0.2"])
    told = work_out(config, tmp_path / "run", Site(tmp_path, "ipc:///nowhere"), None).privacy
    assert [each.epsilon for each in told] == pytest.approx([epsilon(draws, 1e-3)] * 4)


def test_only_rounds_count_in_which_a_client_takes_part(tmp_path):
    """And one more for a crash, which may break one off."""
    keys = CRASH.replace("clients = [2]", "clients = [0]") + 'time.clock = "virtual"\ntime.silence = "skip"\n'
    text = keys + small(STEPS, KEYS, rounds=9, topology="", algorithm="fedavg")
    (tmp_path / "config.toml").write_text(text)
    (config,) = load(tmp_path / "config.toml", ["algorithm.fraction=0.5", "time.deadline_s=1.0"])
    told = work_out(config, tmp_path / "run", Site(tmp_path, "ipc:///nowhere"), None).privacy
    rounds = [sum(i in config.algorithm.participants(config, k) for k in range(1, 10)) for i in range(4)]
    assert sum(rounds) == 18
    assert [each.gradients for each in told] == [2 * (count + (i == 0)) for i, count in enumerate(rounds)]


def test_more_rounds_have_a_larger_epsilon_unless_it_has_found_the_noise(run, tmp_path):
    folder = run(FEW).copy(tmp_path / "longer")
    before = told_in(folder)
    run_here_again(folder, "threads", rounds=9)
    assert all(now[1] > then[1] and now[-1] == 18 for now, then in zip(told_in(folder), before, strict=True))
    assert_same_states(folder, run(FEW, "rounds=9"), 9)
    target = run(FEW.replace("noise = 0.8", "epsilon = 5.0")).copy(tmp_path / "target")
    with pytest.raises(RunFolderError, match=r"privacy\.epsilon has found the noise for so many"):
        run_here_again(target, "threads", rounds=9)


def test_without_noise_nothing_is_told(run):
    folder = run(FEW.replace("noise = 0.8", "noise = 0.0"))
    assert told_in(folder) == []
    assert np.isfinite(folder.thetas(5)).all()


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("clip = 1.0", "privacy: noise and epsilon: clip needs one of them; epsilon finds the noise"),
        ("clip = 1.0, noise = 1.0, epsilon = 2.0", "privacy: noise and epsilon: they exclude each other"),
        ("clip = 1.0, noise = -1.0", "privacy.noise = -1.0: must be greater than or equal to 0"),
        ("clip = 1.0, noise = 1.0, delta = 0.1", "client 0 has 19 training samples"),
        ("clip = 1.0, epsilon = 1e-6, delta = 1e-6", "noise of 100000 times privacy.clip does not do for that"),
    ],
)
def test_what_would_mean_nothing_is_refused(tmp_path, keys, told):
    assert told in refusal(tmp_path, small(f"privacy = {{ {keys} }}"))


@pytest.mark.parametrize("keys", ["noise = 1.0", "epsilon = 2.0", "delta = 1e-6"])
def test_what_has_no_effect_without_clip_is_refused(tmp_path, keys):
    (tmp_path / "config.toml").write_text(small(f"privacy = {{ {keys} }}"))
    done = command("run", tmp_path / "config.toml", "--out", tmp_path / "run", code=None)
    told = done.stdout + done.stderr
    assert "privacy." in told
    assert "has no effect without privacy.clip" in told


MODULES = """
import torch
from torch import nn

class Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)
    def forward(self, x):
        x = x.flatten(1)
        return self.layer(x - x.mean(0))

class Counting(Mixing):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(64))
    def forward(self, x):
        if self.training:
            self.seen += x.detach().flatten(1).sum(0)
        return self.layer(x.flatten(1))

def mixing(shape, outputs): return Mixing()
def counting(shape, outputs): return Counting()
def normal(shape, outputs): return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
def dropping(shape, outputs): return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 10))
"""


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("mixing", "mixes the samples of a mini-batch"),
        ("counting", "keeps something of samples in its buffer seen"),
        ("normal", "mixes the samples of a mini-batch"),
        ("dropping", ""),
    ],
)
def test_a_module_that_does_not_take_each_sample_by_itself_is_refused(tmp_path, name, told):
    (tmp_path / "own.py").write_text(MODULES)
    text = small(KEYS, f'model.use = "own.py:{name}"')
    if told:
        assert f"model.use = 'own.py:{name}': {told}" in refusal(tmp_path, text).replace(f"{tmp_path}/", "")
        return
    (tmp_path / "config.toml").write_text(text)
    (config,) = load(tmp_path / "config.toml")
    (finished,) = run_here([config], tmp_path / "run", "threads")
    assert finished.outcome.status == "finish"


def test_an_algorithm_of_ones_own_that_sends_the_classes_of_samples_is_refused(tmp_path):
    (tmp_path / "own.py").write_text("""
from dataclasses import dataclass
import sheafgossip as sg

@dataclass(frozen=True)
class Telling(sg.Algorithm):
    def facts(self, run):
        return sg.Facts({i: list(classes) for i, classes in enumerate(run.classes)})
    def round(self, client, peers):
        client.learn()
""")
    told = refusal(tmp_path, small(KEYS, 'algorithm.use = "own.py:Telling"', algorithm=""))
    assert told == "[privacy] allows local work noised gradients alone: RunFacts.classes tells of samples"
