"""Sheaf HyperNetwork (Nguyen et al. 2024): GHN with sheaf diffusion in the place of graph convolutions.

    X_0 = reshape(X W_in) in R^{(M d) x f}           a stalk R^d for each client, f times over
    F_{v of e = (v, u)} = orthogonal(tanh(Phi^t [vec(X_t)_v || vec(X_t)_u])) in R^{d x d}       restriction maps
    X_{t+1} = X_t - s(Delta_F(t) (I x W_1^t) X_t W_2^t)                                         (4)
    z_m = P vec(X_L)_m                               back to R^f

Delta_F = D^-1/2 delta^T delta D^-1/2 is the normalised sheaf Laplacian, (delta X)_e = F_{v of e} X_v - F_{u of e} X_u.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from ...client import Client
from ..base import State
from .ghn import GHN
from .pfedhn import Width


@dataclass(frozen=True)
class SHN(GHN):
    name: Literal["shn"] = "shn"  # type: ignore[assignment]
    stalk: Annotated[Width, "Dimension d of the stalks, and of the d x d restriction maps."] = 3
    orthogonal: Annotated[
        Literal["householder", "cayley"], "How a restriction map is made orthogonal: by reflections, or as a rotation."
    ] = "householder"

    def hypernetwork(self, server: Client) -> State:
        from .diffusion import SheafHypernetwork  # loads torch

        return SheafHypernetwork(self, server)
