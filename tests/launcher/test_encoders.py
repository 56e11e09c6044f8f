"""Encoders that a reproduced part trains before its runs, and what is made of them."""

from dataclasses import replace

import numpy as np
import pytest

from runs import RunFolder, run_here
from sheafgossip.launcher.studies.encoders import train_encoders
from sheafgossip.launcher.studies.reproduction import parts_of, planned, with_data
from sheafgossip.node.algorithms.flt import Autoencoder


def test_a_part_trains_its_encoders_once_and_its_runs_begin_with_them(tmp_path):
    (part,) = parts_of("flt1", small=True, data_root=None, overrides=["rounds=1", "clients=5"])
    runs = planned(part, 1, tmp_path)
    encoders = [replace(encoder, epochs=1) for encoder in part.about.encoders]
    told = list(train_encoders(encoders, runs))
    assert [line.split()[3] for line in told] == ["digits-16.safetensors:", "photographs-16.safetensors:"]
    files = [tmp_path / "encoders" / encoder.file for encoder in encoders]
    one, other = (Autoencoder((1, 8, 8), 16).load(file) for file in files)
    assert not np.array_equal(one, other)
    assert not list(train_encoders(encoders, runs))
    enc2 = runs[-1].config
    assert (enc2.label, enc2.algorithm.encoder) == ("FLT (Enc2)", str(files[1]))
    (ended,) = run_here([enc2.but(evaluation={"train": True})], tmp_path / "run", engine="threads")
    state = RunFolder(ended.prepared.folder).states(1)[5]
    assert state["centroids"].shape == (5, 2, 10)
    nearest = [[np.linalg.norm(a[:, None] - b, axis=2).min() for a in state["centroids"]] for b in state["centroids"]]
    np.testing.assert_allclose(nearest, state["distances"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("there", [(), ("fashion-mnist",)])
def test_runs_whose_encoder_cannot_be_trained_are_left_out_and_told(tmp_path, monkeypatch, there):
    """Files of MNIST beside it are called as those of Fashion-MNIST: they are not taken for them."""
    for name in there:
        (tmp_path / name).mkdir()
    monkeypatch.setattr("sheafgossip.launcher.studies.reproduction.load_data", lambda *_: None)
    monkeypatch.setattr("sheafgossip.launcher.studies.encoders.load", lambda *_: None)
    parts, told = with_data("flt4", parts_of("flt4", small=False, data_root=tmp_path, overrides=[]))
    left = [[config.label for config in part.configs] for part in parts]
    expected = ["FedAvg", "PCA+kM+HC", "FedSEM", *(["FLT"] if there else [])]
    assert left == [expected, expected]
    assert len(told) == (0 if there else 2)
    assert all(line.endswith("FLT: left out, its encoder: no folder fashion-mnist below --data-root") for line in told)
