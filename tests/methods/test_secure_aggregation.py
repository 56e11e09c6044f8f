"""Runs with secure aggregation: the mean is that of the vectors that came, to the rounding that is said, in a scenario
as without; what the server sees of a client tells nothing; bytes follow from the number of clients."""

import importlib.util
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import oracles
from chaos import wire
from runs import assert_same
from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.config.sections import ConfigError
from sheafgossip.launcher.leak.meter import measure
from sheafgossip.launcher.prepare.assignments import Site
from sheafgossip.launcher.prepare.preparation import work_out
from sheafgossip.launcher.studies.forecast import payload_of
from sheafgossip.metrics.verification import compare_with_kernel
from sheafgossip.topology.errors import UserError

from . import normalized
from .plain import CLIENTS, CONFIG, ROUNDS, SERVER

SECURE = "algorithm.secure=true"
KEPT = ("measuring.vectors.mb=50", "checkpoints.every=1", "evaluation.every=0")
MLP = ("model.kind=mlp", "model.hidden=[9]")
LOSSES = (
    "time={ clock = 'virtual', silence = 'skip', deadline_s = 0.5 }",
    "compute={ step_s = 0.05, slowdown = [1.0, 3.0] }",
    "links={ latency_s = 0.02, loss = 0.04 }",
    "faults=[{ kind = 'crash', clients = [2], at_round = 3, restart_after = 2 }]",
)


def method(name, **settings):
    return [f"algorithm.{key}={json.dumps(value)}" for key, value in {"name": name, **settings}.items()]


# -- the sum -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "model"),
    [
        (method("fedavg"), ()),
        (method("fedavg", secure_bits=64, secure_range=2.0), ()),
        (method("fedavg-ft", fraction=0.5), ()),
        (method("fedprox", fraction=0.5), ()),
        (method("moon"), MLP),
        (method("ditto"), ()),
        (method("pfedme", lam=1.5, eta=0.3, beta=1.2), ()),
        (method("per-fedavg", alpha=0.2), ()),
        (method("apfl"), ()),
        (method("scaffold", fraction=0.5), ()),
        (method("fedavg-c", share="head"), MLP),
        (method("fedper"), MLP),
        (method("fedrep", head_passes=1), MLP),
        (method("fedbn"), (f"model.use={normalized.__file__}:make",)),
    ],
    ids=lambda each: "-".join(value.split("=")[1].rpartition("/")[2].strip('"') for value in each[:2]) or "linear",
)
def test_the_mean_is_the_plain_one_to_its_rounding(run, settings, model):
    """After one round. Each client rounds to half a unit of clients * range / 2^k."""
    overrides = (*settings, *model, "rounds=1", "evaluation.every=0")
    plain = run(CONFIG, *(each for each in overrides if "secure" not in each))
    secure = run(CONFIG, *overrides, SECURE)
    bits, width, beta = (64, 2, 1) if "algorithm.secure_bits=64" in settings else (32, 16, 1.2)
    bound = max(beta * CLIENTS * width / 2**bits, 1e-14)
    error = np.abs(plain.theta(1)[SERVER] - secure.theta(1)[SERVER]).max()
    assert error <= bound
    assert bits == 64 or error > 0


def test_scaffolds_sum_of_changes_is_the_plain_sum_of_all_that_clients_have(run):
    """The server that masks keep from seeing them adds up changes, which come to the same over all rounds."""
    settings = (*method("scaffold", fraction=0.5), "evaluation.every=0")
    plain, secure = run(CONFIG, *settings), run(CONFIG, *settings, SECURE)
    x, c = np.split(plain.states(ROUNDS)[SERVER]["answer"], 2)
    assert np.abs(c).max() > 0.01
    assert np.abs(secure.states(ROUNDS)[SERVER]["answer"] - [*x, *c]).max() < 1e-6


def uploads(folder, round):
    """{client: (what it sent, its theta then)}"""
    found = {}
    for path in folder.path.glob(f"vectors/round-{round:06d}/node-*"):
        arrays, node = load_file(path), int(path.stem[5:])
        if node != SERVER and f"sent.2.{SERVER}" in arrays:
            found[node] = arrays[f"sent.2.{SERVER}"], arrays["theta.0"]
    return found


