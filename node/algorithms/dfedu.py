"""dFedU (Dinh et al. 2022), conventional federated multi-task learning: Sheaf-FMTL with P_ij = sqrt(a_ij) I, fixed.

theta_i <- theta_i - alpha (grad f_i(theta_i) + lam sum_j a_ij (theta_i - theta_j))
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from ..maps import IdentityMaps, Maps
from .base import same_size
from .sheaf_fmtl import End, SheafFMTL


@dataclass(frozen=True)
class DFedUSettings:
    name: Literal["dfedu"] = "dfedu"
    lam: Annotated[
        float,
        Ge(0),
        "Weight lambda of the neighbours' agreement: lam/2 a_ij ||theta_i - theta_j||^2 for each edge, once.",
    ] = 0.001
    weights: Annotated[
        Literal["ones", "mixing"],
        "Weights a_ij of the edges: all 1, as in the paper's experiments, or the run's mixing weights W_ij.",
    ] = "ones"
    server: Annotated[
        bool,
        "The clients talk to a server without a loss of its own, whose model is the mean of theirs: (15).",
    ] = False
    eta: ClassVar[float] = 0.0  # the maps stay as they are
    rotate_every: ClassVar[int] = 0


class DFedU(SheafFMTL):
    Settings = DFedUSettings
    libraries = ()

    @classmethod
    def vectors(cls, settings: DFedUSettings, d_i: int, d_j: int, common: int = 0) -> tuple[int, ...]:
        return (d_i,)

    @classmethod
    def map_rows(cls, settings: DFedUSettings, d_i: int, d_j: int, common: int = 0) -> int:
        return d_i

    @classmethod
    def mixes(cls, settings: DFedUSettings) -> bool:
        return settings.weights == "mixing"

    @classmethod
    def numbers_kept(cls, settings: DFedUSettings, d_i: int, d_j: Sequence[int], rounds: int) -> int:
        return 0  # identity maps are not stored

    @classmethod
    def check(cls, settings: DFedUSettings, sizes: Sequence[int], edges: Sequence[tuple[int, int]]) -> None:
        same_size("algorithm.name = 'dfedu'", sizes, edges)

    @classmethod
    def starting_maps(cls, settings: DFedUSettings, client: End) -> Maps:
        return IdentityMaps(
            {j: peer.weight if settings.weights == "mixing" else 1.0 for j, peer in client.neighbours.items()},
            client.theta.size,
        )
