"""Local training: every client learns alone."""

from dataclasses import dataclass
from typing import Literal

from .base import Algorithm, Client, Peers, Traits


@dataclass(frozen=True)
class Local(Algorithm):
    name: Literal["local"] = "local"

    traits = Traits(changing_graphs=True, directed_graphs="all", mixes=False, codec_may_drop="entries")  # of nothing

    def round(self, client: Client, peers: Peers) -> None:
        client.learn()
