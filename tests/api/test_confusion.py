"""Confusion matrices against what a client's model says of its test samples, one by one."""

from collections import Counter

import numpy as np
import pytest
import torch

import sheafgossip as sg

CONFIG = {"clients": 3, "rounds": 2, "data.samples": 200, "algorithm.name": "d-psgd", "evaluation.confusion": True}


def test_each_clients_matrix_after_the_last_round_is_that_of_its_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = sg.run(CONFIG, out="run", quiet=True)
    table = run.confusion
    assert set(table["round"]) == {2}
    everything = Counter()
    for client in range(3):
        shard, module = run.shard(client), run.module(client, 2)
        with torch.no_grad():
            outputs = module(torch.from_numpy(np.asarray(shard["x_test"])))
        expected = Counter(zip(shard["y_test"].tolist(), outputs.argmax(1).tolist(), strict=True))
        own = table[table.node == client]
        assert Counter(dict(zip(zip(own.label, own.predicted, strict=True), own.samples, strict=True))) == expected
        accuracy = run.rounds.set_index(["node", "round"]).test_metric[client, 2]
        assert own.samples[own.label == own.predicted].sum() / own.samples.sum() == pytest.approx(accuracy)
        everything += expected
    found = run.summary.confusion
    mistakes = {pair: n for pair, n in everything.items() if pair[0] != pair[1]}
    assert (found.samples, found.wrong) == (everything.total(), sum(mistakes.values()))
    assert list(found.most) == sorted(((*pair, n) for pair, n in mistakes.items()), key=lambda m: (-m[2], m[:2]))[:3]
    assert run.summary.as_dict()["confusion"]["wrong"] == found.wrong


def test_targets_that_are_no_classes_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    synthetic = {"data.dataset": "synthetic", "data.task": "regression", "model.kind": "linear"}
    synthetic |= {"data.synthetic.groups": 1}
    with pytest.raises(sg.Error, match=r"evaluation\.confusion = [Tt]rue: the targets are no classes; allowed: false"):
        sg.run(CONFIG, synthetic, quiet=True)
