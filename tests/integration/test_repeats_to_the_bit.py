"""A seed is the whole story: what else the machine does changes no bit."""

import pytest

from runs import assert_same, assert_same_states

LOGISTIC = """
clients = 6
rounds = 8
seed = 1
topology.p = 0.5
data = {samples = 400, reduced_clients = 0.5}
training = {work = "epochs", momentum = 0.5}
algorithm = {name = "sheaf-fmtl", gamma = 0.05, lam = 0.01, start_scale = 0.1}
checkpoints.every = 4
"""


@pytest.mark.parametrize("model", [(), ("model.kind=cnn", "model.filters=[8]")], ids=["logistic", "cnn"])
def test_one_seed_gives_identical_states_and_traffic_also_under_load(run, load_cores, model):
    alone = run(LOGISTIC, *model)
    load_cores()
    assert_same(alone, run(LOGISTIC, *model))


def test_another_seed_gives_another_run_and_the_resolved_configuration_the_same(run_in_threads):
    one, other = run_in_threads(LOGISTIC), run_in_threads(LOGISTIC, "seed=2")
    assert one.theta(0)[0].tobytes() != other.theta(0)[0].tobytes()
    assert one.edges() != other.edges()
    assert_same(one, run_in_threads((one.path / "config.toml").read_text()))


def test_ipc_and_tcp_carry_the_same_bits(run, run_in_threads):
    tcp = run(LOGISTIC, "transport.protocol=tcp", "transport.keys=false")
    keyed = run(LOGISTIC, "transport.protocol=tcp")
    assert_same(run_in_threads(LOGISTIC), tcp)
    assert_same_states(keyed, tcp, 8)
    without_wire = [{edge: row[:3] for edge, row in folder.payload().items()} for folder in (keyed, tcp)]
    assert without_wire[0] == without_wire[1]
