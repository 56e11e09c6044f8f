"""What planned time counts of local work is what clients computed: gradients and passes forward on record, by round."""

import math
from dataclasses import replace

import pytest

from runs import RunFolder
from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.run.run import Run
from sheafgossip.launcher.studies.runner import Means, preparation
from sheafgossip.node.algorithms import ALGORITHMS
from sheafgossip.node.algorithms.base import work_of

from . import normalized

CLIENTS, SAMPLES, STEPS, BATCH, ROUNDS = 4, 40, 3, 8, 6  # five mini-batches are a pass
CONFIG = f"""
clients = {CLIENTS}
rounds = {ROUNDS}
topology.kind = "complete"
data = {{ samples = 200, test_fraction = 0.2 }}
training = {{ work = "steps", steps = {STEPS}, batch_size = {BATCH} }}
evaluation.every = 0
time.clock = "virtual"
compute.step_s = 1.0
"""
MLP = ('model.kind="mlp"', "model.hidden=[8]")
SETTINGS = {
    "fedbn": (f'model.use="{normalized.__file__}:make"',),
    "fedrep": ("algorithm.head_passes=2",),
    "dfedpgp": ("algorithm.head_passes=3",),
    "pfedme": ("algorithm.inner_steps=3",),
    "pens": ("algorithm.sample=2", "algorithm.first_stage=3"),
    "dac": ("algorithm.sample=2",),
    "dpfl": ("algorithm.choose_round=3",),  # held out are 8 samples
    "epidemic": ("algorithm.k=1",),
    "divshare": ("algorithm.fragments=2",),
    "teleportation": ("algorithm.active=2",),
    "flt": ("algorithm.embedding=4", 'algorithm.manifold="pca"', "algorithm.centroids=2"),
    "ghn": ("algorithm.embedding_rounds=2",),
    "shn": ("algorithm.embedding_rounds=2",),
}
MORE = {
    "fedrep, neighbours": ("algorithm.server=false",),
    "per-fedavg, hessian-free": ('algorithm.variant="hessian-free"',),
    "ditto, some": ("algorithm.fraction=0.5",),
}


@pytest.mark.parametrize("method", [*ALGORITHMS, *MORE])
def test_declared_and_planned_is_what_a_run_computes(tmp_path, method):
    name = method.partition(",")[0]
    (tmp_path / "config.toml").write_text(CONFIG)
    model = () if name == "fedbn" else MLP
    settings = SETTINGS.get(method, MORE.get(method, ()))
    (config,) = load(tmp_path / "config.toml", (f"algorithm.name={name}", *model, *settings))
    with Means("threads").open(config) as engine:
        prepared = preparation(engine)(config, tmp_path / "run")
        probes = tuple(replace(each, probes=True) for each in prepared.assignments)  # they record each round's work
        assert Run(replace(prepared, assignments=probes), engine, lambda *_: None)().status == "finish"
    architecture = probes[0].architecture
    query = "SELECT node, round, part, flops FROM round JOIN work USING (node, wall_s) WHERE part != 'maps'"
    flops = {(node, round, part): count for node, round, part, count in RunFolder(tmp_path / "run").rows(query)}

    def computed(client, round, part, operations):
        before, after = (flops.get((client, each, part), 0) for each in (round - 1, round))
        assert (after - before) % operations == 0
        return (after - before) // operations

    algorithm = config.algorithm
    for client in range(CLIENTS):
        planned = prepared.plan.schedules[client].compute
        for round in range(2, ROUNDS):  # beginning and final evaluation are beside the rounds
            gradients = computed(client, round, "gradient", architecture.gradient_flops)
            passes = computed(client, round, "evaluation", architecture.evaluation_flops)
            if not gradients:
                assert passes == 0
                assert algorithm.traits.meets or math.isnan(planned[round - 1])
                continue
            work = algorithm.work(probes[client], round)
            assert gradients == STEPS * BATCH * work.gradients + SAMPLES * work.full_gradients
            most = STEPS * BATCH * work.passes + SAMPLES * work.full_passes
            assert passes <= most + 1e-9 if method == "dpfl" and round > algorithm.choose_round else passes == most
            if not algorithm.traits.meets:
                assert planned[round - 1] == pytest.approx(gradients / BATCH + most / 3 / BATCH)
                assert planned[round - 1] == work_of(algorithm, probes[client], SAMPLES, round)[0]
