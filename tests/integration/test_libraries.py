"""What clients have loaded, and so their memory, does not depend on the runs that were made before."""

import sheafgossip as sg
from runs import small
from sheafgossip.metrics.records import FORK_SERVER

COMPARE = """
[[compare]]
name = "logistic"
[[compare]]
name = "cnn"
model = { kind = "cnn", filters = [2], hidden = [4] }
[[compare]]
name = "logistic again"
seed = 1
"""


def test_a_run_after_one_that_needs_more_is_as_small_as_before(tmp_path):
    (tmp_path / "several.toml").write_text(small(COMPARE, clients=3, rounds=2))
    sg.run(tmp_path / "several.toml", out=tmp_path / "runs", quiet=True)
    runs = [sg.open_run(tmp_path / "runs" / name) for name in ("logistic", "cnn", "logistic-again")]
    servers = [run.nodes.query(f"node == {FORK_SERVER}").pid.item() for run in runs]
    assert servers[0] == servers[2] != servers[1]
    first, with_torch, again = (run.summary.memory.clients_pss for run in runs)
    assert again < 1.2 * first < with_torch / 1.5
