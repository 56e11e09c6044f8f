"""dFedU (Dinh et al. 2022), the conventional federated multi-task objective (9): Sheaf-FMTL with P_ij = I, fixed.

theta_i <- theta_i - alpha (grad f_i(theta_i) + lam sum_j (theta_i - theta_j))
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from ..client import Client
from ..maps import IdentityMaps, Maps
from .base import same_size
from .sheaf_fmtl import SheafFMTL


@dataclass(frozen=True)
class Settings:
    name: Literal["dfedu"] = "dfedu"
    lam: Annotated[float, Ge(0), "Weight lambda of the neighbours' agreement in the objective (9)."] = 0.001
    eta: ClassVar[float] = 0.0  # the maps stay as they are


class DFedU(SheafFMTL):
    Settings = Settings

    @classmethod
    def vectors(cls, settings: Settings, d_i: int, d_j: int) -> tuple[int, ...]:
        return (d_i,)

    @classmethod
    def check(cls, settings: Settings, edges: Iterable[tuple[int, int]]) -> None:
        same_size("dfedu", edges)

    def starting_maps(self, client: Client) -> Maps:
        return IdentityMaps(client.neighbours)