def assert_means(folder, least):
    """The server has averaged whose masked vectors came, where enough then told their shares, and else nothing. Returns
    how many rounds there were of: all, some, none."""
    assert folder.rows("SELECT count(*) FROM event WHERE kind = 'warning'") == [(0,)]
    samples, w, counts = {k: len(s["y_train"]) for k, s in folder.shards().items()}, folder.theta(0)[SERVER], [0, 0, 0]
    for round in range(1, ROUNDS + 1):
        asked = f"SELECT neighbour FROM used WHERE used_round IS NOT NULL AND node = {SERVER} AND round = {round}"
        U3, U4 = ({k for (k,) in folder.rows(f"{asked} AND phase = {phase}")} for phase in (2, 3))
        if len(U4) >= least:
            theta = {k: theta for k, (_, theta) in uploads(folder, round).items() if k in U3}
            w = sum(samples[k] * each for k, each in theta.items()) / sum(samples[k] for k in theta)
        counts[2 if len(U4) < least else len(U3) < CLIENTS] += 1
        assert np.abs(folder.theta(round)[SERVER] - w).max() < 2 * CLIENTS * 16 / 2**32
    told = folder.rows("SELECT count(*) FROM event WHERE kind = 'secure' AND detail LIKE '%the model stays'")
    assert told == [(counts[2],)]
    return counts


def test_where_messages_are_lost_and_clients_crash_it_is_that_of_those_whose_vectors_came(run):
    folder = run(CONFIG, *method("fedavg", secure=True), *KEPT, *LOSSES, "seed=1")
    _, some, none = assert_means(folder, least=3)
    assert some >= 3
    assert none >= 1


def test_after_masks_were_agreed_a_vector_that_does_not_come_is_no_part_of_the_sum(run):
    """Of client 4 all of 3 kB are too late: its keys and shares are not."""
    slow = "links={ clients = [{ clients = [4], uplink = 4000 }] }"
    folder = run(CONFIG, *method("fedavg", secure=True), *KEPT, *LOSSES[:2], slow, "rounds=3")
    asked = f"SELECT DISTINCT phase, used_round IS NULL FROM used WHERE node = {SERVER} AND neighbour = 4 AND round = 1"
    assert folder.rows(f"{asked} ORDER BY phase") == [(0, 0), (1, 0), (2, 1)]
    U3 = [k for k in range(CLIENTS) if k != 4]
    theta, samples = uploads(folder, 1), {k: len(s["y_train"]) for k, s in folder.shards().items()}
    mean = sum(samples[k] * theta[k][1] for k in U3) / sum(samples[k] for k in U3)
    assert np.abs(folder.theta(1)[SERVER] - mean).max() < 2 * CLIENTS * 16 / 2**32


def test_on_the_wall_clock_it_is_that_of_those_whose_vectors_came(run_in_processes):
    wall = LOSSES[0].replace("virtual", "wall").replace("0.5", "0.1")
    work = "compute={ step_s = 0.001 }"
    folder = run_in_processes(CONFIG, *method("fedavg", secure=True), *KEPT, wall, work, "links.loss=0.03")
    assert_means(folder, least=3)


def test_numbers_beyond_the_range_are_cut_to_it_and_the_user_is_told(run):
    settings = method("fedavg", secure=True, secure_range=0.01)
    folder = run(CONFIG, *settings, "rounds=1")
    assert np.abs(folder.theta(1)[SERVER]).max() == pytest.approx(0.01, rel=1e-6)
    warnings = folder.rows("SELECT DISTINCT node, detail FROM event WHERE kind = 'warning' ORDER BY node")
    assert [node for node, _ in warnings] == [*range(CLIENTS)]
    assert warnings[1][1].endswith("client 1 beyond 0.01 were cut to that; raise algorithm.secure_range")


# -- what is seen ------------------------------------------------------------------------------------------------------


def test_an_upload_tells_nothing_of_the_vector_in_it(run):
    """It has the moments of integers drawn uniformly, and no correlation with the model, of whatever data."""
    for data in ((), ("data.samples=300",)):
        folder = run(CONFIG, *method("fedavg", secure=True), *KEPT, *data)
        seen = [each for round in range(1, ROUNDS + 1) for each in uploads(folder, round).values()]
        assert len(seen) == CLIENTS * ROUNDS
        for y, theta in seen:
            assert y.dtype == np.int32
            d = len(y)
            uniform = y / 2**31  # in [-1, 1): mean 0, mean square 1/3
            assert abs(uniform.mean()) < 4.5 / np.sqrt(3 * d)
            assert abs((uniform**2).mean() - 1 / 3) < 4.5 * np.sqrt(4 / 45 / d)
            assert abs(np.corrcoef(uniform, theta)[0, 1]) < 4.5 / np.sqrt(d)


def test_leak_says_that_there_is_nothing_to_read(run):
    folder = run(CONFIG, *method("fedavg", secure=True), *KEPT)
    with pytest.raises(ConfigError, match="secure = true masks what clients send: leak can read nothing in it"):
        measure(folder.path)


