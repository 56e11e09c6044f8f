"""What is recorded of a method with a server in mid-run is what a run that ends there records."""

from __future__ import annotations

import re
import subprocess

import numpy as np
import pytest

from sheafgossip.metrics.verification import compare_with_kernel

from .conftest import CLI, RunFolder

CLIENTS, ROUNDS, END = 10, 7, 5
CONFIG = f"""
clients = {CLIENTS}
rounds = {ROUNDS}
seed = 3
[data]
samples = 500
partition = "classes"
classes_per_client = 2
[training]
work = "steps"
steps = 4
alpha = 0.3
[algorithm]
fraction = 0.2
"""
OPTIONS = {
    "fedavg": "",
    "ditto": "",
    "pfedme": "lam = 1.5\neta = 0.3",
    "per-fedavg": "alpha = 0.2",
    "flt": 'embedding = 8\nmanifold = "pca"\ncase = "related"\ncentroids = 2',
    "fedsak": "",
    "fedavg-c": 'share = "head"\n[model]\nkind = "mlp"\nhidden = [16]',
    "sfmtl-graph": 'lam = 0.5\n[model]\nkind = "mlp"\nhidden = [16]',
    "pfedhn": "eta = 0.01\nhidden = 16\nembedding = 4",
    "ghn": "eta = 0.01\nhidden = 16\nembedding = 4\nembedding_rounds = 3",
    "shn": "eta = 0.01\nhidden = 16\nembedding = 4\nembedding_rounds = 3",
}
FIGURES = "test_loss, test_metric, global_metric"


def config_of(name: str) -> str:
    text = f"{CONFIG}name = {name!r}\n{OPTIONS[name]}\n"
    if name == "flt":  # for speed
        return text.replace(f"clients = {CLIENTS}", "clients = 4")
    if name == "sfmtl-graph":  # communities are of clients that share classes
        return text.replace("classes_per_client = 2", "classes_per_client = 8")
    return text


def ending(text: str, round: int) -> str:
    return text.replace(f"rounds = {ROUNDS}", f"rounds = {round}")


def figures(folder, round: int) -> list[tuple]:
    return folder.rows(
        f"SELECT node, {FIGURES} FROM round WHERE round = {round} AND test_metric IS NOT NULL ORDER BY node"
    )


def assert_alike(long, short, end: int) -> None:
    """Also in all rounds before: neither run knows in them when it will end."""
    for round in range(end + 1):
        assert figures(long, round) == figures(short, round), round
    found = long.payload()
    for edge, sent in short.payload().items():
        if edge[2] < end:  # in which all download
            assert found[edge] == sent
    assert long.rows("SELECT count(*) FROM node WHERE role = 'client'") == [(len(figures(long, end)),)]


@pytest.mark.parametrize("name", OPTIONS)
def test_each_method_has_in_mid_run_the_figures_of_a_run_that_ends_there(run, name):
    both = run(config_of(name) + "".join(f'[[compare]]\nname = "{end}"\nrounds = {end}\n' for end in (ROUNDS, END)))
    assert_alike(RunFolder(both.path / str(ROUNDS)), RunFolder(both.path / str(END)), END)


def test_a_target_is_reached_in_the_round_in_which_a_run_that_ends_there_has_reached_it(run):
    long = run(config_of("fedavg"))
    means = dict(long.rows("SELECT round, mean_test_metric FROM round_total"))
    best = max(range(1, ROUNDS + 1), key=means.get)
    short = run(ending(config_of("fedavg"), best))
    for folder in (long, short):
        told = subprocess.run(
            [*CLI, "summary", str(folder.path), "--target", str(means[best])], capture_output=True, text=True
        )
        assert re.search(rf"rounds to reach .* {best} ", told.stdout), told.stdout


def test_the_models_that_are_shown_for_evaluation_are_no_traffic_and_change_no_model(run):
    text = config_of("fedavg") + '[checkpoints]\nevery = 1\n[transport]\ncodec = "int8"\n'
    shown, plain = run(text), run(text + "[evaluation]\nevery = 0\n")
    assert shown.payload() == plain.payload()
    for round in range(ROUNDS + 1):
        for node, arrays in plain.states(round).items():
            for name, array in arrays.items():
                assert np.array_equal(array, shown.states(round)[node][name]), (round, node, name)
    messages = "SELECT src, sum(messages) FROM overhead WHERE kind = 'evaluation' GROUP BY src"
    answered = {(dst, round) for src, dst, round in shown.payload() if src == CLIENTS}
    assert shown.rows(messages) == [(CLIENTS, CLIENTS * ROUNDS - len(answered))]
    assert plain.rows(messages) == []
    assert_alike(shown, run(ending(text, END)), END)  # what is shown is encoded as the download would be


