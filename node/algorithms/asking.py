"""What PENS, DAC and DPFL have in common: clients ask those neighbours for their models that suit their own data."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from .base import Algorithm, Client, Edge, Peers, Traits, Vector


@dataclass(frozen=True)
class Asking(Algorithm):
    """In each round a client tells every neighbour, by one number, whether it wants its model, and sends its own to
    those that want it. Whom it asks depends on what it has learned; so a plan has a model on every edge in every round,
    an upper bound of bytes and seconds, while traffic has those that were sent."""

    # a request of another round asks for nothing in this one
    traits = Traits(
        same_size=True,
        tolerates="missing",
        more_tolerant="time.clock = 'virtual' with time.silence = 'skip'",
        silent_edges=True,
        learns_first=True,
        mixes=False,
        reads_samples=True,
    )

    def messages(self, edge: Edge) -> list[Vector]:
        return [Vector(1, exact=1), Vector(edge.d_i)]

    def ask(
        self, client: Client, peers: Peers, whom: Collection[int], answer: np.ndarray | None = None
    ) -> dict[int, np.ndarray]:
        """Returns {j: what it sends} of those whom the client asks. Who asks the client gets its ``answer``, by default
        theta."""
        one = np.ones(1, client.theta.dtype)
        told = peers.exchange({j: one if j in whom else 0 * one for j in client.neighbours})
        wanted = client.theta if answer is None else answer
        answers = {j: wanted for j, asks in told.items() if asks[0]}
        return peers.exchange(answers, whom, quiet=client.neighbours.keys() - answers.keys())

    def average(self, client: Client, theirs: Mapping[int, np.ndarray]) -> None:
        """theta_i <- (n_i theta_i + sum_j n_j theta_j) / (n_i + sum_j n_j), n their training samples."""
        n_i, n = client.train_samples, {j: client.neighbours[j].samples for j in theirs}
        total = sum((n[j] * theirs[j] for j in theirs), start=n_i * client.theta)
        client.theta[:] = total / (n_i + sum(n.values()))
