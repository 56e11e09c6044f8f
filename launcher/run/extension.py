"""Giving a run more rounds than it began with: from where it can go on as if it had had them from the start."""

from ...metrics.records import LAUNCHER, EventRecord
from ...metrics.schema import EXTENDED_AFTER, RunFolderError
from ...node.algorithms.server import ServerAlgorithm
from ..config.sections import RunConfig
from ..planner.agreement import can_go_on_after, same_comings_and_goings
from ..prepare.prepared import Prepared, write_down
from .folder import fact, own_files
from .resumption import checkpoints, is_finished, last_recorded, wall_s_after


def extended(was: Prepared, will: Prepared) -> Prepared:
    """``will``: the same run with more rounds. It is written down, with a round to go on after; what is recorded of
    later ones is forgotten. Raises RunFolderError, and leaves all as it was, where none of its checkpoints is one of
    the longer run, too.
    """
    folder, rounds = was.folder, was.config.rounds
    there = checkpoints(was, last_recorded(was), at_its_end=True)
    fitting = [round for round in there if _is_common(round, was, will)]
    if not fitting and (there or is_finished(folder)):
        raise RunFolderError(f"{folder}: cannot be extended to {will.config.rounds} rounds: {_why_not(was, will)}")
    after = max(fitting, default=0)
    ends = [int(round) for round in (fact(folder, EXTENDED_AFTER) or "").split(",") if round] + [rounds]
    text = f"from {rounds} to {will.config.rounds} rounds, going on after round {after}"
    event = EventRecord(wall_s_after(after, folder), None, LAUNCHER, "extend", text)
    store = write_down(will)
    store.describe(**{EXTENDED_AFTER: ",".join(str(round) for round in ends if round <= after)})
    store.write([event])
    store.forget_ends(rounds)
    store.forget_after(after or -1)
    store.close()
    if after < rounds:
        _remove_end(was)
    return will


def _remove_end(was: Prepared) -> None:
    """The state after its last round, which the longer run may not come by."""
    for path in own_files(was.folder):
        if path.parent.name == was.assignments[0].state(was.config.rounds).parent.name:
            path.unlink()


def _is_common(round: int, was: Prepared, will: Prepared) -> bool:
    if round == was.config.rounds and _ends_otherwise(was.config):
        return False
    if was.plan is None or will.plan is None:
        return True
    return same_comings_and_goings(was.plan, will.plan) and can_go_on_after(round, was.plan, will.plan)


def _ends_otherwise(config: RunConfig) -> bool:
    """Whether a run's last round is unlike the same round of a longer run: all clients download in it."""
    return isinstance(config.algorithm, ServerAlgorithm) and config.algorithm.last_round_differs


def _why_not(was: Prepared, will: Prepared) -> str:
    if was.plan and will.plan and not same_comings_and_goings(was.plan, will.plan):
        return "faults are drawn for the number of rounds, and fall otherwise in so many"
    if not checkpoints(was, last_recorded(was), at_its_end=True):
        why = "not all clients came to its end"
    elif _ends_otherwise(was.config):
        why = f"in round {was.config.rounds} all clients download, as it was the last one"
    else:
        why = "in so many rounds clients would have used other messages, or at other times"
    return f"{why}, and there is no checkpoint before that; start a run of {will.config.rounds} rounds"
