"""The models of a run, as modules of torch and as arrays."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import own
import sheafgossip as sg

pytestmark = pytest.mark.usefixtures("one_fork_server")
CONFIG = {"clients": 3, "rounds": 2, "data.samples": 120, "model.dtype": "float64", "checkpoints.every": 1}
OPEN = """
import json, sys
import sheafgossip as sg
run, told = sg.open_run("run"), []
try:
    run.module(1)
except sg.Error as error:
    told.append(str(error))
told.append("model" in [name.partition(".")[0] for name in sys.modules])
told.append([float(each.double().sum()) for each in run.module(1, own_code=True).state_dict().values()])
open("model.py", "a").write("# another")
try:
    run.module(1, own_code=True)
except sg.Error as error:
    told.append(str(error))
print(json.dumps(told))
"""


def assert_tests_as_recorded(run: sg.Run, round: int) -> None:
    """What modules make of the clients' test samples is what clients have recorded."""
    recorded = run.rounds[run.rounds["round"] == round].set_index("node").test_metric
    for client in run.models:
        module, shard = run.module(client, round), run.shard(client)
        dtype = next(module.parameters()).dtype
        with torch.no_grad():
            found = module(torch.from_numpy(shard["x_test"]).to(dtype)).argmax(1).numpy()
        assert np.mean(found == shard["y_test"]) == pytest.approx(recorded[client], abs=1e-9)
        theta = np.concatenate([each.detach().numpy().ravel() for each in module.parameters() if each.requires_grad])
        np.testing.assert_array_equal(theta, run.state(round)[client]["theta"])


@pytest.mark.parametrize(
    "model",
    [
        {"kind": "mlp", "hidden": [8]},
        {"kind": "cnn", "filters": [4], "hidden": [5], "norm_groups": 2},
        {"mix": [{"kind": "mlp", "hidden": [3]}]},
    ],
)
def test_the_module_of_a_built_in_model_computes_what_the_client_did(tmp_path, model):
    algorithm = {"algorithm.name": "local" if "mix" in model else "d-psgd"}
    run = sg.run(CONFIG | algorithm, {"model": model | {"dtype": "float64"}}, out=tmp_path / "run", quiet=True)
    for round in (1, 2):
        assert_tests_as_recorded(run, round)
    module = run.module(0)
    module(torch.ones(1, 1, 8, 8).double()).sum().backward()  # it can learn on
    assert all(each.grad is not None for each in module.parameters())
    with pytest.raises(sg.Error, match="no state of client 7; there are 0, 1, 2"):
        run.module(7)
    with pytest.raises(sg.Error, match="cannot be read as the data of a client"):
        run.shard(7)
    with pytest.raises(sg.Error, match="no state of round 9; rounds with state: 0, 1, 2"):
        run.module(0, 9)


@pytest.mark.parametrize("same_start", [True, False])
def test_a_module_of_ones_own_has_the_clients_buffers_and_what_was_frozen(tmp_path, monkeypatch, same_start):
    monkeypatch.chdir(own.write(tmp_path / "project"))
    run = sg.run("mine.toml", {"model.same_start": same_start}, out="run", quiet=True)
    assert run.state(2)[1].keys() >= {"theta", "state.velocity", "velocity", "buffer.1.norm.running_mean"}
    for round in (2, 6):
        assert_tests_as_recorded(run, round)
    frozen = [run.module(client).get_submodule("1").convolution.bias.tolist() for client in (0, 1)]
    assert (frozen[0] == frozen[1]) is same_start
    with pytest.raises(sg.Error, match="makes another module now than it made for the run's clients"):
        run.module(0, model=lambda shape, outputs, width: torch.nn.Linear(6, outputs))
    expected = [float(each.double().sum()) for each in run.module(1).state_dict().values()]
    refused, is_loaded, sums, changed = json.loads(subprocess.check_output([sys.executable, "-c", OPEN], text=True))
    assert "is executed with own_code=True only; or give the function as model=" in refused
    assert not is_loaded
    assert sums == expected
    assert "model.py has changed since the run began" in changed


def test_files_of_several_folders_are_executed_again(tmp_path, monkeypatch):
    project = own.write(tmp_path / "project")
    (tmp_path / "other").mkdir()
    (project / "model.py").rename(tmp_path / "other" / "model.py")
    monkeypatch.chdir(project)
    run = sg.run("mine.toml", {"model.use": str(tmp_path / "other" / "model.py:make")}, out="run", quiet=True)
    assert run.module(0, own_code=True).training is False
    assert sg.resume("run", 8, own_code=True, quiet=True).summary.rounds == 8
