"""dFedU (Dinh et al. 2022), conventional federated multi-task learning: Sheaf-FMTL with P_ij = sqrt(a_ij) I, fixed.

theta_i <- theta_i - alpha (grad f_i(theta_i) + lam sum_j a_ij (theta_i - theta_j))
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge

from ..assignment import Assignment, Neighbour
from ..maps import IdentityMaps, Maps
from .base import Cost, Edge, Traits, Vector
from .sheaf_fmtl import NO_SCENARIO_WITH_A_SERVER, SheafAlgorithm, cost_of_saving


@dataclass(frozen=True)
class DFedU(SheafAlgorithm):
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

    @property
    def traits(self) -> Traits:
        return Traits(
            same_size=True,
            codec_may_drop="digits" if self.server else "entries",  # a server takes over what it hears
            server="exchanges" if self.server else "none",
            no_scenario=NO_SCENARIO_WITH_A_SERVER if self.server else "",
            mixes=self.weights == "mixing",
            has_maps=True,
        )

    def messages(self, edge: Edge) -> list[Vector]:
        return [Vector(edge.d_i)]

    def restriction_maps(self, node: int, seed: int, theta: np.ndarray, neighbours: Mapping[int, Neighbour]) -> Maps:
        a = {j: peer.weight if self.weights == "mixing" else 1.0 for j, peer in neighbours.items()}
        return IdentityMaps(a, theta.size)

    def cost(self, own: Assignment) -> Cost:
        return Cost(cost_of_saving(own, [own.architecture.size] * len(own.neighbours)))  # they are not stored
