"""Local training: every client learns alone."""

from dataclasses import dataclass
from typing import Literal

from ...transport.peers import Peers
from ..client import Client
from .base import Algorithm


@dataclass(frozen=True)
class Settings:
    name: Literal["local"] = "local"


class Local(Algorithm):
    Settings = Settings

    def round(self, client: Client, peers: Peers) -> None:
        client.learn()
