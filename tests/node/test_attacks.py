"""Attackers: what they send against the equations, their runs against those of honest clients, and known results."""

from statistics import NormalDist

import numpy as np
import pytest
from safetensors.numpy import load_file

import oracles
from runs import assert_same, assert_same_states, run_here_again, small
from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.prepare.assignments import Site
from sheafgossip.launcher.prepare.preparation import work_out
from sheafgossip.node import attacks
from sheafgossip.topology.errors import UserError

FIVE = small(
    'model.dtype = "float64"',
    "attack.clients = [1, 3]",
    "attack.from_round = 3",
    "measuring.vectors.mb = 10",
    "checkpoints.every = 1",
    clients=5,
    rounds=4,
    topology="complete",
)
FAULTS = """
time = { clock = "virtual", staleness = 2, silence = "stale", deadline_s = 0.5 }
compute = { step_s = 0.05, slowdown = [1.0, 4.0] }
links = { latency_s = 0.02, loss = 0.1 }
faults = [{ kind = "crash", clients = [1], at_round = 4, restart_after = 1 }]
"""


def sent(folder, round):
    """{(src, dst): vector}"""
    found = {}
    for path in folder.path.glob(f"vectors/round-{round:06d}/node-*"):
        for name, vector in load_file(path).items():
            if name.startswith("sent.0."):
                found |= {(int(path.stem[5:]), int(dst)): vector for dst in name[7:].split(",")}
    return found


def known_to(folder, attacker):
    """What it knows in round 3: its own vector, and those of the honest in round 2."""
    theirs = sent(folder, 2)
    return np.stack([folder.theta(2)[attacker], *(theirs[j, attacker] for j in (0, 2, 4))])


def rms(v):
    return np.sqrt(np.mean(v**2))


@pytest.mark.parametrize("kind", sorted({*attacks.ON_VECTORS} - {"copy", "forged-norm"}))
def test_what_an_attacker_sends_is_its_equation_and_honest_clients_send_their_models(run_in_threads, kind):
    folder = run_in_threads(FIVE, f"attack.kind={kind}")
    W = oracles.metropolis_hastings(folder.edges(), 5)
    now, theirs, theta = sent(folder, 3), sent(folder, 2), folder.theta(2)
    assert all(np.array_equal(vector, theta[i]) for (i, _), vector in now.items() if i not in (1, 3))
    assert all(np.array_equal(vector, folder.theta(1)[i]) for (i, _), vector in theirs.items())  # until from_round
    for i in (1, 3):
        told = [now[i, j] for j in range(5) if j != i]
        known = known_to(folder, i)
        match kind:
            case "sign-flip":
                expected = [-theta[i]] * 4
            case "zeros":
                expected = [0 * theta[i]] * 4
            case "inflate":
                expected = [10 * theta[i]] * 4
            case "alie":
                z = NormalDist().inv_cdf((5 - 2 - 1) / (5 - 2))  # s = 3 - 2
                expected = [known.mean(axis=0) - z * known.std(axis=0)] * 4
            case "ipm":
                expected = [-0.5 * known.mean(axis=0)] * 4
            case "replay":
                expected = [theirs[i, j] for j in range(5) if j != i]
            case "dissensus":  # in a complete graph W is the same everywhere; the attacker is blind for the other one
                x = {j: theirs[j, i] for j in (0, 2, 4)}
                step = {j: sum(W[j, k] * (x[k] - x[j]) for k in x) for j in x}
                expected = [x[j] - step[j] / (W[j, 1] + W[j, 3]) if j in x else theta[i] for j in range(5) if j != i]
            case "noise":
                noise = [vector - theta[i] for vector in told]
                assert len({each.tobytes() for each in noise}) == 4  # drawn for each
                assert all(0.9 < rms(each) / rms(theta[i]) < 1.1 for each in noise)
                continue
            case "equivocation":
                noise = [vector - theta[i] for vector in told]
                np.testing.assert_allclose(noise, np.outer([1, -1, 1, -1], noise[0]), atol=1e-12)
                assert 0.9 < rms(noise[0]) / rms(theta[i]) < 1.1
                continue
        np.testing.assert_allclose(told, expected, rtol=1e-12, atol=1e-15)


def test_until_from_round_and_at_a_strength_that_tells_the_truth_no_bit_changes(run_in_threads):
    honest = run_in_threads(FIVE.replace("attack.", "# attack."))
    lied = run_in_threads(FIVE, "attack.kind=sign-flip")
    for round in (1, 2):
        assert_same_states(lied, honest, round)
    assert lied.payload() == honest.payload()  # not a byte more
    assert not np.array_equal(lied.thetas(4), honest.thetas(4))
    assert_same_states(run_in_threads(FIVE, "attack.kind=noise", "attack.strength=0"), honest)


@pytest.mark.parametrize("kind", ["alie", "dissensus", "replay", "noise"])
def test_runs_repeat_and_resume_to_the_bit_with_faults_too(tmp_path, run_in_threads, kind):
    text = small(FAULTS, "checkpoints.every = 2", "attack.clients = [1]", rounds=7, clients=5)
    folder = run_in_threads(text, f"attack.kind={kind}", "attack.from_round=2")
    broken = folder.copy(tmp_path / "run")
    broken.cut_after(4)
    run_here_again(broken, "threads")
    assert_same(broken, folder)


def test_processes_have_the_bits_of_threads_on_both_clocks(run_in_processes, run_in_threads):
    keys = ("attack.fraction=0.25", "attack.kind=dissensus", "compute.step_s=0.001")
    for clock in ("wall", "virtual"):
        asked = (small("checkpoints.every = 1"), *keys, f"time.clock={clock}")
        assert_same_states(run_in_processes(*asked), run_in_threads(*asked))


