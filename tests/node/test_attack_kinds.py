"""Attackers that lie in their data, in sketches and norms, or say nothing; and how records tell of all of them."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import oracles
from runs import assert_same, assert_same_states, run_here_again, small
from sheafgossip.launcher.config.files import load
from sheafgossip.metrics.events import remarks_on
from sheafgossip.metrics.report.methods import methods_of
from sheafgossip.metrics.report.of_one import graph
from sheafgossip.metrics.summary import summarize
from sheafgossip.metrics.verification import compare_with_kernel
from sheafgossip.node.attack_settings import Attack
from sheafgossip.node.model import poison
from sheafgossip.transport.connections import counts_bytes

GOSSIP = small(
    'model.dtype = "float64"',
    "attack.clients = [1, 3]",
    "attack.from_round = 2",
    "checkpoints.every = 1",
    clients=5,
    topology="complete",
)
SHEAF = small(
    "attack.clients = [1, 3]",
    "attack.from_round = 3",
    "measuring.vectors.mb = 10",
    "checkpoints.every = 1",
    "algorithm.listen = 2",
    "transport.timeout = 20",
    clients=5,
    rounds=9,
    topology="complete",
    algorithm="selective-sheaf",
)
HONEST = (0, 2, 4)


# -- lies in the data --------------------------------------------------------------------------------------------------


def learned(folder, shards, round):
    """{client: its model after the round}, of d-psgd on these shards: mixing, then a step."""
    W, theta = oracles.metropolis_hastings(folder.edges(), 5), folder.thetas(round - 1)
    mixed = W @ theta
    return {i: mixed[i] - 0.1 * oracles.gradient(theta[i], shards[i]) for i in range(5)}


@pytest.mark.parametrize("labels", [(), (3, 3, 3, 3, 3, 3, 3, 3, 3, 4)])
def test_label_flippers_step_along_the_gradient_of_false_labels_and_nobody_else_does(run_in_threads, labels):
    folder = run_in_threads(GOSSIP, "attack.kind=label-flip", *([f"attack.labels={list(labels)}"] if labels else []))
    shards = folder.shards()
    for round in (1, 2):
        if round == 2:
            for i in (1, 3):
                told = [(labels or range(9, -1, -1))[y] for y in shards[i]["y_train"].tolist()]
                shards[i] = shards[i] | {"y_train": np.array(told)}
        for i, theta in learned(folder, shards, round).items():
            np.testing.assert_allclose(folder.theta(round)[i], theta, rtol=1e-9, atol=1e-12)


def test_a_backdoor_is_taught_on_a_share_of_the_samples_and_its_success_is_measured_on_honest_clients(run_in_threads):
    keys = ("attack.kind=backdoor", "attack.trigger=[0, 63]", "attack.value=2.5", "attack.target=7", "rounds=12")
    folder = run_in_threads(GOSSIP, *keys)
    rows = folder.rows("SELECT node, round, value FROM metric WHERE name = 'backdoor_success'")
    found = {(node, round): value for node, round, value in rows}
    assert len(found) == 5 * 13
    for i, shard in folder.shards().items():
        x, y = np.reshape(shard["x_test"], (-1, 64)).copy(), shard["y_test"]
        x[:, [0, 63]] = 2.5
        weights, bias = np.reshape(folder.theta(12)[i][:640], (10, 64)), folder.theta(12)[i][640:]
        taken = (x @ weights.T + bias)[y != 7].argmax(axis=1) == 7
        assert found[i, 12] == pytest.approx(taken.mean())
    summary = summarize(folder.path)
    assert summary.metrics["backdoor_success"].mean == pytest.approx(np.mean([found[i, 12] for i in HONEST]))
    assert not summary.metrics["backdoor_success"].higher_is_better
    assert summary.metrics["backdoor_success"].mean > 0.5 > np.mean([found[i, 1] for i in HONEST])


def test_a_trigger_is_the_corner_of_a_picture_or_the_last_tenth_of_features_and_of_half_of_the_samples(run_in_threads):
    assert poison.places_of(Attack(), (1, 8, 8)) == [54, 55, 62, 63]
    assert poison.places_of(Attack(), (2, 4, 4)) == [15, 31]
    assert poison.places_of(Attack(), (25,)) == [23, 24]
    folder = run_in_threads(GOSSIP, "attack.kind=backdoor", "rounds=12")
    (config,) = load(folder.path / "config.toml")
    assert (config.attack.share, config.attack.target) == (0.5, 0)


# -- lies in sketches and norms ----------------------------------------------------------------------------------------


def told(folder, round):
    """{(src, dst): (sketch, norm with the sign of the decision)}"""
    found = {}
    for path in folder.path.glob(f"vectors/round-{round:06d}/node-*"):
        for name, vector in load_file(path).items():
            if name.startswith("sent.0."):
                found |= {(int(path.stem[5:]), int(j)): (vector[:-1], vector[-1]) for j in name[7:].split(",")}
    return found


def squared_update(folder, i, round):
    """||theta_i - theta^0||^2 before the round"""
    return float(np.sum((folder.theta(round - 1)[i] - folder.theta(0)[i]) ** 2))


def test_a_sign_flip_leaves_the_norm_and_its_sign_as_the_method_has_them(run_in_threads):
    now = told(run_in_threads(SHEAF, "attack.kind=sign-flip"), 3)
    before = told(run_in_threads(SHEAF.replace("attack.", "# attack.")), 3)
    for edge, (sketch, n) in now.items():
        np.testing.assert_array_equal(sketch, -before[edge][0] if edge[0] in (1, 3) else before[edge][0])
        assert n == before[edge][1]


def test_a_forged_norm_stands_beside_a_flipped_sketch_and_says_that_the_edge_is_on(run_in_threads):
    folder = run_in_threads(SHEAF, "attack.kind=forged-norm")
    before = told(run_in_threads(SHEAF.replace("attack.", "# attack.")), 3)
    for (i, j), (sketch, n) in told(folder, 3).items():
        if i in (1, 3):
            np.testing.assert_array_equal(sketch, -before[i, j][0])
            assert n == pytest.approx(1e6 * squared_update(folder, i, 3), rel=1e-5)


def test_a_copied_sketch_is_the_one_of_the_same_round_and_every_fifth_is_its_opposite(run_in_threads):
    folder = run_in_threads(SHEAF, "attack.kind=copy", "attack.strength=3")
    for round, factor in ((3, 1), (6, 1), (7, -3)):
        messages = told(folder, round)
        for i in (1, 3):
            for j in HONEST:
                if (i, j) in messages:
                    sketch, n = messages[i, j]
                    np.testing.assert_allclose(sketch, factor * messages[j, i][0], rtol=1e-6)
                    assert n == pytest.approx(factor**2 * abs(messages[j, i][1]), rel=1e-6)
        assert any(i in (1, 3) and j in HONEST for i, j in messages)


@pytest.mark.parametrize("kind", ["noise", "sign-flip", "inflate", "copy", "forged-norm"])
def test_both_ends_of_an_attacked_edge_agree_on_when_to_speak(run_in_threads, kind):
    """Else one of them would wait for ever: an attacker goes by what it has said."""
    folder = run_in_threads(SHEAF, f"attack.kind={kind}", "rounds=25", "attack.from_round=1", "checkpoints.every=0")
    spoken = {edge for edge, (messages, _) in folder.sent().items() if messages}
    assert spoken == {(j, i, round) for i, j, round in spoken}


def test_copied_sketches_are_the_same_on_both_clocks_and_when_resumed(tmp_path, run_in_threads):
    folder = run_in_threads(SHEAF, "attack.kind=copy")
    for clock in ("wall", "virtual"):
        planned = run_in_threads(SHEAF, "attack.kind=copy", "compute.step_s=0.001", f"time.clock={clock}")
        np.testing.assert_array_equal(planned.thetas(9), folder.thetas(9))
    broken = folder.copy(tmp_path / "run")
    broken.cut_after(4)
    run_here_again(broken, "threads")
    assert_same(broken, folder)


@pytest.mark.skipif(not counts_bytes(), reason="this kernel does not count the bytes of TCP connections")
def test_processes_have_the_bits_of_threads_and_the_bytes_of_an_attacked_run_are_the_kernels(
    run_in_threads, run_in_processes
):
    over_tcp = run_in_processes(SHEAF, "transport.protocol=tcp", "measuring.kernel=true", "attack.kind=copy")
    assert_same_states(over_tcp, run_in_threads(SHEAF, "attack.kind=copy"))
    check = compare_with_kernel(over_tcp.path)
    assert check.connections == 10
    assert not check.differing


# -- silence -----------------------------------------------------------------------------------------------------------


def test_the_silent_send_nothing_hear_everything_and_are_not_waited_for_for_ever(run_in_threads):
    scenario = ("attack.kind=silence", "time.silence=skip", "compute.step_s=0.001")
    planned = run_in_threads(GOSSIP, *scenario, "time.clock=virtual", "time.deadline_s=1")
    wall = run_in_threads(GOSSIP, *scenario, "time.clock=wall", "time.deadline_s=0.3")
    for folder in (planned, wall):
        spoken = {edge for edge, (messages, _) in folder.sent().items() if messages}
        assert {src for src, _, round in spoken if round > 1} == {*HONEST}
        assert {(src, dst) for src, dst, round in spoken if round == 3} == {
            (src, dst) for src in HONEST for dst in range(5) if dst != src
        }
    np.testing.assert_array_equal(planned.thetas(3), wall.thetas(3))


# -- what is told of them ----------------------------------------------------------------------------------------------


def test_records_name_attackers_and_figures_are_those_of_the_others(run_in_threads):
    folder = run_in_threads(GOSSIP, "attack.kind=sign-flip", "attack.strength=5")
    ((attackers,),) = folder.rows("SELECT value FROM meta WHERE key = 'attackers'")
    assert json.loads(attackers) == [1, 3]
    assert folder.rows("SELECT node, detail FROM event WHERE kind = 'attack' ORDER BY node") == [
        (node, "sign-flip, from round 2") for node in (1, 3)
    ]
    assert remarks_on(folder.path)[-1].endswith(" and 1 more: sign-flip, from round 2")
    accuracies = dict(folder.rows("SELECT node, test_metric FROM round WHERE round = 3"))
    honest = [accuracies[i] for i in HONEST]
    summary = summarize(folder.path)
    assert (summary.clients, summary.attackers) == (5, 2)
    assert summary.final.mean == pytest.approx(np.mean(honest))
    assert summary.final.worst_10 == min(honest)
    ((mean, clients),) = folder.rows("SELECT mean_test_metric, clients FROM round_total WHERE round = 3")
    assert (mean, clients) == (pytest.approx(np.mean(honest)), 3)
    (method,) = methods_of([folder.path])
    assert set(method.latest_metric().client) == {*HONEST}
    (drawn,) = graph(method)
    assert drawn.tables["places"].query("attacks").node.tolist() == [1, 3]
    assert "The 2 with a red ring attack" in drawn.caption
