"""APFL: a client's own model is a mixture of one that it keeps and the one that all have in common."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from ...topology.section import Fraction
from ..assignment import Assignment
from .base import Client, State, Work
from .secure import SecureSum
from .server import TAKES_OLD_UPLOADS, Uploads


@dataclass(frozen=True)
class APFL(SecureSum):
    """APFL (Deng, Kamani, Mahdavi 2020): each client mixes a model of its own with the common one, and learns how much.

    client i:  w_i = w, then for each mini-batch of the local work, with vbar_i = a_i v_i + (1 - a_i) w_i
                   w_i <- w_i - alpha grad f_i(w_i)
                   v_i <- v_i - alpha a_i grad f_i(vbar_i)
               a_i <- a_i - alpha <v_i - w_i, grad f_i(vbar_i)>, kept in [0, 1]       at the first of them
    server:    w <- 1/|S| sum_i w_i

    theta is v_i at a client, w at the server. A client's own model is vbar_i = a_i v_i + (1 - a_i) w."""

    name: Literal["apfl"] = "apfl"
    mix: Annotated[Fraction, "a_i before the first round: 1 is one's own model, 0 the common one."] = 0.5
    adaptive: Annotated[bool, "Whether clients learn a_i."] = True

    theta_is = "own beside common"
    traits = replace(TAKES_OLD_UPLOADS, momentum=False)

    def begin(self, client: Client) -> State:
        state = super().begin(client)
        state.mix = np.full(1, self.mix)
        return state

    def work(self, own: Assignment, round: int) -> Work:
        return Work(gradients=2, on_one_batch=2)

    def upload(self, client: Client) -> np.ndarray:
        theta, state, alpha = client.theta, client.state, client.alpha
        v, w = theta.copy(), state.w.copy()
        for number, batch in enumerate(client.batches()):
            a, own, common = float(state.mix[0]), v.copy(), w.copy()
            theta[:] = common
            w -= alpha * client.gradient_on(batch)
            theta[:] = a * own + (1 - a) * common
            gradient = client.gradient_on(batch)
            v -= alpha * a * gradient
            if self.adaptive and number == 0:
                state.mix = np.clip(state.mix - alpha * ((own - common) @ gradient), 0, 1)
        theta[:] = v
        return w

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        server.theta[:] = sum(uploads.values()) / len(uploads)

    def personal_model(self, client: Client) -> np.ndarray:
        a = float(client.state.mix[0])
        return a * client.theta + (1 - a) * client.state.w