# -- known results -----------------------------------------------------------------------------------------------------


def test_one_dissensus_attacker_that_all_of_a_ring_hear_breaks_the_average_and_not_clipped(run_in_threads, tmp_path):
    """He, Karimireddy, Jaggi (2022): by how far the honest models are from one another."""
    ring = [(i, (i + 1) % 6) for i in range(6)]
    (tmp_path / "graph.txt").write_text("\n".join(f"{i} {j}" for i, j in [*ring, *((i, 6) for i in range(6))]))
    text = small(
        'topology = { kind = "file", path = "GRAPH" }'.replace("GRAPH", str(tmp_path / "graph.txt")),
        'data.partition = "classes"',
        "training.alpha = 0.01",
        topology="",
        clients=7,
        rounds=40,
        samples=280,
    )

    def spread(*keys):
        thetas = run_in_threads(text, *keys).thetas(40)[:6]
        return float(np.linalg.norm(thetas - thetas.mean(axis=0)))

    attack = ("attack.clients=[6]", "attack.kind=dissensus", "attack.strength=1.5")
    agreed, clipped, average = spread(), spread(*attack, "algorithm.mixing=clipped"), spread(*attack)
    assert average > 100 * clipped
    assert clipped < 10 * agreed


def test_alie_moves_the_median_more_than_noise_of_its_length_does():
    rng = np.random.default_rng(0)
    honest = rng.standard_normal((15, 2000)) * np.linspace(0.5, 2, 2000) + 1
    lie = attacks.alie(honest, attacks.largest_z(25, 10))
    noise = rng.standard_normal((10, 2000)) * np.sqrt(np.mean((lie - honest.mean(axis=0)) ** 2)) + honest.mean(axis=0)
    moved = {
        name: np.linalg.norm(np.median(np.concatenate([honest, them]), axis=0) - np.median(honest, axis=0))
        for name, them in (("alie", np.tile(lie, (10, 1))), ("noise", noise))
    }
    assert moved["alie"] > 2 * moved["noise"]
    assert attacks.largest_z(50, 24) == pytest.approx(NormalDist().inv_cdf(24 / 26))  # Baruch et al., section 3.3


def test_the_trimmed_mean_of_a_run_stays_among_the_honest_with_b_attackers_and_not_with_more(run_in_threads):
    """A round without learning: what comes out of mixing is between what the honest put in, in each coordinate."""
    text = FIVE.replace("[1, 3]", "ATTACKERS").replace("clients = 5", "clients = 7")
    keys = ("attack.kind=sign-flip", "attack.strength=50", "training.alpha=1e-12", "algorithm.mixing=trimmed")
    keys += ("attack.from_round=1", 'model.init="uniform"', "model.same_start=false", "algorithm.byzantine=2")

    def among(attackers):
        folder = run_in_threads(text.replace("ATTACKERS", str(attackers)), *keys)
        honest = [i for i in range(7) if i not in attackers]
        before, after = folder.thetas(0)[honest], folder.thetas(1)[honest]
        slack = 1e-9
        return ((after >= before.min(axis=0) - slack) & (after <= before.max(axis=0) + slack)).mean()

    assert among([1, 3]) == 1
    assert among([1, 3, 5]) < 0.9


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("clients = [4]", "attack.clients: there is no client 4; they are 0 to 3"),
        ("fraction = 0.1", "attack.fraction = 0.1: of 4 clients that is none; allowed: 0 for none, or from 0.125"),
        ("fraction = 1.0", "attack.fraction = 1.0: nobody is left to be attacked"),
        (
            'fraction = 0.5\nkind = "alie"\n[algorithm]\nname = "fedavg"',
            "attack.kind = 'alie': algorithm.name = 'fedavg'",
        ),
        ('fraction = 0.5\nkind = "ipm"\n[algorithm]\nname = "selective-sheaf"', "gives no client vectors that compare"),
        ('fraction = 0.5\nkind = "dissensus"\n[algorithm]\nname = "pairwise"', "does not average by one matrix W"),
        ('fraction = 0.5\nkind = "copy"', "has no exchange in which all send and hear the projections of one edge"),
        ('fraction = 0.5\nkind = "forged-norm"', "sends no norm beside its vectors"),
        ('fraction = 0.5\nkind = "silence"', "would wait for ever without a scenario in which they go on; allowed: 'z"),
        ('fraction = 0.5\nkind = "label-flip"\nlabels = [1, 0]', "attackers have 10 classes; allowed: one for each"),
        ('fraction = 0.5\nkind = "backdoor"\ntarget = 10', "attack.target = 10: there is no such class; allowed: 0 t"),
        ('fraction = 0.5\nkind = "backdoor"\ntrigger = [64]', "there is no such feature; allowed: 0 to 63"),
        ('fraction = 0.5\n[algorithm]\nname = "local"', "algorithm.name = 'local' sends no vectors; allowed: an alg"),
    ],
)
def test_an_attack_that_does_not_fit_is_refused(tmp_path, keys, told):
    text = small(topology="", algorithm="" if "algorithm" in keys else "d-psgd")
    (tmp_path / "config.toml").write_text(f"{text}[attack]\n{keys}\n")
    (config,) = load(tmp_path / "config.toml")
    with pytest.raises(UserError, match=told.replace("[", r"\[")):
        work_out(config, tmp_path / "run", Site(tmp_path, "ipc:///nowhere"), None)
