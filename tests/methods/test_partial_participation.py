"""Where a server draws clients for each round, all evaluate, with the models of the round."""

import re

from foreign import sheafgossip
from oracles import accuracy
from sheafgossip.metrics.verification import compare_with_kernel

from .test_every_method import SHOWN, assert_alike, figures

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
name = "fedavg"
fraction = 0.2
"""
PLANNED = CONFIG + '[time]\nclock = "virtual"\n[compute]\nstep_s = 0.1\n[stragglers]\nkind = "pareto"\n'


def test_a_target_is_reached_in_the_round_in_which_a_run_that_ends_there_has_reached_it(run):
    long = run(CONFIG)
    means = dict(long.rows("SELECT round, mean_test_metric FROM round_total"))
    best = max(range(1, ROUNDS + 1), key=means.get)
    for folder in (long, run(CONFIG, f"rounds={best}")):
        _, told, _ = sheafgossip("summary", folder.path, "--target", means[best])
        assert re.search(rf"rounds to reach .* {best} ", told), told


def test_the_models_that_are_shown_for_evaluation_are_no_traffic_and_change_no_model(run):
    overrides = ("checkpoints.every=1", "transport.codec=int8")
    shown, plain = run(CONFIG, *overrides), run(CONFIG, *overrides, "evaluation.every=0")
    assert shown.payload() == plain.payload()
    for round in range(ROUNDS + 1):
        for node, arrays in plain.states(round).items():
            for name, array in arrays.items():
                assert array.tobytes() == shown.states(round)[node][name].tobytes(), (round, node, name)
    answered = {(dst, round) for src, dst, round in shown.payload() if src == CLIENTS}
    messages = [(src, count) for src, _, count, _ in shown.rows(SHOWN)]
    assert {src for src, _ in messages} == {CLIENTS}
    assert sum(count for _, count in messages) == CLIENTS * ROUNDS - len(answered)
    assert plain.rows(SHOWN) == []
    assert_alike(shown, run(CONFIG, *overrides, f"rounds={END}"), END)  # it is encoded as the download would be


def test_on_the_virtual_clock_too_and_no_sooner_than_the_server_has_the_model(run):
    long = run(PLANNED)
    assert_alike(long, run(PLANNED, f"rounds={END}"), END)
    server = dict(long.rows(f"SELECT round, virtual_s FROM round WHERE node = {CLIENTS}"))
    clients = long.rows(f"SELECT round, virtual_s FROM round WHERE node < {CLIENTS}")
    assert all(virtual_s >= server[round] for round, virtual_s in clients)


def test_who_was_away_or_was_not_heard_is_shown_the_common_model_of_the_round(run):
    """Losses, a crash and a deadline: all clients that do a round evaluate what the server has made in it."""
    crash = '[[faults]]\nkind = "crash"\nclients = [2]\nat_round = 3\nrestart_after = 2\n'
    overrides = ("stragglers.fraction=0.5", "time.deadline_s=1.0", "links.loss=0.2", "model.dtype=float64")
    folder = run(PLANNED + crash, *overrides, "checkpoints.every=1")
    shards = folder.shards()
    for round in range(1, ROUNDS + 1):
        w = folder.theta(round)[CLIENTS]
        for node, _, metric, common in figures(folder, round):
            assert metric == common == accuracy(w, shards[node]), (round, node)
    assert folder.rows("SELECT count(*) FROM round WHERE node = 2") < [(ROUNDS + 1,)]


def test_on_the_wall_clock_a_client_that_was_not_drawn_has_a_common_model_no_older_than_the_round(run):
    folder = run(PLANNED, "time.clock=wall", "compute.step_s=0.01", "checkpoints.every=1")
    shards, common = folder.shards(), {round: folder.theta(round)[CLIENTS] for round in range(ROUNDS + 1)}
    for round in range(ROUNDS + 1):
        for node, _, metric, of_common in figures(folder, round):
            later = {accuracy(common[at], shards[node]) for at in range(round, ROUNDS + 1)}
            assert metric == of_common in later, (round, node)


def test_the_bytes_of_evaluation_are_those_of_the_kernel(run_in_processes):
    folder = run_in_processes(CONFIG, "transport.protocol=tcp", "measuring.kernel=true")
    assert folder.rows(SHOWN)
    comparison = compare_with_kernel(folder.path)
    assert comparison.connections == CLIENTS
    assert comparison.differing == comparison.loose_ends == ()


def test_an_interrupted_run_records_what_an_unbroken_one_does(cut, run):
    text = PLANNED + "[checkpoints]\nevery = 3\n"
    broken, whole = cut(text, round=6), run(text)
    broken.resume()
    every = "SELECT round, node, test_loss, test_metric, global_metric, virtual_s FROM round ORDER BY round, node"
    assert broken.rows(every) == whole.rows(every)
    assert broken.rows(SHOWN) == whole.rows(SHOWN) != []
