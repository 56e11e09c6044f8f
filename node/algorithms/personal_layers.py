"""FedPer, FedRep and FedBN: clients share some layers u_i of their models, and keep the others, v_i, to themselves.

client i:         (u_i, v_i) <- local work from (u_i, v_i)
with a server:    u   <- sum_i n_i/n u_i,  u_i <- u      over the clients of the round, n_i their training samples
without:          u_i <- sum_j W_ij u_j                  W is the run's mixing matrix

The papers have a server; without one, neighbours average as D-PSGD does, but after their local work."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Le

from ...topology.section import Count, Needs, Positive
from ..assignment import Assignment
from ..model.architecture import Architecture, Parameter
from .base import Client, Peers, RunFacts, SettingsError, Traits, Work
from .robust import RobustMixing
from .secure import SecureSum
from .server import TAKES_OLD_UPLOADS, Uploads
from .shared_layers import SharedLayers


@dataclass(frozen=True)
class PersonalLayers(RobustMixing, SecureSum, SharedLayers):
    """A subclass says which layers are shared."""

    server: bool = True
    """true: clients talk to a server, as in the paper; false: neighbours average, as [topology] has them."""
    fraction: Annotated[Positive, Le(1), Needs("server")] = 1.0
    """Share of the clients that take part in a round, at least one, drawn anew for each; the others pause."""

    own_steps: ClassVar[bool] = False
    weighted = True

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        if self.server:
            return replace(TAKES_OLD_UPLOADS, same_size=False, momentum=not self.own_steps)
        return Traits(changing_graphs=True, directed_graphs="regular", learns_first=True, momentum=not self.own_steps)

    def round(self, client: Client, peers: Peers) -> None:
        if self.server:
            super().round(client, peers)
            return
        u = self.upload(client)
        theirs = peers.exchange(dict.fromkeys(client.successors, u), client.predecessors)
        self.download(client, u + self.pull(client, u, theirs))

    def aggregate(self, server: Client, uploads: Uploads) -> None:
        server.theta[self.places(server)] = self.mean(server, uploads, self.w(server))

    @contextmanager
    def as_at_the_end(self, client: Client, peers: Peers) -> Iterator[bool]:
        with super().as_at_the_end(client, peers) if self.server else nullcontext(True) as known:
            yield known


@dataclass(frozen=True)
class FedPer(PersonalLayers):
    """FedPer (Arivazhagan et al. 2019): clients share the body of their models, and each has a head of its own."""

    name: Literal["fedper"] = "fedper"

    def shared(self, model: Architecture) -> Sequence[Parameter]:
        return model.parameters_of("body")

    def check(self, run: RunFacts) -> None:
        run.require_body(f"algorithm.name = {self.name!r}")
        super().check(run)


@dataclass(frozen=True)
class FedRep(FedPer):
    """FedRep (Collins et al. 2021): FedPer whose clients first fit the head to the body that they have got, then the
    body to that head.

    v_i <- v_i - alpha grad_v f_i(u_i, v_i)      for each mini-batch of tau times the local work
    u_i <- u_i - alpha grad_u f_i(u_i, v_i)      for each mini-batch of the local work"""

    name: Literal["fedrep"] = "fedrep"  # type: ignore[assignment]
    head_passes: Count = 10
    """tau: how many times the head does the local work that [training] asks for, before the body does it once."""

    own_steps = True

    def work(self, own: Assignment, round: int) -> Work:
        return Work(gradients=self.head_passes + 1)

    def upload(self, client: Client) -> np.ndarray:
        fit_in_turn(client, self.head_passes)
        return self.w(client)


def fit_in_turn(client: Client, head_passes: int, slower: float = 1.0) -> None:
    """Does the local work so many times with the head alone, then once with the body alone, whose steps are divided by
    ``slower``."""
    head, body = client.blocks["head"], client.blocks["body"]
    for _ in range(head_passes):
        for batch in client.batches():
            client.theta[head] -= client.alpha * client.gradient_on(batch)[head]
    for batch in client.batches():
        client.theta[body] -= client.alpha / slower * client.gradient_on(batch)[body]


@dataclass(frozen=True)
class FedBN(PersonalLayers):
    """FedBN (Li et al. 2021): clients share all but the layers of batch normalization, whose running means and
    variances no method here shares. Only a module of one's own (``model.use``) has such layers."""

    name: Literal["fedbn"] = "fedbn"

    def shared(self, model: Architecture) -> Sequence[Parameter]:
        return [each for each in model.parameters() if each.name not in batch_norm(model)]

    def check(self, run: RunFacts) -> None:
        for model in run.models:
            if not batch_norm(model):
                what = f"needs layers of batch normalization with parameters, and {model.label} has none"
                use = "use a module of your own that has them (model.use), or algorithm.name = 'fedavg' or 'd-psgd'"
                raise SettingsError(f"algorithm.name = {self.name!r}", f"{what}; {use}")
        super().check(run)


def batch_norm(model: Architecture) -> tuple[str, ...]:
    """Returns the names of the parameters of batch normalization."""
    return model.own.batch_norm if model.own else ()
