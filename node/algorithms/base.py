"""What an algorithm is: its settings, what it sends, and one round."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from ...transport.peers import Peers
from ..client import Client


class SettingsError(ValueError):
    """Settings that do not fit the clients; ``key`` is the configuration key at fault."""

    def __init__(self, key: str, message: str):
        super().__init__(f"{key}: {message}")


class Algorithm:
    """One instance lives in each client process, for the whole run.

    A subclass names its ``Settings`` (a frozen dataclass whose ``name`` is the algorithm's), announces in ``vectors`` what
    travels, and does the work of one round in ``round``. It sees a client and its peers; never a socket, clock or file.
    """

    Settings: ClassVar[type[Any]]

    disagreement: float | None = None
    """sqrt(sum_j ||P_ij theta_i - P_ji theta_j||^2) met in the last round, where there is such a thing."""

    def __init__(self, settings: Any, client: Client):
        self.settings = settings

    @classmethod
    def vectors(cls, settings: Any, d_i: int, d_j: int) -> tuple[int, ...]:
        """Lengths of the vectors that a client with d_i parameters sends a neighbour with d_j in one round, in order."""
        return ()

    @classmethod
    def check(cls, settings: Any, edges: Iterable[tuple[int, int]]) -> None:
        """Raises SettingsError when the settings do not fit; ``edges`` are the (d_i, d_j) of the run's edges."""

    def round(self, client: Client, peers: Peers) -> None:
        raise NotImplementedError

    def state_bytes(self) -> int:
        """Memory of what the algorithm keeps between rounds, theta apart."""
        return 0

    def state(self) -> dict[str, np.ndarray]:
        """What a later process needs, beside theta, to go on exactly here."""
        return {}

    def dense_maps(self) -> dict[int, np.ndarray]:
        """{neighbour: P_ij (d_ij, d_i)}, for those who want to look at them."""
        return {}


def same_size(name: str, edges: Iterable[tuple[int, int]]) -> None:
    """Raises SettingsError unless all neighbours' models have one size: for algorithms that compare theta itself."""
    for d_i, d_j in edges:
        if d_i != d_j:
            raise SettingsError(
                "algorithm.name",
                f"'{name}' compares whole models, but neighbours have {d_i} and {d_j} parameters; "
                "use one architecture (leave out model.mix), or 'sheaf-fmtl' or 'local'",
            )
