"""What a constant prediction comes to, from the shards of all clients."""

from __future__ import annotations

import numpy as np
import pytest

from sheafgossip.launcher.data.prepare import ConstantPredictor
from sheafgossip.launcher.data.shards import Shard


def shard(task, outputs, train, test) -> Shard:
    y_train, y_test = (np.array(y, np.int64 if task == "classification" else np.float32) for y in (train, test))
    if task == "regression":
        y_train, y_test = y_train.reshape(-1, outputs), y_test.reshape(-1, outputs)
    return Shard(np.zeros((len(y_train), 1)), y_train, np.zeros((len(y_test), 1)), y_test, task, outputs, 0)


def constant(*shards, tasks=("classes",)) -> float | None:
    predictor = ConstantPredictor(tasks)
    for each in shards:
        predictor.add(each)
    return predictor.metric()


def test_of_classes_it_is_the_accuracy_of_the_most_frequent_one():
    one, other = (
        shard("classification", 3, [0, 2, 2], [2, 2, 0, 1]),
        shard("classification", 3, [1, 2, 1], [1, 1, 1, 2]),
    )
    assert constant(one, other) == pytest.approx((0.5 + 0.25) / 2)  # class 2, by 3 to 2


def test_of_targets_it_is_the_error_of_their_mean():
    one, other = shard("regression", 1, [1, 3], [2, 4]), shard("regression", 1, [5, 7, 9], [5])
    assert constant(one, other) == pytest.approx(np.mean([np.mean([9, 1]), 0]))  # the mean is 5


def test_where_clients_have_different_tasks_there_is_no_one_constant():
    assert constant(shard("classification", 2, [0], [0]), tasks=("parity", "halves")) is None
