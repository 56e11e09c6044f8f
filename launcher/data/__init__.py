"""Data sets, how they are spread over the clients, and the shard file of each client."""

from .partition import split
from .pool import DataError, Pool
from .prepare import ClientSummary, DataSummary, count_clients, prepare, shard_path
from .sets import load
from .shards import Shard, cut, write

__all__ = [
    "ClientSummary",
    "DataError",
    "DataSummary",
    "Pool",
    "Shard",
    "count_clients",
    "cut",
    "load",
    "prepare",
    "shard_path",
    "split",
    "write",
]
