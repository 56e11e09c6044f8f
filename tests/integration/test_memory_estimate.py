"""What is said before the start that a run will take is what its clients then take, whatever option allocates it. A few
options by default; SHEAFGOSSIP_MEMORY=all measures every one (2 minutes)."""

import os
import tomllib

import pytest
import tomli_w

from runs import small
from sheafgossip.launcher.config.sections import validate
from sheafgossip.launcher.prepare.assignments import Site
from sheafgossip.launcher.prepare.preparation import prepare_run
from sheafgossip.launcher.prepare.prepared import memory_of

LARGE = {"kind": "mlp", "hidden": [4000], "dtype": "float64"}  # 300,010 parameters: vectors of 2.4 MB
SMALL = {"kind": "mlp", "hidden": [20], "dtype": "float64"}  # 1,510 parameters: a square matrix of 18 MB
STEP, STALE = {"step_s": 0.01}, {"silence": "stale", "deadline_s": 0.05}
LATE = {"time": {"staleness": "inf"}, "compute": STEP, "links": {"latency_s": 0.05}}
WALL = {"clock": "wall", "staleness": "inf"}
SHEAF = {"name": "sheaf-fmtl", "gamma": 0.5, "storage": "factored", "start": "orthogonal"}
MAPS = {"model": SMALL, "checkpoints": {"save_maps": True}}

OPTIONS = {
    "maps that are saved": MAPS | {"algorithm": SHEAF},
    "messages under way": LATE,
}
MORE_OPTIONS = {
    "nothing": {},
    "identity maps that are saved": MAPS | {"algorithm": {"name": "dfedu"}},
    "dense maps": {"model": SMALL, "algorithm": SHEAF | {"storage": "dense"}},
    "history of maps": {"algorithm": SHEAF | {"gamma": 0.05}},
    "messages for checkpoints": LATE | {"checkpoints": {"every": 3}},
    "messages under way on the wall clock": {"time": WALL, "compute": {"step_s": 0.2}, "links": {"latency_s": 1.0}},
    "old messages for missing ones": {"time": STALE, "compute": STEP, "links": {"loss": 0.2}},
    "momentum": {"training": {"momentum": 0.9}},
    "int8": {"transport": {"codec": "int8"}},
    "what top-k leaves out": {"transport": {"codec": "top-k"}, "algorithm": {"name": "dfedu"}},
    "tcp with keys": {"transport": {"protocol": "tcp"}},
}
WITH_SERVER = ("pfedhn", "fedavg", "ditto", "fedsak", "sfl", "scaffold", "fedu", "ifca")
OTHERS = ("selective-sheaf", "gradient-tracking", "push-sum", "choco-sgd", "beer", "dispfl", "dfca", "dpfl")
MORE_OPTIONS |= {name: {"algorithm": {"name": name}} for name in WITH_SERVER + OTHERS}
CHOSEN = OPTIONS | MORE_OPTIONS if os.environ.get("SHEAFGOSSIP_MEMORY") == "all" else OPTIONS


@pytest.mark.parametrize("option", CHOSEN)
def test_the_estimate_is_what_clients_take(run_in_processes, tmp_path, option):
    text = small("evaluation.every = 0", rounds=12, samples=200, topology="complete")
    keys = tomllib.loads(text) | {"model": LARGE} | CHOSEN[option]
    if option in WITH_SERVER:
        del keys["topology"]
    prepared = prepare_run(validate(keys), tmp_path / "estimated", Site(tmp_path, "ipc:///nowhere"), lambda *_: 0.01)
    estimated = sum(memory_of(assignment, prepared.plan) for assignment in prepared.assignments)
    folder = run_in_processes(tomli_w.dumps(keys))
    # what a process shares with the others it was forked from is counted in its peak, too
    taken = folder.rows("SELECT max(peak_rss) - max(rss - uss) FROM resource WHERE node >= 0 GROUP BY node")
    measured = sum(own for (own,) in taken)
    assert 0.8 * measured <= estimated <= 4 * measured, f"{estimated / 1e6:.0f} MB, measured {measured / 1e6:.0f} MB"
