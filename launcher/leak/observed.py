"""What a neighbour knows of a client's model from what it was sent: an estimate of theta after every message.

A message y = P (theta - o), with rows P that the receiver knows, moves the estimate e the shortest way to what agrees
with it: e <- e + P^+ (y - P (e - o)). While theta stays, what is left of the error is its part that no row has seen,
and nothing once the rows of all messages span the whole space, if those of different rounds are equal or orthogonal,
as rows of one orthonormal transform are. While theta moves, older parts are as old as their last message."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse.linalg import LinearOperator, lsqr

from ...metrics.store import RunFolderError
from ...node.algorithms import Algorithm, algorithm_of
from ...node.algorithms.prototype_sheaf import PrototypeSheaf, rows_of, transform_of
from ...node.algorithms.selective_sheaf import SelectiveSheaf, block_sizes
from ...node.algorithms.sheaf_fmtl import DFedU, SheafFMTL
from ...node.assignment import Assignment, name_of
from ...node.learned_maps import Owner, shared_size
from ...node.maps import rows_in_turn, shared_rows, shared_transform
from ...transport.array_file import DamagedFile, read

_EXACT = 1e-15
_NAME = re.compile(r"sent\.(\d+)\.(\d+(?:,\d+)*)|theta\.(\d+)")


class Message(NamedTuple):
    round: int
    number: int  # of the round
    vector: np.ndarray
    theta: np.ndarray  # the sender's, as it sent it


class Seen(NamedTuple):
    """What a receiver knows after a message of this round, and the sender's theta then."""

    round: int
    estimate: np.ndarray
    theta: np.ndarray


def messages_of(folder: Path, sender: int) -> dict[int, list[Message]]:
    """Returns {receiver: what it was sent, in order}. Raises RunFolderError."""
    found: dict[int, list[Message]] = {}
    for path in sorted(folder.glob(f"vectors/round-*/{name_of(sender)}.safetensors")):
        try:
            arrays, theta = read(path), None
            for name, array in sorted(arrays.items(), key=lambda item: (int(item[0].split(".")[1]), item[0] < "t")):
                number, receivers, of_theta = _NAME.fullmatch(name).groups()  # type: ignore[union-attr]
                if array.ndim != 1 or array.dtype.kind != "f" or not np.isfinite(array).all():
                    raise ValueError(f"{name} is no vector of finite numbers")
                vector = array.astype(np.float64)
                if of_theta:
                    theta = vector
                    continue
                if theta is None:
                    raise ValueError(f"{name} stands there without theta")
                for receiver in map(int, receivers.split(",")):
                    found.setdefault(receiver, []).append(
                        Message(int(path.parent.name[6:]), int(number), vector, theta)
                    )
        except (DamagedFile, OSError, ValueError, AttributeError, IndexError) as error:
            raise RunFolderError(f"{path}: cannot be read as the messages of a client: {error}") from None
    return found


def known(P: Any, y: np.ndarray, estimate: np.ndarray) -> np.ndarray:
    """Returns the vector closest to ``estimate`` of those that P maps to y, or as near to y as any."""
    return estimate + lsqr(P, y - P @ estimate, atol=_EXACT, btol=_EXACT)[0]


@dataclass
class Reader:
    """Reads the messages of one client. ``what`` it sends its neighbours."""

    own: Assignment
    start: np.ndarray | None  # theta^0, where its neighbours know it

    def __post_init__(self) -> None:
        self.algorithm: Algorithm = algorithm_of(self.own)
        self.size, self._maps, self._period = self.own.architecture.size, None, 0
        algorithm, own = self.algorithm, self.own
        peers = {peer.node: peer for peer in own.neighbours}
        zeros, seed = np.zeros(self.size), own.run.seed
        self.what = "theta"
        if isinstance(algorithm, SelectiveSheaf | PrototypeSheaf):
            self._rows = {j: shared_size(algorithm.gamma, self.size, peer.parameters) for j, peer in peers.items()}
            first = self._drawn(self._rows, 0)
            if isinstance(algorithm, PrototypeSheaf):
                self._transform = transform_of(seed, first, own.architecture, zeros.dtype)
            else:
                blocks = block_sizes(algorithm.blocks, own.architecture)
                self._transform = shared_transform(seed, first, blocks, dtype=zeros.dtype)
            self.what = "rotating rows"
        elif isinstance(algorithm, SheafFMTL | DFedU):
            owner = Owner(own.node, seed, zeros, peers, own.architecture)
            self._maps = algorithm.restriction_maps(owner)
            if isinstance(algorithm, SheafFMTL):
                learned = "learned rows" if algorithm.eta else "fixed rows"
                self.what = "rotating rows" if algorithm.rotate_every else learned

    def _drawn(self, lengths: dict[int, int], period: int) -> dict[int, np.ndarray]:
        own, whole = self.own, (self.own.run.seed, self.own.node, lengths, self.size, period)
        if isinstance(self.algorithm, SelectiveSheaf):
            return shared_rows(*whole)
        return {j: rows_of(turn, own.architecture) for j, turn in rows_in_turn(*whole).items()}

    def estimates(self, receiver: int, messages: list[Message]) -> Iterator[Seen]:
        """Yields what the receiver knows after each round's last message; nothing where it cannot read them."""
        origin = np.zeros(self.size) if self.start is None else self.start
        estimate, last = origin.copy(), None
        for message in messages:
            if last is not None and message.round != last.round:
                yield last
                last = None
            first = last is None or self._maps is not None  # of other methods, what comes next is something else
            if not first or (read_as := self._read(receiver, message)) is None:
                continue
            P, y = read_as
            if isinstance(self.algorithm, SelectiveSheaf):  # it sends P (theta - theta^0)
                estimate = origin + known(P, y, estimate - origin)
            else:
                estimate = y if P is None else known(P, y, estimate)
            last = Seen(message.round, estimate, message.theta)
        if last is not None:
            yield last

    def _read(self, receiver: int, message: Message) -> tuple[Any, np.ndarray] | None:
        """(P, y); P is None where y is theta itself."""
        algorithm, node, seed, y = self.algorithm, self.own.node, self.own.run.seed, message.vector
        if message.theta.size != self.size:
            return None
        if isinstance(algorithm, SelectiveSheaf | PrototypeSheaf):
            if message.number != isinstance(algorithm, PrototypeSheaf):  # introductions, prototypes
                return None
            rows = {receiver: self._rows[receiver]}
            self._transform.choose(self._drawn(rows, message.round - 1))
            transform, shape = self._transform, (rows[receiver], self.size)
            P = LinearOperator(
                shape, lambda v: transform.project(v.ravel()), lambda v: transform.pull_back(v.ravel()), dtype=float
            )
            return P, y[: rows[receiver]]
        if self._maps is None:
            return (None, y) if y.size == self.size else None
        every = getattr(algorithm, "rotate_every", 0)
        if every and (period := (message.round - 1) // every) != self._period:
            self._period, maps = period, self._maps
            maps.start.choose(shared_rows(seed, node, maps.stacking.rows, self.size, period))  # type: ignore[attr-defined]
        maps, height = self._maps, self._maps.stacking.rows[receiver]
        P = LinearOperator(
            (height, self.size),
            lambda v: maps.project(v.ravel())[receiver],
            lambda v: maps.pull_back({receiver: v.ravel()}),
            dtype=float,
        )
        return P, y[:height]
