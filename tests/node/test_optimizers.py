"""Local steps against torch's own optimizers, and how the learning rate goes on."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from sheafgossip.node.model.architecture import Architecture
from sheafgossip.node.model.learner import Learner
from sheafgossip.node.settings import OptimizerSettings, Training

SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW


def of_torch(name: str, **options):
    return {"optimizer": OptimizerSettings(f"torch.optim:{name}", options)}, getattr(torch.optim, name), options


OPTIMIZERS = {
    "plain": ({}, SGD, {}),
    "momentum": ({"momentum": 0.9}, SGD, {"momentum": 0.9}),
    "adam": ({"optimizer": "adam"}, ADAM, {}),
    "adam, other means": ({"optimizer": "adam", "betas": (0.5, 0.8)}, ADAM, {"betas": (0.5, 0.8)}),
    "adamw": ({"optimizer": "adamw", "weight_decay": 0.3}, ADAMW, {"weight_decay": 0.3}),
    "clipped": ({"clip": 0.3}, SGD, {}),
    "clipped adam": ({"clip": 0.3, "optimizer": "adam"}, ADAM, {}),
    "adagrad": of_torch("Adagrad", lr_decay=0.1),
    "rmsprop": of_torch("RMSprop", momentum=0.5, centered=True),
    "nadam": of_torch("NAdam"),
    "torch's adamw": of_torch("AdamW", weight_decay=0.3, amsgrad=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("pulled", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-4)])
def test_steps_are_those_of_torch_also_after_a_restart(with_shard, name, pulled, dtype, tolerance):
    keys, kind, options = OPTIMIZERS[name]
    training = {"work": "steps", "steps": 3, "batch_size": 8, "alpha": 0.05} | keys
    assignment = with_shard(Architecture("mlp", (4,), 3, hidden=(5,)), 40, training=training, model={"dtype": dtype})
    learner, reference = Learner(assignment), Learner(assignment)
    theta = torch.from_numpy(reference.theta.copy()).requires_grad_()
    torchs, pull = kind([theta], lr=0.05, **options), np.linspace(-1, 1, len(theta)).astype(dtype)
    for round in range(4):
        learner.learn(*([pull, 0.1] if pulled and name != "momentum" else []))
        if round == 1:  # another process goes on from what is saved
            saved = {name: array.copy() for name, array in learner.state().items()}
            learner = Learner(assignment)
            learner.load(saved)
        for batch in reference.batches():
            reference.theta[:] = theta.detach().numpy()
            theta.grad = torch.from_numpy(reference.gradient(batch)[1].copy())
            if "clip" in keys:
                theta.grad *= min(1.0, 0.3 / float(theta.grad.norm()))
            if pulled and name != "momentum":
                theta.grad += 0.1 * torch.from_numpy(pull)
            torchs.step()
    np.testing.assert_allclose(learner.theta, theta.detach().numpy(), rtol=tolerance, atol=tolerance)


def test_a_client_has_nothing_to_load_for_an_optimizer_of_torch():
    """The fork server has."""
    made = "torch.optim.Adagrad([x := torch.zeros(1, requires_grad=True)], lr=0.1)"
    code = f"""import sys, torch, sheafgossip.node.model.own_optimizer; before = set(sys.modules)
optimizer = {made}; x.grad = x.detach(); optimizer.step(); print(*set(sys.modules) - before)"""
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert [name for name in loaded.split() if name.startswith("torch._")] == []


def test_schedules():
    constant, step = Training(alpha=0.8), Training(alpha=0.8, schedule="step", schedule_every=3, schedule_factor=0.5)
    cosine, rounds = Training(alpha=0.8, schedule="cosine"), range(1, 9)
    assert [constant.alpha_in(round, 8) for round in rounds] == [0.8] * 8
    assert [step.alpha_in(round, 8) for round in rounds] == [0.8] * 3 + [0.4] * 3 + [0.2] * 2
    expected = [0.4 * (1 + math.cos(math.pi * k / 8)) for k in range(8)]
    assert [cosine.alpha_in(round, 8) for round in rounds] == pytest.approx(expected)


def test_a_round_learns_at_its_own_rate(with_shard):
    training = {"alpha": 0.5, "schedule": "step", "schedule_every": 2, "schedule_factor": 0.1}
    learner = Learner(with_shard(Architecture("logistic", (4,), 3), 40, training=training))
    for round in range(1, 6):
        learner.enter(round)
        before, (_, gradient) = learner.theta.copy(), learner.gradient()
        expected = before - 0.5 * 0.1 ** ((round - 1) // 2) * gradient
        learner.learn()
        np.testing.assert_allclose(learner.theta, expected, rtol=1e-12)