# -- bytes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_bytes_are_those_of_the_formula_and_of_the_forecast(run, tmp_path, fraction):
    settings = (*method("fedavg", secure=True, fraction=fraction), "evaluation.every=0")
    folder = run(CONFIG, *settings)
    d, m = folder.theta(0)[SERVER].size, int(fraction * CLIENTS)
    expected = {}
    for round in range(1, ROUNDS + 1):
        now, after = (oracles.participants(5, CLIENTS, ROUNDS, fraction, k) for k in (round, round + 1))
        for k in now:
            expected[k, SERVER, round] = 4, 64 + 80 * (m - 1) + 4 * d + 32 * m
            expected[SERVER, k, round] = 3, 64 * m + 80 * (m - 1) + (m + 7) // 8
        for k in after:
            messages, payload = expected.get((SERVER, k, round), (0, 0))
            expected[SERVER, k, round] = messages + 1, payload + 8 * d
    assert folder.sent() == expected
    (tmp_path / "config.toml").write_text(CONFIG)
    (config,) = load(tmp_path / "config.toml", settings)
    prepared = work_out(config, tmp_path / "run", Site(tmp_path, "ipc:///nowhere"), None)
    assert payload_of(prepared) == sum(payload for _, payload in expected.values())


def test_the_wire_bytes_are_those_of_four_messages(run):
    folder = run(CONFIG, *method("fedavg", secure=True, fraction=0.5), "evaluation.every=0")
    d, m = folder.theta(0)[SERVER].size, CLIENTS // 2
    tensors = [(64, 5, 64), (80 * (m - 1), 5, 80 * (m - 1)), (4 * d, 3, d), (32 * m, 5, 32 * m)]
    payload = message = on_the_wire = 0
    for phase, (size, code, length) in enumerate(tensors):
        header = wire.header(0, SERVER, 1, phase, [[code, length]])
        payload, message = payload + size, message + size + header
        on_the_wire += wire.frame(header) + wire.frame(size)
    found = [row for (src, *_, round), row in folder.payload().items() if src < SERVER and round == 1]
    assert set(found) == {(4, payload, message, on_the_wire)}


def test_bytes_over_tcp_are_those_of_the_kernel(run_in_processes):
    overrides = ("rounds=3", "transport.protocol=tcp", "measuring.kernel=true")
    folder = run_in_processes(CONFIG, *method("fedavg", secure=True, fraction=0.5), *overrides)
    comparison = compare_with_kernel(folder.path)
    assert comparison.connections == CLIENTS
    assert comparison.differing == comparison.loose_ends == ()


# -- what does not fit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("algorithm.name=fedper", "algorithm.server=false", *MLP), "algorithm.secure: = true: .* use server = true"),
        (("algorithm.name=scaffold", *LOSSES[:2], "links.loss=0.1"), "needs every message"),
        (
            ("algorithm.mixing=median",),
            "secure: = true: the server learns a sum, and mixing = 'median' needs",
        ),
        (("clients=1",), "algorithm.secure: = true: 1 client would take part in a round; allowed are 2 to"),
        (("algorithm.fraction=0.2",), "algorithm.secure: = true: 1 client would take part in a round"),
        (("transport.codec=int8",), "transport.codec = 'int8': .* needs every vector as it is"),
        (("attack.clients=[1]",), "attack.kind = 'sign-flip': with algorithm.secure = true vectors travel masked"),
        ((*LOSSES[1:3], LOSSES[0].replace("skip", "stale")), "time.silence = 'skip'"),
    ],
    ids=["no server", "lost in a sum over rounds", "rule", "alone", "alone in a round", "codec", "attack", "stale"],
)
def test_what_it_cannot_do_is_refused_in_one_line(tmp_path, overrides, told):
    (tmp_path / "config.toml").write_text(CONFIG)
    (config,) = load(tmp_path / "config.toml", (*method("fedavg", secure=True), *overrides))
    with pytest.raises(UserError, match=told):
        work_out(config, tmp_path / "run", Site(tmp_path, "ipc:///nowhere"), None)


def test_without_the_package_that_it_needs_the_user_is_told_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "config.toml").write_text(CONFIG)
    (config,) = load(tmp_path / "config.toml", method("ditto", secure=True))
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "cryptography" else found(name))
    with pytest.raises(UserError, match=r"needs cryptography: .venv/bin/pip install -e '.\[secure\]'"):
        work_out(config, tmp_path / "run", Site(tmp_path, "ipc:///nowhere"), None)


def test_without_it_nothing_of_a_run_is_other_than_before_and_its_keys_have_no_effect(run, tmp_path):
    (tmp_path / "config.toml").write_text(CONFIG)
    with pytest.raises(UserError, match=r"algorithm.secure_bits = 64: has no effect without algorithm.secure"):
        load(tmp_path / "config.toml", method("fedavg", secure_bits=64))
    assert_same(run(CONFIG, *method("fedavg")), run(CONFIG, *method("fedavg"), "algorithm.secure=false"))
