"""What a client sends, in files of the run's folder, for `sheafgossip leak`."""

from collections.abc import Sequence

import numpy as np

from ...transport.array_file import ArrayFile
from ...transport.peers import Peers
from ..assignment import Assignment
from ..client import Client


class SentVectors:
    """A file a round holds "sent.M.J,K,...", the M-th message of the round as clients J, K, ... decode it, and
    "theta.M", the sender's theta when it sent that one, where it is not that of the message before."""

    def __init__(self, assignment: Assignment, client: Client, peers: Peers):
        asked, run = assignment.measuring.vectors, assignment.run
        senders = len(asked.clients) or run.clients + (assignment.role == "server")
        self._assignment, self._client, self._peers, self._every = assignment, client, peers, asked.every
        self._arrays: dict[str, np.ndarray] = {}
        self._theta: np.ndarray | None = None  # of the last message of this round
        self._left = int(1e6 * asked.mb / senders)
        if self._left and not assignment.probes and (not asked.clients or assignment.node in asked.clients):
            for round in range(1, assignment.incarnation.first_round):  # it goes on after these
                if (path := assignment.vectors(round)).exists():
                    self._left -= path.stat().st_size
            peers.tap = self._keep

    def _keep(self, message: int, receivers: Sequence[int], vector: np.ndarray) -> None:
        if (self._peers.round - 1) % self._every:
            return
        theta = self._client.theta
        if self._theta is None or not np.array_equal(theta, self._theta):
            self._theta = self._arrays[f"theta.{message}"] = theta.copy()
        # What leaves as it is, is often theta itself, which is going to change
        self._arrays[f"sent.{message}.{','.join(map(str, receivers))}"] = vector.copy()

    def save(self, round: int) -> list[str]:
        """Writes those of the round; returns what is worth a warning: once, when no more can be kept."""
        arrays, self._arrays, self._theta = self._arrays, {}, None
        if not arrays:
            return []
        self._left -= 1000 + sum(array.nbytes + 200 for array in arrays.values())  # with the head of a file
        why = "measuring.vectors.mb is used up"
        if self._left >= 0:
            try:
                ArrayFile(arrays, {"round": str(round)}).save(self._assignment.vectors(round))
                return []
            except OSError as error:
                why = error.strerror or str(error)
        self._peers.tap = None
        return [f"no messages of client {self._assignment.node} are kept from round {round} on: {why}"]
