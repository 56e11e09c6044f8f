"""Local training: every client learns alone."""

from dataclasses import dataclass
from typing import Literal

from ...transport.peers import Peers
from ..client import Client
from .base import Algorithm


@dataclass(frozen=True)
class LocalSettings:
    name: Literal["local"] = "local"


class Local(Algorithm):
    Settings = LocalSettings
    changing_graphs = True
    directed_graphs = "all"

    @classmethod
    def mixes(cls, settings: LocalSettings) -> bool:
        return False

    @classmethod
    def may_lose(cls, settings: LocalSettings) -> Literal["entries"]:
        return "entries"  # of nothing

    def round(self, client: Client, peers: Peers) -> None:
        client.learn()
