"""Data sets, how they are spread over the clients, and the shard file of each client."""
