"""Data sets, how they are spread over the clients, and the shard file of each client."""

from sheafgossip.launcher.data.errors import DataError
from sheafgossip.launcher.data.partition import split
from sheafgossip.launcher.data.pool import Pool
from sheafgossip.launcher.data.prepare import ClientSummary, DataSummary, prepare, shard_path
from sheafgossip.launcher.data.sets import load
from sheafgossip.launcher.data.shards import Shard, cut, write

__all__ = [
    "ClientSummary",
    "DataError",
    "DataSummary",
    "Pool",
    "Shard",
    "cut",
    "load",
    "prepare",
    "shard_path",
    "split",
    "write",
]