PLANNED = config_of("fedavg") + '[time]\nclock = "virtual"\n[compute]\nstep_s = 0.1\n[stragglers]\nkind = "pareto"\n'


def test_on_the_virtual_clock_too_and_no_sooner_than_the_server_has_the_model(run):
    long = run(PLANNED)
    assert_alike(long, run(ending(PLANNED, END)), END)
    server = dict(long.rows(f"SELECT round, virtual_s FROM round WHERE node = {CLIENTS}"))
    clients = long.rows(f"SELECT round, virtual_s FROM round WHERE node < {CLIENTS}")
    assert all(virtual_s >= server[round] for round, virtual_s in clients)


def test_who_was_away_or_was_not_heard_is_shown_the_common_model_of_the_round(run):
    """Losses, a crash and a deadline: all clients that do a round evaluate what the server has made in it."""
    text = PLANNED.replace('"pareto"', '"pareto"\nfraction = 0.5').replace("[compute]", "deadline_s = 1.0\n[compute]")
    folder = run(
        text
        + "[checkpoints]\nevery = 1\n[links]\nloss = 0.2\n[model]\ndtype = 'float64'\n"
        + '[[faults]]\nkind = "crash"\nclients = [2]\nat_round = 3\nrestart_after = 2\n'
    )
    shards = folder.shards()
    for round in range(1, ROUNDS + 1):
        w = folder.theta(round)[CLIENTS]
        for node, _, metric, common in figures(folder, round):
            assert metric == common == accuracy(w, shards[node]), (round, node)
    assert folder.rows("SELECT count(*) FROM round WHERE node = 2") < [(ROUNDS + 1,)]


def test_on_the_wall_clock_a_client_that_was_not_drawn_has_a_common_model_no_older_than_the_round(run):
    folder = run(PLANNED.replace("virtual", "wall").replace("0.1", "0.01") + "[checkpoints]\nevery = 1\n")
    shards, common = folder.shards(), {round: folder.theta(round)[CLIENTS] for round in range(ROUNDS + 1)}
    for round in range(ROUNDS + 1):
        for node, _, metric, of_common in figures(folder, round):
            later = {accuracy(common[at], shards[node]) for at in range(round, ROUNDS + 1)}
            assert metric == of_common in later, (round, node)


def test_the_bytes_of_evaluation_are_those_of_the_kernel(run):
    folder = run(config_of("fedavg") + '[transport]\nprotocol = "tcp"\n[measuring]\nkernel = true\n')
    assert folder.rows("SELECT count(*) > 0 FROM overhead WHERE kind = 'evaluation'") == [(1,)]
    comparison = compare_with_kernel(folder.path)
    assert comparison.connections == CLIENTS
    assert comparison.differing == comparison.loose_ends == ()


def accuracy(theta: np.ndarray, shard: dict[str, np.ndarray]) -> float:
    x, y = shard["x_test"].reshape(len(shard["y_test"]), -1).astype(float), shard["y_test"]
    weights, biases = np.split(theta, [10 * x.shape[1]])
    return float((np.argmax(x @ weights.reshape(10, -1).T + biases, axis=1) == y).mean())


@pytest.mark.parametrize("text", [config_of("per-fedavg"), PLANNED], ids=["per-fedavg", "planned"])
def test_an_interrupted_run_records_what_an_unbroken_one_does(cut, run, text):
    text += "[checkpoints]\nevery = 3\n"
    broken = cut(text, round=6)
    broken.resume()
    whole = run(text)
    every = f"SELECT round, node, {FIGURES}, virtual_s FROM round ORDER BY round, node"
    assert broken.rows(every) == whole.rows(every)
    evaluation = "SELECT src, dst, messages, wire_bytes FROM overhead WHERE kind = 'evaluation' ORDER BY dst"
    assert broken.rows(evaluation) == whole.rows(evaluation) != []
