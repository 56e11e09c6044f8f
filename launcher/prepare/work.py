"""What planned time counts of local work."""

from collections.abc import Sequence

from ...node.algorithms.base import work_of
from ...node.assignment import Assignment
from ..config.sections import RunConfig


def local_work(config: RunConfig, assignments: Sequence[Assignment], samples: Sequence[int]) -> list[list[float]]:
    """Returns of each client, by round, how many local steps take as long as what it computes, or with
    compute.sample_s how many samples; one number where all rounds are alike. A server, without ``samples``, has 0."""
    by_sample, rounds = bool(config.compute.sample_s), range(1, config.rounds + 1)
    clients = zip(assignments, samples, strict=False)
    found = [[work_of(config.algorithm, own, n, k)[by_sample] for k in rounds] for own, n in clients]
    if all(len({*each}) == 1 for each in found):
        found = [each[:1] for each in found]
    return found + [[0.0] * len(found[0])] * (len(assignments) - len(samples))
