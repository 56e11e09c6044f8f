"""Clients' local work, before they start: what planned time counts of it, and what data or model do not allow."""

from collections.abc import Sequence
from itertools import count

import numpy as np

from ...node.algorithms.base import work_of
from ...node.assignment import Assignment
from ...node.model.own_metrics import check_metric
from ...node.settings import OptimizerSettings
from ..config.sections import ConfigError, RunConfig
from ..data.shards import DataSummary

_MOST_CLASSES = 1000


def local_work(config: RunConfig, assignments: Sequence[Assignment], samples: Sequence[int]) -> list[list[float]]:
    """Returns of each client, by round, how many local steps take as long as what it computes, or with
    compute.sample_s how many samples; one number where all rounds are alike. A server, without ``samples``, has 0."""
    by_sample, rounds = bool(config.compute.sample_s), range(1, config.rounds + 1)
    clients = zip(assignments, samples, strict=False)
    found = [[work_of(config.algorithm, own, n, k)[by_sample] for k in rounds] for own, n in clients]
    if all(len({*each}) == 1 for each in found):
        found = [each[:1] for each in found]
    return found + [[0.0] * len(found[0])] * (len(assignments) - len(samples))


def check_own_code(config: RunConfig, assignments: Sequence[Assignment], data: DataSummary) -> None:
    """Raises UserError where a loss, metric or optimizer does not fit. Loads torch where it is needed."""
    training, first = config.training, assignments[0]
    for number, metric in enumerate(config.evaluation.metrics):
        check_metric(metric, number, first.shard, first.architecture.outputs)
    if training.loss.use:
        from ...node.model.own import check_loss

        check_loss(training.loss.use, training.loss.options, first.architecture.outputs, data.task)
    if isinstance(training.optimizer, OptimizerSettings):
        from ...node.model.own_optimizer import check_optimizer

        for architecture in {repr(each.architecture): each.architecture for each in assignments}.values():
            check_optimizer(training.optimizer, architecture, np.dtype(config.model.dtype), training.alpha)


def check_batches(config: RunConfig, assignments: Sequence[Assignment], samples: Sequence[int]) -> None:
    """Raises ConfigError where a client would meet a mini-batch of one sample, and its model cannot learn from one."""
    training = config.training
    clients = [
        (own.node, model.use, n)
        for own, n in zip(assignments, samples, strict=False)
        if (model := own.architecture.own) is not None and not model.learns_from_one
    ]
    for node, use, n in clients:
        needs = f"batch normalization ({use}) needs two samples at least"
        if n == 1:
            more = "give clients more (data.samples, data.partition), or the model torch.nn.GroupNorm in its place"
            raise ConfigError(f"client {node} has one training sample, and {needs}; {more}")
        size, meets_last = training.batch_size, config.rounds * training.count(n) >= training.a_pass(n)
        if training.work != "full" and (size == 1 or (n % size == 1 and meets_last)):
            fits = next(b for b in count(size + 1) if not any(m > 1 and m % b == 1 for _, _, m in clients))
            why = f"client {node} has {n} training samples, so a mini-batch has one, and {needs}"
            raise ConfigError.of(
                "training.batch_size", size, why, f"such as {fits}; or torch.nn.GroupNorm in its place"
            )


def check_confusion(config: RunConfig, data: DataSummary) -> None:
    """Raises ConfigError where a confusion matrix is asked for, and there is none or too large a one."""
    if not config.evaluation.confusion or (data.task == "classification" and data.outputs <= _MOST_CLASSES):
        return
    found = "the targets are no classes" if data.task == "regression" else f"the samples have {data.outputs:,} classes"
    raise ConfigError.of("evaluation.confusion", True, found, f"false, or data of at most {_MOST_CLASSES:,} classes")
